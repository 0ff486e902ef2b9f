// Executor: OS threads that each run many fibers (Boost.Fiber, stock round-robin, no migration).
//
// Rules for code that runs on a fiber (numbers are used in comments elsewhere):
//   F-1 fibers stay on the thread they were spawned on.
//   F-2 never wait inside a catch block or while unwinding.
//   F-3 no exception leaves a fiber; Spawn reports it.
//   F-4 no OS lock (or the GIL) is held across a wait.
//   F-5 no thread_local guard object across a wait.
//   F-6 stacks are small and guarded: big arrays on the heap.
//   F-7 every spawn is counted and Stop waits for it.
//   F-8 no blocking call and no Python on a fiber.
// Thread: Spawn and Stop from any thread.
// Owns: its threads.
// Limits: kFiberStackBytes of stack per fiber.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr size_t kFiberStackBytes = size_t{256} << 10;

class Executor {
 public:
  struct Options {
    std::string name = "fiber";
    int threads = 1;
    // Called with what() of an exception that reached a fiber's entry.
    std::function<void(const std::string&)> on_uncaught;
    // What the first thread does when it has nothing to do: runs somebody's loop until that has
    // done something, or the time; false if it cannot. `wake`, from any thread, ends it.
    std::function<bool(Time until)> idle = nullptr;
    std::function<void()> wake = nullptr;
  };

  explicit Executor(Options options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs `fn` as a fiber of thread `thread` (modulo the number of threads). kCancelled after Stop.
  Status Spawn(size_t thread, std::function<void()> fn);
  [[nodiscard]] size_t threads() const;
  // Refuses new fibers and waits up to `limit` for the running ones; kDeadlineExceeded if some are
  // still waiting.
  Status Stop(Duration limit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A pointer of the fiber that runs, null until set; on a plain thread it is the thread's.
[[nodiscard]] void* FiberLocal();
void SetFiberLocal(void* value);

// A one-shot event that fibers and plain threads can wait for. A wait always has a limit.
class FiberEvent {
 public:
  FiberEvent();
  ~FiberEvent();
  void Set();
  [[nodiscard]] bool IsSet() const;
  // True if set within `limit`. Suspends a fiber, blocks a plain thread.
  bool WaitFor(Duration limit);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe
