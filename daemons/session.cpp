#include "daemons/session.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "daemons/signals.h"

namespace troupe::daemons {
namespace {

constexpr Duration kLook = milliseconds(20);

// The parent of a process, 0 if it has ended.
int ParentOf(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = text.rfind(')');  // The name before it may hold anything.
  int parent = 0;
  char state = 0;
  if (end != std::string::npos)
    (void)std::sscanf(text.c_str() + end + 1, " %c %d", &state, &parent);
  return parent;
}

std::set<int> Descendants() {
  std::multimap<int, int> children;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return {};
  while (const dirent* entry = ::readdir(proc)) {
    const int pid = std::atoi(entry->d_name);
    if (pid > 0) children.emplace(ParentOf(pid), pid);
  }
  ::closedir(proc);
  std::set<int> found;
  std::vector<int> next{::getpid()};
  while (!next.empty()) {
    const auto [from, to] = children.equal_range(next.back());
    next.pop_back();
    for (auto it = from; it != to; ++it) {
      if (found.insert(it->second).second) next.push_back(it->second);
    }
  }
  return found;
}

// Reaps orphans that were handed to us, but not the command.
void ReapOrphans(int command) {
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         info.si_pid != command) {
    (void)::waitpid(info.si_pid, nullptr, WNOHANG);
    info.si_pid = 0;
  }
}

// Until nobody is left: a process may start another before it ends.
void EndAll() {
  const Time deadline = SteadyClock().Now() + kSessionKillLimit;
  while (SteadyClock().Now() < deadline) {
    for (const int pid : Descendants()) (void)::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0) return;  // No child, so no descendant.
    ::usleep(1000);
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
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
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
  EndAll();
  return EndLike(info);
}

}  // namespace troupe::daemons
