// BriefMutex: a mutex that is never held as long as a thread takes to sleep and to be woken.
//
// Two threads that meet at a queue thousands of times per second can fall into step: each sleeps
// while the other holds the lock for a microsecond, and both spend their time on being woken. So
// whoever finds it taken looks again for some microseconds, and sleeps only then: its holder may
// have lost its core.
// Thread: any. Meets the requirements of Lockable.
#pragma once

#include <mutex>

namespace troupe {

class BriefMutex {
 public:
  void lock() {
    for (int look = 0; look < kLooks; ++look) {
      if (mu_.try_lock()) return;
      Pause();
    }
    mu_.lock();
  }
  bool try_lock() { return mu_.try_lock(); }
  void unlock() { mu_.unlock(); }

 private:
  static constexpr int kLooks = 100;  // 2 to 5 us.

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::mutex mu_;
};

}  // namespace troupe
