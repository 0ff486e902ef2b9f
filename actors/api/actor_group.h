// ActorGroup<T>: several actors of one type that are made, called, resized and replaced together.
//
//   auto trainers = runtime.SpawnGroup<Trainer>({.name = "train", .min_size = 2, .size = 4,
//                                                .max_size = 8}, plan).value();
//   auto summaries = trainers.Run(&Trainer::Train).Get();  // of every present and future member
//   trainers.Resize(6);
//
// Members have numbers. One that dies is started again, as the same member; one that is drained
// leaves when it has done what it was called for, and another takes its place. The elastic
// collective group of the group's name has all members: CollectiveGroup::Enter(name) inside their
// methods.
// Thread: any; copies are the same group. Inside a method the calls suspend its fiber.
// Owns: nothing; the group ends with the process or actor that made it, unless it is detached.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/api/group_calls.h"
#include "actors/api/handle.h"

namespace troupe {

// Undoes OnEvent when it goes. Movable.
class GroupWatch {
 public:
  GroupWatch() = default;
  explicit GroupWatch(std::shared_ptr<void> watch) : watch_(std::move(watch)) {}

 private:
  std::shared_ptr<void> watch_;
};

template <class T>
class ActorGroup {
 public:
  // Of the results of all members.
  template <class F>
  using GroupFuture = Future<std::vector<typename actors::CallFuture<F>::Value>>;

  struct Member {
    uint32_t number = 0;
    GroupMemberState state = GroupMemberState::kStarting;
    std::string reason;  // Why it is not alive.
    ActorHandle<T> handle;
  };

  ActorGroup(std::shared_ptr<actors::ActorSystem> system, std::string id, std::string name)
      : system_(std::move(system)), id_(std::move(id)), name_(std::move(name)) {}

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  // How it stands. kNotFound: it has ended, for a while.
  [[nodiscard]] Result<ActorGroupStatus> Look(Duration limit = seconds(30)) const {
    return actors::AskActorGroup(system_, About(actors::ActorGroupVerb::kStatus), limit);
  }
  // Those that it has now, by number. kPeerGone: it has ended; the message says why.
  [[nodiscard]] Result<std::vector<Member>> Members() const {
    const Result<ActorGroupStatus> status = Look();
    if (!status.ok()) return status.error();
    if (status->ended) return Error{ErrorCode::kPeerGone, "the group has ended: " + status->reason};
    std::vector<Member> members;
    for (const ActorGroupStatus::Member& m : status->members) {
      const actors::ActorAddress address{
          m.actor, std::max<uint64_t>(1, m.incarnation), status->type, {}, true};
      members.push_back(
          {m.number, m.state, m.reason, ActorHandle<T>(system_, system_->Refer(address))});
    }
    return members;
  }
  // Waits until `count` members are alive (0: as many as there are to be).
  [[nodiscard]] Status WaitAlive(uint32_t count, Duration limit) const {
    return actors::WaitForGroup(system_, id_, count, limit);
  }
  // Calls a described method of each member that it has now; one future for each, by number.
  template <class F, class... A>
  auto Call(F method, A&&... arguments) const
      -> Result<std::vector<Future<typename actors::MethodTypes<F>::Result>>> {
    std::vector<Future<typename actors::MethodTypes<F>::Result>> futures;
    const Result<std::vector<Member>> members = Members();
    if (!members.ok()) return members.error();
    for (const Member& m : *members) futures.push_back(m.handle.Call(method, arguments...));
    return futures;
  }
  // Calls a described method of every present and future member, until all that are there have
  // returned: their results by number. A member that dies is called again in its next life; who
  // joins after one has returned is not called any more. What a method threw fails the run.
  template <class F, class... A>
  GroupFuture<F> Run(F method, A&&... arguments) const {
    return RunWithin(kUntilComplete, method, std::forward<A>(arguments)...);
  }
  template <class F, class... A>
  GroupFuture<F> RunWithin(Duration limit, F method, A&&... arguments) const {
    using Types = actors::MethodTypes<F>;
    using Value = typename Future<typename Types::Result>::Value;
    static_assert(Types::template Accepts<A...>(),
                  "these arguments do not fit the method's parameters");
    static_assert(!(actors::kIsFuture<A> || ...), "a run takes values: wait for the futures first");
    Future<std::vector<Value>> future;
    const char* const name = actors::MethodName<T>(method);
    if (name == nullptr) {
      return Future<std::vector<Value>>::Failed(
          Error{ErrorCode::kInvalidArgument,
                std::string("the method is not among those that TROUPE_ACTOR(") +
                    ActorTraits<T>::kName + ", ...) lists"});
    }
    typename Types::Pack pack{{std::forward<A>(arguments)...}};
    const auto system = system_;
    auto call = actors::RunOnGroup(system_, id_, name, actors::EncodeArguments(pack), limit,
                                   [future, system](Result<actors::GroupResults> results) {
                                     if (!results.ok()) return future.Complete(results.error());
                                     std::vector<Value> values;
                                     for (auto& [number, bytes] : *results) {
                                       auto value = actors::DecodeResult<typename Types::Result>(
                                           system.get(), std::move(bytes));
                                       if (!value.ok()) return future.Complete(value.error());
                                       values.push_back(std::move(*value));
                                     }
                                     future.Complete(std::move(values));
                                   });
    if (call) future.SetCall(std::move(call));
    return future;
  }
  // kInvalidArgument: not within min_size and max_size. Those that are too many leave as drained
  // ones do; returns before they have left, or others are there.
  [[nodiscard]] Status Resize(uint32_t size) const {
    actors::ActorGroupRequest request = About(actors::ActorGroupVerb::kResize);
    request.size = size;
    return Ask(std::move(request));
  }
  // The member of this number leaves its collective group at the next boundary, finishes what it
  // was called for, and ends; after `limit` by force. Another one takes its place.
  [[nodiscard]] Status Drain(uint32_t member, const std::string& reason,
                             Duration limit = seconds(30)) const {
    actors::ActorGroupRequest request = About(actors::ActorGroupVerb::kDrain);
    request.member = member;
    request.reason = reason;
    request.limit_s = ToSeconds(limit);
    return Ask(std::move(request));
  }
  // All members end. Ending it again is no error.
  [[nodiscard]] Status End(const std::string& reason = "ended") const {
    actors::ActorGroupRequest request = About(actors::ActorGroupVerb::kEnd);
    request.reason = reason;
    return Ask(std::move(request));
  }
  // `told` gets every event from now on, in order; it must not block.
  [[nodiscard]] Result<GroupWatch> OnEvent(std::function<void(const GroupEvent&)> told) const {
    const Result<ActorGroupStatus> status = Look();
    if (!status.ok()) return status.error();
    return GroupWatch(actors::WatchGroup(system_, *status, std::move(told)));
  }

 private:
  [[nodiscard]] actors::ActorGroupRequest About(actors::ActorGroupVerb verb) const {
    actors::ActorGroupRequest request;
    request.verb = verb;
    request.spec.group = id_;
    return request;
  }
  [[nodiscard]] Status Ask(actors::ActorGroupRequest request) const {
    const auto answer = actors::AskActorGroup(system_, std::move(request), seconds(30));
    return answer.ok() ? Status::Ok() : Status(answer.error());
  }

  std::shared_ptr<actors::ActorSystem> system_;
  std::string id_;
  std::string name_;
};

}  // namespace troupe
