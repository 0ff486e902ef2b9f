#include "actors/api/context.h"

#include <algorithm>
#include <utility>

#include "actors/api/future.h"
#include "actors/host/cpu_loan.h"

namespace troupe {
namespace actors {

void RunningCall::Cancel(const Cancellation& how) {
  std::function<void(const Cancellation& how)> tell;
  {
    std::lock_guard lock(mu_);
    if (cancelled_ && (cancelled_->force || !how.force)) return;
    cancelled_ = how;
    tell = on_cancel_;
    if (waiting_ != nullptr) waiting_->Set();
  }
  if (tell) tell(how);
}

bool RunningCall::cancelled() const { return cancellation().has_value(); }

std::optional<Cancellation> RunningCall::cancellation() const {
  std::lock_guard lock(mu_);
  return cancelled_;
}

void RunningCall::OnCancel(std::function<void(const Cancellation& how)> fn) {
  std::function<void(const Cancellation& how)> tell;
  std::optional<Cancellation> already;
  {
    std::lock_guard lock(mu_);
    on_cancel_ = std::move(fn);
    already = cancelled_;
    if (already) tell = on_cancel_;
  }
  if (already) tell(*already);
}

Status RunningCall::Await(FiberEvent& event, Duration limit, Time deadline) {
  const Error cancelled{ErrorCode::kCancelled, "the call that waits was cancelled"};
  {
    std::lock_guard lock(mu_);
    if (cancelled_) return cancelled;
    waiting_ = &event;
  }
  const Duration left =
      deadline == Time::Never() ? limit : std::min(limit, deadline - SteadyClock().Now());
  const bool set = event.WaitFor(std::max(left, Duration::zero()));
  std::lock_guard lock(mu_);
  waiting_ = nullptr;
  if (cancelled_) return cancelled;
  if (set) return Status::Ok();
  return Error{ErrorCode::kDeadlineExceeded,
               left < limit ? "the deadline of the call that waits has passed" : "no result yet"};
}

namespace {

Status AwaitEventOnly(FiberEvent& event, Duration limit, PendingCall* call) {
  CallContext* const context = CallContext::Current();
  if (context != nullptr) {
    const LoanWait counted(event.IsSet() ? nullptr : context->loan());
    return context->call()->Await(event, limit, context->deadline());
  }
  if (call != nullptr && limit > Duration::zero()) {
    call->Await(event, SteadyClock().Now() + limit);
    if (event.IsSet()) return Status::Ok();
  } else if (event.WaitFor(limit)) {
    return Status::Ok();
  }
  return Error{ErrorCode::kDeadlineExceeded, "no result yet"};
}

}  // namespace

Status AwaitEvent(FiberEvent& event, Duration limit, PendingCall* call) {
  Status waited = AwaitEventOnly(event, limit, call);
  if (waited.ok() || call == nullptr || waited.error().code != ErrorCode::kDeadlineExceeded)
    return waited;
  const std::string why = call->WhyNot();
  if (why.empty()) return waited;
  return Error{ErrorCode::kDeadlineExceeded, waited.error().message + ": " + why};
}

}  // namespace actors

CallContext* CallContext::Current() { return static_cast<CallContext*>(FiberLocal()); }

Status CallContext::Check() const {
  if (call_->cancelled()) return Error{ErrorCode::kCancelled, "the caller has cancelled the call"};
  if (deadline_ != Time::Never() && SteadyClock().Now() >= deadline_)
    return Error{ErrorCode::kDeadlineExceeded, "the call's deadline has passed"};
  return Status::Ok();
}

Status CallContext::Sleep(Duration duration) {
  FiberEvent never;
  Status woken = call_->Await(never, duration, deadline_);
  if (!woken.ok() && woken.error().code == ErrorCode::kCancelled) return woken;
  return Check();
}

}  // namespace troupe
