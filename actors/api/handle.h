// ActorHandle<T>: a typed reference to an actor. Copies refer to the same actor; it can be an
// argument or a result of a call, and works in whatever process it arrives in.
// Thread: any.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/host/actor_ref.h"
#include "actors/host/actor_system.h"
#include "actors/host/later_call.h"
#include "actors/host/type_table.h"

namespace troupe {

namespace actors {

template <class R>
Result<typename Future<R>::Value> DecodeResult(ActorSystem* system, Result<std::string> reply) {
  if (!reply.ok()) return reply.error();
  const DecodeScope scope(system);
  Result<Box<R>> box = wire::Decode<Box<R>>(kValueType, *reply);
  if (!box.ok()) return box.error().WithContext("the result");
  if constexpr (std::is_void_v<R>) {
    return true;
  } else {
    return std::move(box->value);
  }
}

// A call that is made when its arguments are complete.
template <class R>
Future<R> CallLater(const std::shared_ptr<ActorSystem>& system, Duration timeout,
                    const Future<std::string>& arguments, const LaterCall::Make& make) {
  Future<R> future;
  const auto done = [future, system](Result<std::string> reply) {
    future.Complete(DecodeResult<R>(system.get(), std::move(reply)));
  };
  future.SetCall(LaterCall::Start(system, timeout, arguments, make, done));
  return future;
}

class RefCall final : public PendingCall {
 public:
  RefCall(std::shared_ptr<ActorSystem> system, std::shared_ptr<ActorRef> ref, uint64_t call)
      : system_(std::move(system)), ref_(std::move(ref)), call_(call) {}
  void Cancel(const Cancellation& how) override { ref_->Cancel(call_, how); }
  void Await(FiberEvent& event, Time until) override { system_->AwaitHelping(event, until); }
  [[nodiscard]] std::string WhyNot() const override { return WhyNoAnswer(*ref_); }
  [[nodiscard]] PeerAddress Receiver() const override { return ref_->address().process; }

 private:
  const std::shared_ptr<ActorSystem> system_;
  const std::shared_ptr<ActorRef> ref_;
  const uint64_t call_;
};

// Calls `method` of whatever `ref` refers to; the future's Cancel gives the call up.
template <class R>
Future<R> CallRef(const std::shared_ptr<ActorSystem>& system, const std::shared_ptr<ActorRef>& ref,
                  const std::string& method, std::string&& arguments, const CallOptions& options) {
  Future<R> future;
  const uint64_t call =
      ref->Call(method, std::move(arguments), options, [future, system](Result<std::string> reply) {
        future.Complete(DecodeResult<R>(system.get(), std::move(reply)));
      });
  if (call != 0) future.SetCall(std::make_shared<RefCall>(system, ref, call));
  return future;
}

// The same with arguments that are complete later.
template <class R>
Future<R> CallRefLater(const std::shared_ptr<ActorSystem>& system,
                       const std::shared_ptr<ActorRef>& ref, const std::string& method,
                       const Future<std::string>& arguments, const CallOptions& options) {
  return CallLater<R>(
      system, options.timeout, arguments,
      [system, ref, method, retry = options.retry](std::string encoded, Duration left,
                                                   CallDone done) -> std::shared_ptr<PendingCall> {
        const uint64_t call =
            ref->Call(method, std::move(encoded), CallOptions{left, retry}, std::move(done));
        return call == 0 ? nullptr : std::make_shared<RefCall>(system, ref, call);
      });
}

}  // namespace actors

// Undoes a Monitor when it goes. Movable.
class MonitorGuard {
 public:
  MonitorGuard() = default;
  MonitorGuard(std::shared_ptr<actors::ActorRef> ref, uint64_t id)
      : ref_(std::move(ref)), id_(id) {}
  MonitorGuard(MonitorGuard&& other) noexcept
      : ref_(std::move(other.ref_)), id_(std::exchange(other.id_, 0)) {}
  MonitorGuard& operator=(MonitorGuard&& other) noexcept {
    if (this != &other) {
      Reset();
      ref_ = std::move(other.ref_);
      id_ = std::exchange(other.id_, 0);
    }
    return *this;
  }
  ~MonitorGuard() { Reset(); }
  void Reset() {
    if (ref_ && id_ != 0) ref_->Demonitor(id_);
    ref_.reset();
    id_ = 0;
  }

