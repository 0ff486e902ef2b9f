#include "runtime/signals.h"

#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "runtime/assert.h"

namespace troupe {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void PrepareSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void PrepareUser1() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void PrepareMemory() {
  constexpr int kOwnPagesFrom = 256 << 10;  // Fixed: else it grows with what is freed.
  ::mallopt(M_MMAP_THRESHOLD, kOwnPagesFrom);
  ::mallopt(M_TRIM_THRESHOLD, 2 * kOwnPagesFrom);
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

StopCause WaitForStop(int lifeline_fd, const std::function<bool()>& condition, Duration interval) {
  sigset_t set = StopSignals();
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  if (sigismember(&blocked, SIGUSR1) == 1) sigaddset(&set, SIGUSR1);
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC);
  TROUPE_ASSERT(signals >= 0, "signalfd");
  StopCause cause = StopCause::kCondition;
  for (;;) {
    pollfd items[2] = {{signals, POLLIN, 0}, {lifeline_fd, POLLIN, 0}};
    const int ready =
        ::poll(items, lifeline_fd >= 0 ? 2 : 1,
               static_cast<int>(std::chrono::duration_cast<milliseconds>(interval).count()));
    if (ready < 0 && errno != EINTR) break;
    if ((items[0].revents & POLLIN) != 0) {
      signalfd_siginfo taken{};  // Else it would end the next wait, too.
      (void)!::read(signals, &taken, sizeof taken);
      cause = taken.ssi_signo == SIGUSR1 ? StopCause::kUser1 : StopCause::kSignal;
      break;
    }
    if (lifeline_fd >= 0 && items[1].revents != 0) {
      char ignored[64];
      if (::read(lifeline_fd, ignored, sizeof ignored) <= 0) {
        cause = StopCause::kLifeline;
        break;
      }
    }
    if (condition && condition()) break;
  }
  ::close(signals);
  return cause;
}

}  // namespace troupe
