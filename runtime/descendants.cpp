// Includes no more of the library than its clock: the guard of every worker is made of it.
#include "runtime/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
namespace {

// The number whose digits begin here, 0 if there is none.
int NumberAt(const char* begin, const char* end) {
  int number = 0;
  (void)std::from_chars(begin, end, number);
  return number;
}

// The parent of a process, 0 if it is not there.
int ParentOf(const char* pid) {
  const std::string path = std::string("/proc/") + pid + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[512];
  const ssize_t size = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  // "PID (NAME) STATE PARENT ...", and the name may hold anything.
  constexpr size_t kParentAt = std::string_view(") S ").size();
  const char* end = std::strrchr(text, ')');
  if (end == nullptr || end + kParentAt > text + size) return 0;
  return NumberAt(end + kParentAt, text + size);
}

std::multimap<int, int> ChildrenOfAll() {
  std::multimap<int, int> children;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* entry = ::readdir(proc)) {
    const std::string_view name = entry->d_name;
    const int pid = NumberAt(name.data(), name.data() + name.size());
    if (pid > 0) children.emplace(ParentOf(entry->d_name), pid);
  }
  ::closedir(proc);
  return children;
}

// Nothing below those of `known` is touched. Returns the children that were killed.
std::vector<int> KillBelow(const std::set<int>& known) {
  const std::multimap<int, int> children = ChildrenOfAll();
  std::vector<int> own;
  std::set<int> found;
  std::vector<int> next{::getpid()};
  while (!next.empty()) {
    const int parent = next.back();
    const auto [from, to] = children.equal_range(parent);
    next.pop_back();
    for (auto it = from; it != to; ++it) {
      if (known.contains(it->second) || !found.insert(it->second).second) continue;
      if (parent == ::getpid()) own.push_back(it->second);
      (void)::kill(it->second, SIGKILL);
      next.push_back(it->second);
    }
  }
  return own;
}

}  // namespace

void BecomeSubreaper() { (void)::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

bool EndDescendants(Duration limit) {
  const Time deadline = SteadyClock().Now() + limit;
  do {
    // A process may start another before it ends.
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0) return true;  // No child, so no descendant.
    (void)KillBelow({});
    ::usleep(500);
  } while (SteadyClock().Now() < deadline);
  return false;
}

bool EndStrays(const std::set<int>& known) {
  bool left = false;
  for (const int pid : KillBelow(known)) left = ::waitpid(pid, nullptr, WNOHANG) == 0 || left;
  return !left;
}

}  // namespace troupe