 private:
  std::shared_ptr<actors::ActorRef> ref_;
  uint64_t id_ = 0;
};

template <class T>
class ActorHandle {
 public:
  // Refers to nothing: calls fail with kInvalidArgument.
  ActorHandle() = default;
  ActorHandle(std::shared_ptr<actors::ActorSystem> system, std::shared_ptr<actors::ActorRef> ref)
      : system_(std::move(system)), ref_(std::move(ref)) {}

  // Calls a described method; the future completes with its result or a typed error within
  // kCallTimeout. Arguments may be futures: the call is made when all of them are complete, and
  // later calls of this process may run before it; the error of one is the call's.
  template <class F, class... A>
  actors::CallFuture<F> Call(F method, A&&... arguments) const {
    return CallWith(CallOptions{}, method, std::forward<A>(arguments)...);
  }
  template <class F, class... A>
  actors::CallFuture<F> CallWithin(Duration timeout, F method, A&&... arguments) const {
    return CallWith(CallOptions{timeout, false}, method, std::forward<A>(arguments)...);
  }
  template <class F, class... A>
  actors::CallFuture<F> CallWith(const CallOptions& options, F method, A&&... arguments) const {
    static_assert(actors::DescribedActor<T>,
                  "describe the class with TROUPE_ACTOR to call it through a handle");
    static_assert(std::is_member_function_pointer_v<F>,
                  "a call takes a method of the actor: handle.Call(&Counter::Add, 5)");
    using Types = actors::MethodTypes<F>;
    using R = typename Types::Result;
    static_assert(Types::template Accepts<A...>(),
                  "these arguments do not fit the method's parameters");
    if (!ref_) {
      return Future<R>::Failed(
          Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"});
    }
    const char* const name = actors::MethodName<T>(method);
    if (name == nullptr) {
      return Future<R>::Failed(
          Error{ErrorCode::kInvalidArgument,
                std::string("the method is not among those that TROUPE_ACTOR(") +
                    ActorTraits<T>::kName + ", ...) lists"});
    }
    if constexpr ((actors::kIsFuture<A> || ...)) {
      return actors::CallRefLater<R>(
          system_, ref_, name,
          actors::EncodeLater<typename Types::Pack>(std::forward<A>(arguments)...), options);
    } else {
      typename Types::Pack pack{{std::forward<A>(arguments)...}};
      return actors::CallRef<R>(system_, ref_, name, actors::EncodeArguments(pack), options);
    }
  }
  // Ends the actor for good; outstanding and later calls fail with kPeerGone.
  Status Kill(const std::string& reason = "killed", Duration limit = kCallTimeout) const {
    return End(false, reason, limit);
  }
  // Ends its process as a crash would: max_restarts decides whether it comes back.
  Status Restart(const std::string& reason = "restarted", Duration limit = kCallTimeout) const {
    return End(true, reason, limit);
  }
  // `down` runs once when the actor has ended for good; not after the guard has gone.
  [[nodiscard]] MonitorGuard Monitor(actors::ActorRef::OnDown down) const {
    if (ref_) return {ref_, ref_->Monitor(std::move(down))};
    down(Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"});
    return {};
  }
  explicit operator bool() const { return ref_ != nullptr; }
  [[nodiscard]] actors::ActorAddress address() const {
    return ref_ ? ref_->address() : actors::ActorAddress{};
  }
  [[nodiscard]] std::string id() const { return address().actor; }
  [[nodiscard]] const std::shared_ptr<actors::ActorRef>& ref() const { return ref_; }
  [[nodiscard]] const std::shared_ptr<actors::ActorSystem>& system() const { return system_; }

  template <class Archive>
  void Fields(Archive& archive) {
    actors::ActorAddress where = address();
    archive(where);
    // Written, it is still the same; read, it belongs to the process that reads.
    actors::ActorSystem* const system = actors::DecodeScope::Current();
    if (where.actor == address().actor || system == nullptr) return;
    system_ = system->shared_from_this();
    ref_ = system_->Refer(where);
  }

 private:
  Status End(bool restart, const std::string& reason, Duration limit) const {
    if (!ref_) return Error{ErrorCode::kInvalidArgument, "this handle refers to no actor"};
    Future<std::string> done;
    ref_->Kill(restart, reason, [done](Result<std::string> r) { done.Complete(std::move(r)); });
    const Result<std::string> ended = done.Get(limit);
    return ended.ok() ? Status::Ok() : Status(ended.error());
  }

  std::shared_ptr<actors::ActorSystem> system_;
  std::shared_ptr<actors::ActorRef> ref_;
};

}  // namespace troupe
