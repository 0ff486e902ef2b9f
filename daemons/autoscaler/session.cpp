#include "daemons/autoscaler/session.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "runtime/descendants.h"
#include "runtime/signals.h"

namespace troupe::daemons {
namespace {

constexpr Duration kLook = milliseconds(20);

// Reaps orphans that were handed to us, but not the command.
void ReapOrphans(int command) {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         info.si_pid != command) {
    (void)::waitpid(info.si_pid, nullptr, WNOHANG);
    info.si_pid = 0;
  }
}

int EndLike(const ExitInfo& info) {
  if (info.signal == 0) return info.code;
  const rlimit no_core{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &no_core);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, info.signal);
  std::signal(info.signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  (void)::raise(info.signal);
  return 128 + info.signal;
}

}  // namespace

SpawnOptions InSession(SpawnOptions command) {
  std::error_code ignored;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  command.argv.insert(command.argv.begin(), {self, kSessionFlag});
  command.parent_death_signal = SIGTERM;  // It still has to end the others.
  return command;
}

int RunSession(std::vector<std::string> command) {
  BecomeSubreaper();
  SpawnOptions spawn;
  spawn.argv = std::move(command);
  Result<ChildProcess> child = Spawn(spawn);
  if (!child.ok()) {
    std::cerr << child.error().message << "\n";
    return 127;
  }
  const auto ended = [&] {
    ReapOrphans(child->pid());
    return child->TryReap().has_value();
  };
  (void)WaitForStop(-1, ended, kLook);
  const ExitInfo info = child->Terminate(kSessionGrace);
  (void)EndDescendants(kSessionKillLimit);
  return EndLike(info);
}

}  // namespace troupe::daemons
