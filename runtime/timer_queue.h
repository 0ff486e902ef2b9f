// TimerQueue: functions ordered by the time they are due, equal times in order of scheduling.
//
// Pure bookkeeping: somebody else knows what time it is and calls RunDue.
// Thread: owner only.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "runtime/event_loop.h"

namespace troupe {

class TimerQueue {
 public:
  TimerId Schedule(Time when, std::function<void()> fn) {
    const TimerId id = ++last_id_;
    due_.emplace(std::pair(when, id), std::move(fn));
    when_.emplace(id, when);
    return id;
  }

  // Cancelling a timer that already ran or never existed does nothing.
  void Cancel(TimerId id) {
    const auto it = when_.find(id);
    if (it == when_.end()) return;
    due_.erase(std::pair(it->second, id));
    when_.erase(it);
  }

  [[nodiscard]] Time NextDue() const {
    return due_.empty() ? Time::Never() : due_.begin()->first.first;
  }
  [[nodiscard]] size_t size() const { return due_.size(); }

  // Runs what is due at `now`; timers scheduled meanwhile for `now` or earlier wait for the next
  // call.
  size_t RunDue(Time now) {
    const TimerId newest = last_id_;
    size_t ran = 0;
    auto it = due_.begin();
    while (it != due_.end() && it->first.first <= now) {
      if (it->first.second > newest) {
        ++it;
        continue;
      }
      auto fn = std::move(it->second);
      when_.erase(it->first.second);
      due_.erase(it);
      fn();
      ++ran;
      it = due_.begin();
    }
    return ran;
  }

 private:
  std::map<std::pair<Time, TimerId>, std::function<void()>> due_;
  std::map<TimerId, Time> when_;
  TimerId last_id_ = 0;
};

}  // namespace troupe
