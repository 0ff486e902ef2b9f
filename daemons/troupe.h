// The C++ actor API: one header to include.
//
//   int main(int argc, char** argv) {
//     // In a process that the cluster started as a worker, Init never returns.
//     troupe::Runtime runtime = troupe::Init<Counter>().value();
//     // Placed by the scheduler, in a process of its own.
//     auto counter = runtime.Spawn<Counter>({}, 10).value();
//     int sum = counter.Call(&Counter::Add, 5).Get().value();
//   }
//
// The same executable is driver and worker: the cluster starts it again for every actor, and Init
// hosts the actor there. Describe your classes with troupe::ActorTraits (see actors/actor_type.h).
// Thread: any.
// Owns: a Runtime owns its embedded cluster and every actor spawned through it.
#pragma once

#include <memory>
#include <string>

#include "actors/actor_client.h"
#include "actors/actor_type.h"
#include "actors/protocol.h"

namespace troupe {

struct InitOptions {
  std::string address;   // Empty: an embedded cluster of this machine. Else "HOST:PORT" of a head.
  std::string key_file;  // The cluster's key pair, for an address.
  // Where the daemons are; empty: beside this program, then $TROUPE_BIN_DIR, then PATH.
  std::string bin_dir;
  std::map<std::string, double> resources;  // Embedded: what the machine offers.
};

struct SpawnActorOptions {
  std::map<std::string, double> resources = {{"CPU", 0.01}};
  uint32_t max_concurrency = 1;
  uint32_t mailbox_depth = actors::kMailboxDepthMax;
  Duration timeout = seconds(30);  // Until the actor can be called.
};

namespace internal {

struct SpawnedActor {
  std::string peer;  // Its process on the transport.
  std::string job;
};

class RuntimeImpl;
Result<std::shared_ptr<RuntimeImpl>> StartRuntime(const InitOptions& options);
// If this process was started as a worker: hosts its actor and exits the process.
void HostIfWorker(const actors::TypeTable& types);
Result<SpawnedActor> SpawnActor(RuntimeImpl& runtime, const SpawnActorOptions& options,
                                const std::string& type, std::string arguments);
void CallActor(RuntimeImpl& runtime, const SpawnedActor& actor, const std::string& method,
               std::string arguments, Duration timeout, const actors::ActorClient::Callback& done);
Status KillActor(RuntimeImpl& runtime, const SpawnedActor& actor);

}  // namespace internal

// A reference to an actor of type T. Copies refer to the same actor.
template <class T>
class ActorHandle {
 public:
  ActorHandle(std::shared_ptr<internal::RuntimeImpl> runtime, internal::SpawnedActor actor)
      : runtime_(std::move(runtime)), actor_(std::move(actor)) {}

  // Calls a described method; the future completes with its result or a typed error within
  // `kCallTimeout`.
  template <class F, class... A>
  auto Call(F method, A&&... arguments) const {
    return CallWithin(kCallTimeout, method, std::forward<A>(arguments)...);
  }
  template <class F, class... A>
  auto CallWithin(Duration timeout, F method, A&&... arguments) const {
    using Types = actors::MethodTypes<F>;
    using R = typename Types::Result;
    static_assert(Types::template kAccepts<A...>,
                  "these arguments do not fit the method's parameters");
    Future<R> future;
    const std::string name = actors::MethodName<T>(method);
    if (name.empty()) {
      future.Complete(Error{ErrorCode::kInvalidArgument,
                            std::string("the method is not listed in ActorTraits<") +
                                ActorTraits<T>::kName + ">::kMethods"});
      return future;
    }
    typename Types::Pack pack{{std::forward<A>(arguments)...}};
    internal::CallActor(
        *runtime_, actor_, name, wire::Encode(actors::kArgumentsType, pack), timeout,
        [future](Result<std::string> reply) { future.Complete(Decode<R>(std::move(reply))); });
    return future;
  }
  // Ends the actor's process; outstanding and later calls fail with kPeerGone.
  Status Kill() const { return internal::KillActor(*runtime_, actor_); }

 private:
  template <class R>
  static Result<typename Future<R>::Value> Decode(Result<std::string> reply) {
    if (!reply.ok()) return reply.error();
    Result<actors::Box<R>> box = wire::Decode<actors::Box<R>>(actors::kValueType, *reply);
    if (!box.ok()) return box.error();
    if constexpr (std::is_void_v<R>) {
      return true;
    } else {
      return std::move(box->value);
    }
  }
  std::shared_ptr<internal::RuntimeImpl> runtime_;
  internal::SpawnedActor actor_;
};

class Runtime {
 public:
  explicit Runtime(std::shared_ptr<internal::RuntimeImpl> impl) : impl_(std::move(impl)) {}

  // Starts an actor where the scheduler finds room; waits until it can be called. Errors name what
  // is missing, or what its constructor threw.
  template <actors::DescribedActor T, class... A>
  Result<ActorHandle<T>> Spawn(const SpawnActorOptions& options, A&&... arguments) {
    auto pack = MakePack(typename ActorTraits<T>::Constructor{}, std::forward<A>(arguments)...);
    Result<internal::SpawnedActor> actor = internal::SpawnActor(
        *impl_, options, ActorTraits<T>::kName, wire::Encode(actors::kArgumentsType, pack));
    if (!actor.ok()) return actor.error();
    return ActorHandle<T>(impl_, std::move(*actor));
  }

 private:
  template <class... P, class... A>
  static actors::Pack<P...> MakePack(Arguments<P...>, A&&... arguments) {
    static_assert(sizeof...(P) == sizeof...(A),
                  "the constructor described in ActorTraits takes another number of arguments");
    return {{std::forward<A>(arguments)...}};
  }
  std::shared_ptr<internal::RuntimeImpl> impl_;
};

// Call first thing in main. In a process that the cluster started to host an actor it does so and
// never returns.
template <actors::DescribedActor... T>
Result<Runtime> Init(const InitOptions& options = {}) {
  internal::HostIfWorker(actors::TypeTable::Of<T...>());
  Result<std::shared_ptr<internal::RuntimeImpl>> impl = internal::StartRuntime(options);
  if (!impl.ok()) return impl.error();
  return Runtime(std::move(*impl));
}

}  // namespace troupe
