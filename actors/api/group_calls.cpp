#include "actors/api/group_calls.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "actors/host/placing.h"
#include "runtime/process.h"

namespace troupe {

ActorOptions ActorGroupOptions::member() const {
  ActorOptions o;
  o.resources = resources;
  o.strategy = strategy;
  o.labels = labels;
  o.prefer = prefer;
  o.placement_group = placement_group;
  o.priority = priority;
  o.max_restarts = max_restarts;
  o.backoff = backoff;
  o.backoff_most = backoff_most;
  o.timeout = timeout;
  o.env = env;
  o.plugin = plugin;
  o.program = program;
  o.max_concurrency = max_concurrency;
  o.threads = threads;
  o.mailbox_depth = mailbox_depth;
  o.mailbox_bytes = mailbox_bytes;
  o.overflow = overflow;
  return o;
}

namespace actors {
namespace {

constexpr Duration kRequestLimit = seconds(30);
constexpr Duration kWatchLimit = seconds(60);  // Of one request; then comes another.

ActorGroupRequest WatchRequest(const std::string& group, uint64_t since) {
  ActorGroupRequest request;
  request.verb = ActorGroupVerb::kWatch;
  request.spec.group = group;
  request.since = since;
  return request;
}

// Tells how the group stands, now and whenever something has happened in it, until it returns
// false or is let go. Callbacks come one after the other, on a thread of the runtime.
class Follower : public std::enable_shared_from_this<Follower> {
 public:
  using OnStatus = std::function<bool(const Result<ActorGroupStatus>& status)>;

  Follower(std::shared_ptr<ActorSystem> system, std::string group, OnStatus told)
      : system_(std::move(system)), group_(std::move(group)), told_(std::move(told)) {}

  void Ask(uint64_t since) {
    const auto next = [weak = weak_from_this(), since](const Result<ActorGroupStatus>& status) {
      const auto self = weak.lock();
      if (!self) return;
      const bool nothing = !status.ok() && status.error().code == ErrorCode::kDeadlineExceeded;
      if (nothing) return self->Ask(since);
      const bool more = self->told_(status);
      if (more && status.ok() && !status->ended) self->Ask(status->sequence);
    };
    AskActorGroupLater(system_, WatchRequest(group_, since), kWatchLimit, next);
  }

 private:
  const std::shared_ptr<ActorSystem> system_;
  const std::string group_;
  const OnStatus told_;
};

class GroupRun final : public PendingCall, public std::enable_shared_from_this<GroupRun> {
 public:
  GroupRun(std::shared_ptr<ActorSystem> system, std::string method, std::string arguments,
           Duration limit, std::function<void(Result<GroupResults>)> done)
      : system_(std::move(system)),
        method_(std::move(method)),
        arguments_(std::move(arguments)),
        deadline_(SteadyClock().Now() + limit),
        done_(std::move(done)) {}

  void Begin(const std::string& group) {
    group_ = group;
    AskActorGroupLater(system_, About(ActorGroupVerb::kRun, 0), kRequestLimit,
                       [](const Result<ActorGroupStatus>&) {});
    follower_ = std::make_shared<Follower>(
        system_, group, [self = shared_from_this()](const Result<ActorGroupStatus>& status) {
          return self->OnStatus(status);
        });
    follower_->Ask(0);
  }
  void Cancel(const Cancellation&) override {
    Finish(Error{ErrorCode::kCancelled, "the run was cancelled"});
  }
  void Await(FiberEvent& event, Time until) override { system_->AwaitHelping(event, until); }

 private:
  struct Part {
    std::shared_ptr<ActorRef> ref;
    uint64_t call = 0;
    bool there = true;  // It is a member.
    bool left = false;  // It was told to leave, and has no result.
    std::optional<std::string> value;
    bool noted = false;  // The head knows that it has returned.
  };

  [[nodiscard]] ActorGroupRequest About(ActorGroupVerb verb, uint32_t member) const {
    ActorGroupRequest request;
    request.verb = verb;
    request.spec.group = group_;
    request.member = member;
    return request;
  }

