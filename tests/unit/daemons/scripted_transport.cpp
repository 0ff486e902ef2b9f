#include "tests/unit/daemons/scripted_transport.h"

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

}  // namespace troupe::daemons::testing
