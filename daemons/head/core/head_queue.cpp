#include "daemons/head/core/head_queue.h"

namespace troupe::daemons {

std::optional<HeadStep> HeadQueue::Take(Time now) {
  now_ = now;
  std::optional<HeadStep> next;
  if (!steps_.empty()) {
    next = std::move(steps_.front());
    steps_.pop_front();
  } else if (!timed_.empty() && timed_.begin()->first <= now) {
    next = std::move(timed_.begin()->second);
    timed_.erase(timed_.begin());
  }
  return next;
}

std::optional<HeadQueue::Kept> HeadQueue::TakeWhenKept() {
  if (kept_.empty()) return std::nullopt;
  std::optional<Kept> next = std::move(kept_.front());
  kept_.pop_front();
  return next;
}

}  // namespace troupe::daemons
