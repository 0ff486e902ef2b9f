#include "actors/host/later_call.h"

#include <algorithm>
#include <utility>

namespace troupe::actors {

LaterCall::LaterCall(const std::shared_ptr<ActorSystem>& system, Make make)
    : system_(system), make_(std::move(make)) {
  if (system) ++system->later_calls_;
}

LaterCall::~LaterCall() {
  if (const auto system = system_.lock()) --system->later_calls_;
}

std::shared_ptr<LaterCall> LaterCall::Start(const std::shared_ptr<ActorSystem>& system,
                                            Duration timeout, const Future<std::string>& arguments,
                                            Make make, CallDone done) {
  std::shared_ptr<LaterCall> call(new LaterCall(system, std::move(make)));
  call->waiting_ = std::make_shared<ActorSystem::LocalCall>();
  call->waiting_->deadline = SteadyClock().Now() + timeout;
  call->waiting_->done = std::move(done);
  call->waiting_->why_late = [weak = call->weak_from_this()] {
    const auto alive = weak.lock();
    return alive ? alive->WhyNot() : std::string("its arguments are not complete");
  };
  if (system) {
    if (system->later_calls_.load() > kLaterCallsMax) {
      call->waiting_->Finish(Error{ErrorCode::kBackpressure,
                                   "more than " + std::to_string(kLaterCallsMax) +
                                       " calls of this process wait for their arguments; wait for "
                                       "some of them first"});
      return call;
    }
    system->Expect(call->waiting_);
  }
  arguments.OnComplete([call](const Result<std::string>& encoded) { call->OnArguments(encoded); });
  return call;
}

void LaterCall::OnArguments(const Result<std::string>& arguments) {
  if (!arguments.ok()) return waiting_->Finish(arguments.error());
  if (waiting_->finished.exchange(true)) return;  // Cancelled, or too late.
  CallDone done = std::exchange(waiting_->done, nullptr);
  Make make;
  {
    std::lock_guard lock(mu_);
    make.swap(make_);
  }
  const Duration left = std::max(Duration::zero(), waiting_->deadline - SteadyClock().Now());
  const std::shared_ptr<PendingCall> made = make(*arguments, left, std::move(done));
  std::optional<Cancellation> cancel;
  {
    std::lock_guard lock(mu_);
    made_ = made;
    cancel = cancelled_;
  }
  if (cancel && made) made->Cancel(*cancel);
}

void LaterCall::Cancel(const Cancellation& how) {
  std::shared_ptr<PendingCall> made;
  {
    std::lock_guard lock(mu_);
    cancelled_ = how;
    made = made_;
  }
  if (made) return made->Cancel(how);
  waiting_->Finish(Error{ErrorCode::kCancelled, "cancelled by its caller"});
}

void LaterCall::Await(FiberEvent& event, Time until) {
  if (const auto system = system_.lock()) return system->AwaitHelping(event, until);
  (void)event.WaitFor(until - SteadyClock().Now());
}

std::string LaterCall::WhyNot() const {
  std::lock_guard lock(mu_);
  if (made_) return made_->WhyNot();
  return make_ ? "the futures among the call's arguments are not complete" : "";
}

}  // namespace troupe::actors
