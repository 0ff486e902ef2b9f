#include "tests/unit/daemons/scripted_transport.h"

#include "runtime/executor.h"

#include <algorithm>

namespace troupe::daemons::testing {

void ScriptedTransport::Post(std::function<void()> fn) {
  std::lock_guard lock(mu_);
  posted_.push_back(std::move(fn));
}

bool ScriptedTransport::RunPosted() {
  std::deque<std::function<void()>> posted;
  {
    std::lock_guard lock(mu_);
    posted.swap(posted_);
  }
  for (const auto& fn : posted) fn();
  return !posted.empty();
}

bool ScriptedTransport::RunTimer(Time until) {
  const Time due = timers_.NextDue();
  const Time next = std::max(clock_->Now(), std::min(due, until));
  clock_->Advance(next - clock_->Now());
  if (due > until) return false;
  timers_.RunDue(next);
  return true;
}

bool SettleLane(BlockingLane& lane, ScriptedTransport& transport) {
  for (bool more = true; more; more = transport.RunPosted()) {
    FiberEvent done;
    if (!lane.Post([done]() mutable { done.Set(); }).ok() || !done.WaitFor(seconds(20)))
      return false;
  }
  return true;
}

}  // namespace troupe::daemons::testing
