#include "runtime/thread.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace troupe {
namespace {

constexpr uint64_t kSliceNs = 100'000;  // The shortest that the kernel grants.
constexpr uint64_t kDefaultSlice = 0;   // What the kernel gives who asks for nothing.

// The kernel's struct sched_attr, first version; libc declares neither it nor the call.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // For the normal policy: the length of a slice.
  uint64_t deadline = 0;
  uint64_t period = 0;
};

void AskForSlice(uint64_t ns) {
  SchedAttr attr;
  // What is there is kept: the policy and the nice value that the user gave the process.
  if (::syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.policy != 0) return;
  attr.runtime = ns;
  (void)::syscall(SYS_sched_setattr, 0, &attr, 0);
}

}  // namespace

void NameThisThread(const std::string& name) {
  (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

void PreferLowLatency() { AskForSlice(kSliceNs); }

void PreferThroughput() { AskForSlice(kDefaultSlice); }

}  // namespace troupe
