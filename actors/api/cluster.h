// Cluster: this process as part of a cluster: starts actors, finds them, runs tasks.
//
// The embedded or remote cluster of a driver comes from troupe::Init (<troupe/troupe.h>); inside a
// method, Cluster::Current() is the cluster of the actor. Copies are the same cluster.
// Thread: any.
// Owns: what it spawns dies with the process that spawned it, unless it is detached.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/api/actor_group.h"
#include "actors/api/collective.h"
#include "actors/api/handle.h"
#include "actors/api/options.h"
#include "actors/api/placement_group.h"
#include "actors/api/when.h"
#include "actors/host/links.h"

namespace troupe {

namespace actors {
[[nodiscard]] ActorBlueprint MakeBlueprint(const CallLimits& limits, const std::string& type,
                                           std::string arguments);
// Lets the cluster start the actor of `blueprint`; `wait`: until it can be called.
[[nodiscard]] Result<std::shared_ptr<ActorRef>> Place(const std::shared_ptr<ActorSystem>& system,
                                                      const ActorOptions& options,
                                                      const ActorBlueprint& blueprint, bool wait);
using OnRef = std::function<void(Result<std::shared_ptr<ActorRef>>)>;
void PlaceAsync(const std::shared_ptr<ActorSystem>& system, const ActorOptions& options,
                const ActorBlueprint& blueprint, OnRef done);
[[nodiscard]] Result<ActorAddress> StartBeside(const std::shared_ptr<ActorSystem>& system,
                                               const ActorAddress& there,
                                               const ActorBlueprint& blueprint);
[[nodiscard]] Result<ActorAddress> FindNamed(const std::shared_ptr<ActorSystem>& system,
                                             const std::string& name, const std::string& type,
                                             Duration limit);
// What is returned cancels the task; null if it has failed already.
std::shared_ptr<PendingCall> SubmitTask(const std::shared_ptr<ActorSystem>& system,
                                        const TaskOptions& options, const std::string& task,
                                        std::string arguments, const CallDone& done);
// What submits a task whose arguments are there later.
[[nodiscard]] LaterCall::Make TaskSubmitter(const std::shared_ptr<ActorSystem>& system,
                                            const TaskOptions& options, const std::string& task);
}  // namespace actors

// Of the result of a task.
template <auto F>
using TaskFuture = Future<typename actors::FunctionTypes<decltype(F)>::Result>;

class Cluster {
 public:
  explicit Cluster(std::shared_ptr<actors::ActorSystem> system,
                   std::shared_ptr<void> cluster = nullptr)
      : system_(std::move(system)), cluster_(std::move(cluster)) {}

  // In a method of an actor. Elsewhere calls of it fail.
  [[nodiscard]] static Cluster Current();

