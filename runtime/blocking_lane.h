// BlockingLane: a named OS thread that runs blocking functions one after another.
//
// Everything that may block (Redis, collectives, Python) goes through a lane, never on the io
// thread or a fiber.
// Thread: Post from any thread.
// Owns: its thread; the destructor finishes what is queued, then joins.
// Limits: kLaneQueueMax functions wait at once.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/lane.h"

namespace troupe {

inline constexpr size_t kLaneQueueMax = 100'000;

class BlockingLane final : public Lane {
 public:
  explicit BlockingLane(std::string name);
  ~BlockingLane() override;
  BlockingLane(const BlockingLane&) = delete;
  BlockingLane& operator=(const BlockingLane&) = delete;

  // kBackpressure if kLaneQueueMax functions are waiting; kCancelled after Stop.
  Status Post(std::function<void()> fn) override;
  // Refuses new work, drops what has not started, and waits for the running function.
  void Stop();

 private:
  void Run();

  const std::string name_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace troupe
