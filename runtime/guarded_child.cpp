// Includes no more of the library than descendants.h: the guard of every worker is made of it.
#include "runtime/guarded_child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>

#include "runtime/descendants.h"

namespace troupe {
namespace {

// Where memory runs out the kernel ends workers, not the daemons beside them.
constexpr int kWorkerOomScore = 500;

// More may be ended than this process was to be; never less.
void OfferToOomKiller() {
  char text[16] = "";
  int fd = ::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  const int now =
      ::read(fd, text, sizeof text - 1) > 0 ? static_cast<int>(std::strtol(text, nullptr, 10)) : 0;
  const std::string score = std::to_string(std::max(now, kWorkerOomScore));
  (void)!::write(fd, score.data(), score.size());
  ::close(fd);
}

}  // namespace

void PrepareGuard() {
  BecomeSubreaper();
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  (void)::sigprocmask(SIG_BLOCK, &set, nullptr);
}

bool PrepareWorker(int guard, int input) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) return false;
  (void)::setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  OfferToOomKiller();
  if (input < 0) input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return input >= 0 && ::dup2(input, 0) == 0;
}

}  // namespace troupe
