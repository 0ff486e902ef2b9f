#include "runtime/thread.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <sstream>
#include <thread>
#include <utility>

namespace troupe {
namespace {

// Of the calling thread, in nanoseconds; 0 where the kernel has no such thing.
uint64_t Slice() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attr{};
  return ::syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) == 0 ? attr.runtime : 0;
}

bool SlicesCanBeChosen() {
  utsname system{};
  int major = 0;
  int minor = 0;
  char dot = 0;
  if (::uname(&system) != 0) return false;
  std::istringstream(system.release) >> major >> dot >> minor;
  return std::pair(major, minor) >= std::pair(6, 12);
}

TEST(Thread, WhoMovesMuchDoesNotInheritShortSlices) {
  if (!SlicesCanBeChosen()) GTEST_SKIP() << "slices cannot be chosen before Linux 6.12";
  const uint64_t usual = Slice();
  uint64_t shorter = 0;
  uint64_t inherited = 0;
  uint64_t again = 0;
  std::thread([&] {
    PreferLowLatency();
    shorter = Slice();
    std::thread([&] {
      inherited = Slice();
      PreferThroughput();
      again = Slice();
    }).join();
  }).join();
  EXPECT_LT(shorter, usual);
  EXPECT_EQ(inherited, shorter);
  EXPECT_EQ(again, usual);
}

}  // namespace
}  // namespace troupe
