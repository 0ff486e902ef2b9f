// CallThreads: the threads of one actor whose calls may block, in place of fibers.
//
// A thread is started when work waits and none is idle, up to the limit, and stays until the end.
// Thread: any. Destroyed on one of its own threads it leaves that one to end by itself.
// Owns: its threads. Its destruction waits for what runs on them.
// Limits: as many threads as it is made for, kCallThreadsMax at most; what is given to it beyond
// them waits for one, so its user bounds it.
#pragma once

#include <functional>
#include <memory>

#include "runtime/result.h"

namespace troupe::actors {

inline constexpr uint32_t kCallThreadsMax = 1000;

class CallThreads {
 public:
  explicit CallThreads(uint32_t most);
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // Runs `fn`, which throws nothing. kResourceExhausted: the system has no thread for it.
  Status Spawn(std::function<void()> fn);

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;  // Shared with its threads.
};

}  // namespace troupe::actors
