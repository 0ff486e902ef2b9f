#include "daemons/head/core/head_queue.h"

#include <tuple>

namespace troupe::daemons {

HeadQueue::HeadQueue() = default;
HeadQueue::~HeadQueue() = default;

template <class Step>
void HeadQueue::Put(Step step) {
  steps_.emplace_back(std::move(step));
}

template <class Step>
void HeadQueue::PutWhenKept(const std::string& name, Step step) {
  kept_.push_back({name, std::move(step)});
}

template <class Step>
void HeadQueue::PutAt(Time when, Step step) {
  timed_.emplace(when, std::move(step));
}

namespace internal {

// Naming the function for each type makes it part of this source.
template <class Variant>
struct PutOf;
template <class... Steps>
struct PutOf<std::variant<Steps...>> {
  static inline const std::tuple<void (HeadQueue::*)(Steps)...> kAll{&HeadQueue::Put<Steps>...};
};
template struct PutOf<HeadTask>;
template struct PutOf<HeadEffect>;

}  // namespace internal

template void HeadQueue::Put(HeadStep);
template void HeadQueue::PutWhenKept(const std::string&, HeadStep);
template void HeadQueue::PutWhenKept(const std::string&, step::AnswerGroup);
template void HeadQueue::PutWhenKept(const std::string&, step::AnswerWaiters);
template void HeadQueue::PutWhenKept(const std::string&, step::EndProcess);
template void HeadQueue::PutWhenKept(const std::string&, step::EndProcessesOfRun);
template void HeadQueue::PutWhenKept(const std::string&, step::Launch);
template void HeadQueue::PutWhenKept(const std::string&, step::Send);
template void HeadQueue::PutAt(Time, HeadStep);
template void HeadQueue::PutAt(Time, step::Down);
template void HeadQueue::PutAt(Time, step::EndProcessesOfRun);
template void HeadQueue::PutAt(Time, step::KeepSpare);
template void HeadQueue::PutAt(Time, step::OrderHeld);
template void HeadQueue::PutAt(Time, step::PressDown);
template void HeadQueue::PutAt(Time, step::Tick);
template void HeadQueue::PutAt(Time, step::WakeActors);
template void HeadQueue::PutAt(Time, step::WakeScheduler);

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
