// DynamicHandle: a reference to an actor whose class this program does not know: one of Python, of
// another program, or of a plugin. Methods are called by their names.
//
//   troupe::DynamicHandle model = troupe::FindDynamic(cluster, "model").value();
//   double loss = model.CallNamed<double>("loss", std::vector<double>{1, 2}).Get().value();
//   // Started with what describes it: a plugin, or another program.
//   auto till = troupe::SpawnDynamic(cluster, {.plugin = "/opt/shop/till.so"}, "Till", 10).value();
//   int square = troupe::RunDynamic<int>(cluster, {.plugin = ...}, "Square", 12).Get().value();
//
// Arguments and results are what the wire format knows: bool, integers, floating point,
// std::string, std::vector and std::map<std::string, T> of those. Python's None is the result of a
// method that is called as CallNamed<void>.
// Thread: any; copies refer to the same actor.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/api/cluster.h"

namespace troupe {

namespace actors {
// Literals are text.
template <class A>
using Sent = std::conditional_t<std::is_convertible_v<A, std::string>, std::string,
                                std::decay_t<ValueOf<A>>>;
template <class... A>
std::string EncodeDynamic(A&&... arguments) {
  static_assert(!(kIsFuture<A> || ...), "an actor is spawned with values: wait for the futures");
  const Pack<Sent<A>...> pack{{std::forward<A>(arguments)...}};
  return EncodeArguments(pack);
}
}  // namespace actors

class DynamicHandle {
 public:
  // Refers to nothing: calls fail with kInvalidArgument.
  DynamicHandle() = default;
  DynamicHandle(std::shared_ptr<actors::ActorSystem> system, std::shared_ptr<actors::ActorRef> ref)
      : system_(std::move(system)), ref_(std::move(ref)) {}

  template <class R, class... A>
  [[nodiscard]] Future<R> CallNamed(const std::string& method, A&&... arguments) const {
    return CallNamedWith<R>(CallOptions{}, method, std::forward<A>(arguments)...);
  }
  // kNotFound: it has no such method; kCorrupt: the result is no R; kUserError: it raised.
  template <class R, class... A>
  [[nodiscard]] Future<R> CallNamedWith(const CallOptions& options, const std::string& method,
                                        A&&... arguments) const {
    if (!ref_) {
      return Future<R>::Failed(
          Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"});
    }
    if constexpr ((actors::kIsFuture<A> || ...)) {
      return actors::CallRefLater<R>(
          system_, ref_, method,
          actors::EncodeLater<actors::Pack<actors::Sent<A>...>>(std::forward<A>(arguments)...),
          options);
    } else {
      return actors::CallRef<R>(system_, ref_, method,
                                actors::EncodeDynamic(std::forward<A>(arguments)...), options);
    }
  }
  // As of ActorHandle.
  Status Kill(const std::string& reason = "killed", Duration limit = kCallTimeout) const {
    if (!ref_) return Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"};
    Future<std::string> done;
    ref_->Kill(false, reason, [done](Result<std::string> r) { done.Complete(std::move(r)); });
    const Result<std::string> ended = done.Get(limit);
    return ended.ok() ? Status::Ok() : Status(ended.error());
  }
  explicit operator bool() const { return ref_ != nullptr; }
  [[nodiscard]] const std::shared_ptr<actors::ActorRef>& ref() const { return ref_; }

 private:
  std::shared_ptr<actors::ActorSystem> system_;
  std::shared_ptr<actors::ActorRef> ref_;
};

// The living actor of this name, whatever its type. kNotFound.
[[nodiscard]] inline Result<DynamicHandle> FindDynamic(const Cluster& cluster,
                                                       const std::string& name,
                                                       Duration limit = seconds(30)) {
  const Result<actors::ActorAddress> address = actors::FindNamed(cluster.system(), name, "", limit);
  if (!address.ok()) return address.error();
  return DynamicHandle(cluster.system(), cluster.system()->Refer(*address));
}

// Starts an actor of a type that options.plugin or options.program describes, as Cluster::Spawn
// does; its errors, and why the plugin cannot be loaded. Arguments are values, not futures.
template <class... A>
[[nodiscard]] Result<DynamicHandle> SpawnDynamic(const Cluster& cluster,
                                                 const ActorOptions& options,
                                                 const std::string& type, A&&... arguments) {
  Result<std::shared_ptr<actors::ActorRef>> ref =
      actors::Place(cluster.system(), options,
                    actors::MakeBlueprint(options.limits(), type,
                                          actors::EncodeDynamic(std::forward<A>(arguments)...)),
                    true);
  if (!ref.ok()) return ref.error();
  return DynamicHandle(cluster.system(), std::move(*ref));
}

// Runs a task of options.plugin by the name that TROUPE_TASK has given it. kNotFound: it has no
// such task; kCorrupt: the result is no R.
template <class R, class... A>
[[nodiscard]] Future<R> RunDynamic(const Cluster& cluster, const TaskOptions& options,
                                   const std::string& task, A&&... arguments) {
  if constexpr ((actors::kIsFuture<A> || ...)) {
    return actors::CallLater<R>(
        cluster.system(), options.timeout,
        actors::EncodeLater<actors::Pack<actors::Sent<A>...>>(std::forward<A>(arguments)...),
        actors::TaskSubmitter(cluster.system(), options, task));
  } else {
    Future<R> future;
    const auto done = [future, system = cluster.system()](Result<std::string> reply) {
      future.Complete(actors::DecodeResult<R>(system.get(), std::move(reply)));
    };
    if (auto call = actors::SubmitTask(cluster.system(), options, task,
                                       actors::EncodeDynamic(std::forward<A>(arguments)...), done))
      future.SetCall(call);
    return future;
  }
}

}  // namespace troupe
