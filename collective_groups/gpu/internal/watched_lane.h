// WatchedLane: a thread for calls into a library that may never come back from them.
//
// The caller waits for its work, but not longer than `grace` once the work is to stop. Work that
// stays away longer takes the lane with it: the thread is left to itself, and so is all that the
// work holds, which is why work must own what it touches. From then on all work is refused.
// Thread: Run from one thread at a time; the rest from any.
// Limits: kWatchInterval between two looks at whether to stop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr Duration kWatchInterval = milliseconds(5);

class WatchedLane {
 public:
  explicit WatchedLane(std::string name);
  ~WatchedLane();
  WatchedLane(const WatchedLane&) = delete;
  WatchedLane& operator=(const WatchedLane&) = delete;

  // The work's status; kDeadlineExceeded if the lane was lost in it, or before.
  Status Run(std::function<Status()> work, const std::function<bool()>& stop, Duration grace);
  [[nodiscard]] bool lost() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace troupe::groups
