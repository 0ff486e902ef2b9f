// Future<R>: the result of a call that is not there yet.
//
// Get waits on a fiber or a thread; inside an actor's method it ends early if that call is
// cancelled. Then continues without waiting; WhenAll, WhenAny and Wait are for several. A future
// can be an argument of a call, which is made when its value is there. The future
// of a call completes at the call's deadline at the latest, with a typed error.
// Thread: any; copies are the same future. Continuations run on the completing thread, or at once
// if it is complete: they must not block.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/core/protocol.h"
#include "runtime/clock.h"
#include "runtime/executor.h"
#include "runtime/result.h"

namespace troupe {

// Thrown by Value(), and by a method that wants to end with a certain error.
class ActorError : public std::runtime_error {
 public:
  explicit ActorError(Error error)
      : std::runtime_error(error.ToString()), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

// As long as the future takes, which its call's deadline bounds.
inline constexpr Duration kUntilComplete = std::chrono::hours(24 * 365);

namespace actors {
// The call behind a future.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  virtual void Cancel(const Cancellation& how) = 0;
  // Waits on a plain thread, and may do the work meanwhile that the wait is for.
  virtual void Await(FiberEvent& event, Time until) = 0;
  // What the call waits for, as an error says it: "Till 5f0c is pending: no node has ...".
  [[nodiscard]] virtual std::string WhyNot() const { return ""; }
  // The process that has the call, or had it last; empty: none has, or that is not known.
  [[nodiscard]] virtual PeerAddress Receiver() const { return {}; }
};

// Waits for `event`; inside a method no longer than its call may run. kCancelled or
// kDeadlineExceeded, with the reason, if it was not set. `call`: what the event is for, or null.
[[nodiscard]] Status AwaitEvent(FiberEvent& event, Duration limit, PendingCall* call);

template <class T>
struct Unwrapped {
  using Type = T;
};
template <class T>
struct Unwrapped<Result<T>> {
  using Type = T;
};
template <>
struct Unwrapped<Status> {
  using Type = void;
};
}  // namespace actors

template <class R>
class Future {
 public:
  using Value = std::conditional_t<std::is_void_v<R>, bool, R>;  // void calls yield true.
  using Callback = std::function<void(const Result<Value>&)>;

  Future() : state_(std::make_shared<State>()) {}
  static Future Failed(Error error) {
    Future future;
    future.Complete(std::move(error));
    return future;
  }

  // The result; kDeadlineExceeded, with what it waits for, if it is not there within `limit` (the
  // call goes on).
  [[nodiscard]] Result<Value> Get(Duration limit = kUntilComplete) const {
    if (Ready()) return *state_->result;
    FiberEvent ready;
    const uint64_t waiting = Subscribe([ready](const Result<Value>&) mutable { ready.Set(); });
    if (waiting == 0) return *state_->result;
    const std::shared_ptr<actors::PendingCall> call = this->call();
    const Status waited = actors::AwaitEvent(ready, limit, call.get());
    Unsubscribe(waiting);
    std::lock_guard lock(state_->mu);
    if (state_->result) return *state_->result;
    return waited.ok() ? Error{ErrorCode::kInternal, "woken without a result"} : waited.error();
  }
  // The result's value; throws ActorError for an error.
  [[nodiscard]] Value GetValue(Duration limit = kUntilComplete) const {
    Result<Value> result = Get(limit);
    if (!result.ok()) throw ActorError(result.error());
    return std::move(*result);
  }
  [[nodiscard]] bool Ready() const {
    std::lock_guard lock(state_->mu);
    return state_->result.has_value();
  }
  // Runs `fn(const Result<Value>&)` once, when complete. If it returns U, Result<U> or Status, that
  // completes the future returned.
  template <class F>
  auto Then(F fn) const {
    using Returned = std::invoke_result_t<F, const Result<Value>&>;
    using U = typename actors::Unwrapped<Returned>::Type;
    Future<U> next;
    OnComplete([next, fn = std::move(fn)](const Result<Value>& result) mutable {
      if constexpr (std::is_same_v<Returned, Status>) {
        const Status status = fn(result);
        next.Complete(status.ok() ? Result<bool>(true) : Result<bool>(status.error()));
      } else if constexpr (std::is_void_v<Returned>) {
        fn(result);
        next.Complete(true);
      } else {
        next.Complete(fn(result));
      }
    });
    return next;
  }
  void OnComplete(Callback fn) const { (void)Subscribe(std::move(fn)); }
  // The same, but it can be undone: returns what Unsubscribe takes, 0 if `fn` has run.
  [[nodiscard]] uint64_t Subscribe(Callback fn) const {
    {
      std::lock_guard lock(state_->mu);
      if (!state_->result) {
        state_->then.emplace_back(++state_->subscriptions, std::move(fn));
        return state_->subscriptions;
      }
    }
    fn(*state_->result);
    return 0;
  }
  // It may be running all the same.
  void Unsubscribe(uint64_t subscription) const {
    std::lock_guard lock(state_->mu);
    std::erase_if(state_->then, [&](const auto& fn) { return fn.first == subscription; });
  }
  // Later ones do nothing.
  void Complete(Result<Value> result) const {
    std::vector<std::pair<uint64_t, Callback>> then;
    std::shared_ptr<actors::PendingCall> call;
    {
      std::lock_guard lock(state_->mu);
      if (state_->result) return;
      state_->result = std::move(result);
      then.swap(state_->then);
      call.swap(state_->call);
    }
    for (const auto& [subscription, fn] : then) fn(*state_->result);
  }
  // Asks for the call behind it to be given up: it completes with kCancelled at once, and the
  // method, if it runs, learns of it. Nothing if there is no call or it is over.
  void Cancel() const {
    std::shared_ptr<actors::PendingCall> call;
    {
      std::lock_guard lock(state_->mu);
      if (!state_->result) call = state_->call;
    }
    if (!call) return;
    call->Cancel({});
    Complete(Error{ErrorCode::kCancelled, "cancelled by its caller"});
  }
  void SetCall(const std::shared_ptr<actors::PendingCall>& call) const {
    std::lock_guard lock(state_->mu);
    if (!state_->result) state_->call = call;
  }
  // What it waits for; null if there is nothing, or it is complete.
  [[nodiscard]] std::shared_ptr<actors::PendingCall> call() const {
    std::lock_guard lock(state_->mu);
    return state_->call;
  }

 private:
  struct State {
    std::mutex mu;
    std::optional<Result<Value>> result;              // Constant once set.
    std::vector<std::pair<uint64_t, Callback>> then;  // By subscription.
    uint64_t subscriptions = 0;
    std::shared_ptr<actors::PendingCall> call;  // While there is no result.
  };
  std::shared_ptr<State> state_;
};

}  // namespace troupe