  bool OnStatus(const Result<ActorGroupStatus>& status) {
    if (!status.ok()) {
      Finish(status.error());
      return false;
    }
    std::vector<std::pair<uint32_t, std::shared_ptr<ActorRef>>> calls;
    {
      std::lock_guard lock(mu_);
      if (finished_) return false;
      for (auto& [number, part] : parts_) part.there = status->ended;
      for (const ActorGroupStatus::Member& m : status->members) {
        const auto known = parts_.find(m.number);
        if (known != parts_.end()) {
          // Who has not begun when enough have returned is not waited for.
          known->second.there =
              returned_ < status->min_size || m.state != GroupMemberState::kStarting;
        } else if (returned_ == 0 && m.state != GroupMemberState::kDraining) {
          const ActorAddress address{
              m.actor, std::max<uint64_t>(1, m.incarnation), status->type, {}, true};
          Part& part = parts_[m.number];
          part.ref = system_->Refer(address);
          calls.emplace_back(m.number, part.ref);
        }
      }
    }
    for (const auto& [number, ref] : calls) Start(number, ref);
    CheckDone();
    if (status->ended)
      Finish(Error{ErrorCode::kPeerGone, "the group has ended: " + status->reason});
    std::lock_guard lock(mu_);
    return !finished_;
  }

  void Start(uint32_t number, const std::shared_ptr<ActorRef>& ref) {
    const Duration left = std::max(deadline_ - SteadyClock().Now(), Duration::zero());
    const uint64_t call = ref->Call(method_, arguments_, CallOptions{left, true},
                                    [weak = weak_from_this(), number](Result<std::string> result) {
                                      if (const auto self = weak.lock())
                                        self->OnResult(number, std::move(result));
                                    });
    std::unique_lock lock(mu_);
    const auto it = parts_.find(number);
    if (it != parts_.end()) it->second.call = call;
    const bool over = it == parts_.end();
    lock.unlock();
    if (over && call != 0) ref->Cancel(call, {});
  }

  void OnResult(uint32_t number, Result<std::string> result) {
    // Who has gone for good is no member any more: the next status says so.
    if (!result.ok() && result.error().code == ErrorCode::kPeerGone) return;
    if (!result.ok() && result.error().code == ErrorCode::kDrained) {  // It was to leave, and has.
      std::unique_lock lock(mu_);
      if (const auto it = parts_.find(number); it != parts_.end()) it->second.left = true;
      lock.unlock();
      return CheckDone();
    }
    if (!result.ok()) {
      return Finish(result.error().WithContext("member " + std::to_string(number)));
    }
    {
      std::lock_guard lock(mu_);
      const auto it = parts_.find(number);
      if (it == parts_.end()) return;  // It is over.
      it->second.value = std::move(*result);
    }
    Note(number);
  }

  // Whether it had only to leave, and who else is there now, the head knows.
  void Note(uint32_t number) {
    ActorGroupRequest request = About(ActorGroupVerb::kReturned, number);
    AskActorGroupLater(system_, std::move(request), kRequestLimit,
                       [weak = weak_from_this(), number](const Result<ActorGroupStatus>& status) {
                         if (const auto self = weak.lock()) self->OnNoted(number, status);
                       });
  }

  void OnNoted(uint32_t number, const Result<ActorGroupStatus>& status) {
    const bool late = !status.ok() && status.error().code == ErrorCode::kDeadlineExceeded;
    if (late && SteadyClock().Now() < deadline_) return Note(number);
    {
      std::lock_guard lock(mu_);
      const auto it = parts_.find(number);
      if (it == parts_.end()) return;  // It is over.
      it->second.noted = true;
      const bool stays = status.ok() && std::ranges::any_of(status->members, [&](const auto& m) {
                           return m.number == number && m.state != GroupMemberState::kDraining;
                         });
      returned_ += stays ? 1 : 0;
    }
    (void)OnStatus(status);
  }

  void CheckDone() {
    GroupResults results;
    {
      std::lock_guard lock(mu_);
      for (auto& [number, part] : parts_) {
        if (part.value && part.noted) {
          results.emplace_back(number, *part.value);
        } else if (part.there && !part.left) {
          return;
        }
      }
    }
    if (!results.empty()) Finish(std::move(results));
  }

  void Finish(Result<GroupResults> results) {
    std::map<uint32_t, Part> parts;
    std::shared_ptr<Follower> follower;
    {
      std::lock_guard lock(mu_);
      if (std::exchange(finished_, true)) return;
      parts.swap(parts_);
      follower.swap(follower_);
    }
    for (const auto& [number, part] : parts)
      if (!part.value && part.call != 0) part.ref->Cancel(part.call, {});
    std::exchange(done_, nullptr)(std::move(results));
  }

