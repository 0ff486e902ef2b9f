// EventLoop: one thread's turn-taking of posted functions, timers and file descriptors.
//
// The real one is the io thread of a transport; the simulated one runs on virtual time.
// Services are written against this seam and keep all their state on the loop, so they need no
// locks.
// Thread: Now and Post from any thread; everything else on the loop.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/clock.h"

namespace troupe {

using TimerId = uint64_t;
inline constexpr TimerId kNoTimer = 0;

class EventLoop {
 public:
  // A loop that comes so much too late to a timer did not run: its process or its machine was
  // stopped. Silence in that time is its own.
  static constexpr Duration kStoppedFrom = milliseconds(500);

  virtual ~EventLoop() = default;
  [[nodiscard]] virtual Time Now() const = 0;  // From any thread.
  virtual void Post(std::function<void()> fn) = 0;
  virtual TimerId CallAt(Time when, std::function<void()> fn) = 0;
  TimerId CallAfter(Duration delay, std::function<void()> fn) {
    return CallAt(Now() + delay, std::move(fn));
  }
  virtual void Cancel(TimerId timer) = 0;
  // Calls `fn` on every turn in which `fd` is readable or hung up, until UnwatchFd.
  virtual void WatchFd(int fd, std::function<void()> fn) = 0;
  virtual void UnwatchFd(int fd) = 0;
};

}  // namespace troupe