  // Starts an actor where the scheduler finds room, in a process of its own; waits until it can be
  // called. Errors name what is missing, or what its constructor threw.
  template <class T, class... A>
  [[nodiscard]] Result<ActorHandle<T>> Spawn(const ActorOptions& options, A&&... arguments) const {
    return Started<T>(options, true, std::forward<A>(arguments)...);
  }
  // The same without waiting: calls wait until it is there, or fail with the reason why not.
  template <class T, class... A>
  [[nodiscard]] Result<ActorHandle<T>> SpawnLater(const ActorOptions& options,
                                                  A&&... arguments) const {
    return Started<T>(options, false, std::forward<A>(arguments)...);
  }
  // In this process: a few kilobytes, no scheduler, gone with the process. Others can call it.
  template <class T, class... A>
  [[nodiscard]] Result<ActorHandle<T>> SpawnHere(const CallLimits& limits, A&&... arguments) const {
    const Result<actors::ActorAddress> address =
        system_->Host(Blueprint<T>(limits, std::forward<A>(arguments)...));
    if (!address.ok()) return address.error();
    return ActorHandle<T>(system_, system_->Refer(*address));
  }
  // In the process of another actor.
  template <class T, class U, class... A>
  [[nodiscard]] Result<ActorHandle<T>> SpawnBeside(const ActorHandle<U>& other,
                                                   const CallLimits& limits,
                                                   A&&... arguments) const {
    const Result<actors::ActorAddress> address = actors::StartBeside(
        system_, other.address(), Blueprint<T>(limits, std::forward<A>(arguments)...));
    if (!address.ok()) return address.error();
    return ActorHandle<T>(system_, system_->Refer(*address));
  }
  // Several actors of one type that are made, called, resized and replaced together. Does not wait
  // for them: a call does. kAlreadyExists: the name is taken; kInvalidArgument.
  template <class T, class... A>
  [[nodiscard]] Result<ActorGroup<T>> SpawnGroup(const ActorGroupOptions& options,
                                                 A&&... arguments) const {
    const Result<ActorGroupStatus> made = actors::MakeGroup(
        system_, options, Blueprint<T>(options.member().limits(), std::forward<A>(arguments)...));
    if (!made.ok()) return made.error();
    return ActorGroup<T>(system_, made->id, made->name);
  }
  // The group of this name. kNotFound; kInvalidArgument if it is of another type.
  template <class T>
  [[nodiscard]] Result<ActorGroup<T>> GetGroup(const std::string& name) const {
    const Result<ActorGroupStatus> found =
        actors::FindActorGroup(system_, name, ActorTraits<T>::kName);
    if (!found.ok()) return found.error();
    return ActorGroup<T>(system_, found->id, found->name);
  }
  // The living actor of this name. kNotFound; kInvalidArgument if it is of another type.
  template <class T>
  [[nodiscard]] Result<ActorHandle<T>> Get(const std::string& name,
                                           Duration limit = seconds(30)) const {
    const Result<actors::ActorAddress> address =
        actors::FindNamed(system_, name, ActorTraits<T>::kName, limit);
    if (!address.ok()) return address.error();
    return ActorHandle<T>(system_, system_->Refer(*address));
  }
  // Reserves room that actors are then started in; returns before it has a place. kAlreadyExists:
  // its name is taken; kInvalidArgument says what of the bundles cannot be.
  [[nodiscard]] Result<PlacementGroup> CreatePlacementGroup(
      const PlacementGroupOptions& options) const;
  // The placement group of this name. kNotFound.
  [[nodiscard]] Result<PlacementGroup> GetPlacementGroup(const std::string& name) const;
  // A collective group of the actors with these ids, by rank; it ends with this process. Each is in
  // it as soon as it enters it (<troupe/collectives.h>). Errors: kAlreadyExists, kPeerGone,
  // kInvalidArgument.
  [[nodiscard]] Status CreateCollectiveGroup(const CollectiveGroupOptions& options,
                                             std::vector<std::string> actors) const;
  [[nodiscard]] Status DestroyCollectiveGroup(const std::string& name) const;
  // A future that is complete, to be an argument of many calls. The value stays in this process as
  // long as the future does, and goes with each of them.
  template <class V>
  [[nodiscard]] static Future<std::decay_t<V>> Put(V&& value) {
    Future<std::decay_t<V>> future;
    future.Complete(Result<std::decay_t<V>>(std::forward<V>(value)));
    return future;
  }
  // Runs a function described with TROUPE_TASK somewhere in the cluster: Run<&Square>(5). Arguments
  // may be futures: the task is submitted when all of them are complete.
  template <auto F, class... A>
  [[nodiscard]] TaskFuture<F> Run(A&&... arguments) const {
    return RunWith<F>(TaskOptions(), std::forward<A>(arguments)...);
  }
  template <auto F, class... A>
  [[nodiscard]] TaskFuture<F> RunWith(const TaskOptions& options, A&&... arguments) const {
    using Types = actors::FunctionTypes<decltype(F)>;
    static_assert(actors::kDescribedTask<F>, "describe the function with TROUPE_TASK");
    static_assert(Types::template Accepts<A...>(),
                  "these arguments do not fit the function's parameters");
    using R = typename Types::Result;
    if constexpr ((actors::kIsFuture<A> || ...)) {
      return actors::CallLater<R>(
          system_, options.timeout,
          actors::EncodeLater<typename Types::Pack>(std::forward<A>(arguments)...),
          actors::TaskSubmitter(system_, options, TaskTraits<F>::kName));
    } else {
      typename Types::Pack pack{{std::forward<A>(arguments)...}};
      TaskFuture<F> future;
      const auto system = system_;
      const auto done = [future, system](Result<std::string> reply) {
        future.Complete(actors::DecodeResult<R>(system.get(), std::move(reply)));
      };
      if (auto call = actors::SubmitTask(system_, options, TaskTraits<F>::kName,
                                         actors::EncodeArguments(pack), done))
        future.SetCall(call);
      return future;
    }
  }

  [[nodiscard]] const std::shared_ptr<actors::ActorSystem>& system() const { return system_; }

 private:
  template <class T, class... A>
  static actors::ActorBlueprint Blueprint(const CallLimits& limits, A&&... arguments) {
    static_assert(actors::DescribedActor<T>, "describe the class with TROUPE_ACTOR");
    return actors::MakeBlueprint(
        limits, ActorTraits<T>::kName,
        Packed(typename ActorTraits<T>::Constructor{}, std::forward<A>(arguments)...));
  }
  template <class T, class... A>
  Result<ActorHandle<T>> Started(const ActorOptions& options, bool wait, A&&... arguments) const {
    Result<std::shared_ptr<actors::ActorRef>> ref = actors::Place(
        system_, options, Blueprint<T>(options.limits(), std::forward<A>(arguments)...), wait);
    if (!ref.ok()) return ref.error();
    return ActorHandle<T>(system_, std::move(*ref));
  }
  template <class... P, class... A>
  static std::string Packed(Arguments<P...>, A&&... arguments) {
    static_assert(sizeof...(P) == sizeof...(A),
                  "the constructor described in TROUPE_ACTOR takes another number of arguments");
    static_assert((std::is_convertible_v<A, P> && ...),
                  "these arguments do not fit the constructor described in TROUPE_ACTOR");
    const actors::Pack<P...> pack{{std::forward<A>(arguments)...}};
    return actors::EncodeArguments(pack);
  }
  std::shared_ptr<actors::ActorSystem> system_;
  std::shared_ptr<void> cluster_;  // Keeps an embedded cluster.
};

}  // namespace troupe