  const std::shared_ptr<ActorSystem> system_;
  std::string group_;
  const std::string method_;
  const std::string arguments_;
  const Time deadline_;
  std::mutex mu_;
  std::function<void(Result<GroupResults>)> done_;
  std::shared_ptr<Follower> follower_;  // Holds this until it is over.
  std::map<uint32_t, Part> parts_;
  uint32_t returned_ = 0;  // Of those that stay: nobody else begins.
  bool finished_ = false;
};

}  // namespace

void AskActorGroupLater(const std::shared_ptr<ActorSystem>& system, ActorGroupRequest request,
                        Duration limit, ActorDirectoryClient::OnActorGroup done) {
  if (system->directory_client() == nullptr) return done(NoCluster());
  system->directory_client()->Actors(std::move(request), limit, std::move(done));
}

Result<ActorGroupStatus> AskActorGroup(const std::shared_ptr<ActorSystem>& system,
                                       ActorGroupRequest request, Duration limit) {
  const Future<ActorGroupStatus> answer;
  AskActorGroupLater(system, std::move(request), limit, [answer](Result<ActorGroupStatus> status) {
    answer.Complete(std::move(status));
  });
  return answer.Get(limit + seconds(1));
}

Result<ActorGroupStatus> MakeGroup(const std::shared_ptr<ActorSystem>& system,
                                   const ActorGroupOptions& options,
                                   const ActorBlueprint& blueprint) {
  if (system->directory_client() == nullptr) return NoCluster();
  const ActorOptions member = options.member();
  if (const Status s = CheckProgram(member); !s.ok()) return s.error();
  ActorGroupRequest request;
  request.verb = ActorGroupVerb::kCreate;
  request.spec.group = kActorGroupId + RandomId();
  request.spec.name = options.name;
  request.spec.detached = options.detached;
  request.spec.min_size = options.min_size;
  request.spec.size = options.size != 0 ? options.size : options.min_size;
  request.spec.max_size = options.max_size != 0 ? options.max_size : request.spec.size;
  request.spec.below_min_s = ToSeconds(options.below_min);
  request.spec.member = SpecOf(*system, member, blueprint);
  request.spec.member.actor.clear();
  Result<ActorGroupStatus> made = AskActorGroup(system, std::move(request), kRequestLimit);
  if (!made.ok()) return made.error().WithContext("cannot make a group of " + blueprint.type);
  return made;
}

Result<ActorGroupStatus> FindActorGroup(const std::shared_ptr<ActorSystem>& system,
                                        const std::string& name, const std::string& type) {
  ActorGroupRequest request;
  request.verb = ActorGroupVerb::kFind;
  request.spec.name = name;
  Result<ActorGroupStatus> found = AskActorGroup(system, std::move(request), kRequestLimit);
  if (!found.ok() || type.empty() || found->type == type) return found;
  return Error{ErrorCode::kInvalidArgument,
               "the group named \"" + name + "\" is of " + found->type + ", not of " + type};
}

std::shared_ptr<PendingCall> RunOnGroup(const std::shared_ptr<ActorSystem>& system,
                                        const std::string& group, const std::string& method,
                                        std::string arguments, Duration limit,
                                        std::function<void(Result<GroupResults>)> done) {
  auto run =
      std::make_shared<GroupRun>(system, method, std::move(arguments), limit, std::move(done));
  run->Begin(group);
  return run;
}

Status WaitForGroup(const std::shared_ptr<ActorSystem>& system, const std::string& group,
                    uint32_t count, Duration limit) {
  const Time deadline = SteadyClock().Now() + limit;
  uint64_t since = 0;
  for (;;) {
    const Duration left = std::max(deadline - SteadyClock().Now(), Duration::zero());
    const Result<ActorGroupStatus> status =
        AskActorGroup(system, WatchRequest(group, since), std::min(left, kWatchLimit));
    if (status.ok()) {
      if (status->ended)
        return Error{ErrorCode::kPeerGone, "the group has ended: " + status->reason};
      const auto alive = std::ranges::count(status->members, GroupMemberState::kAlive,
                                            &ActorGroupStatus::Member::state);
      if (static_cast<uint32_t>(alive) >= (count != 0 ? count : status->size)) return Status::Ok();
      since = status->sequence;
    } else if (status.error().code != ErrorCode::kDeadlineExceeded) {
      return status.error();
    }
    if (SteadyClock().Now() < deadline) continue;
    return Error{ErrorCode::kDeadlineExceeded,
                 "not as many members of group " + group + " are alive yet; its status says why"};
  }
}

std::shared_ptr<void> WatchGroup(const std::shared_ptr<ActorSystem>& system,
                                 const ActorGroupStatus& from,
                                 std::function<void(const GroupEvent&)> told) {
  auto follower = std::make_shared<Follower>(
      system, from.id, [told = std::move(told)](const Result<ActorGroupStatus>& status) {
        if (!status.ok()) return false;
        for (const GroupEvent& event : status->events) told(event);
        return true;
      });
  follower->Ask(from.sequence);
  return follower;
}

}  // namespace actors
}  // namespace troupe
