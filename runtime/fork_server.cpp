#include "runtime/fork_server.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "runtime/guarded_child.h"

namespace troupe {
namespace {

constexpr int kFds = 3;
constexpr size_t kPathMax = 4096;
constexpr int kNoProgram = 127;
constexpr int kLooks = 20;  // A thread that has been joined is gone a moment later.

union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(kFds * sizeof(int))> room;
};

// The end of the node, or of what it says, is nothing.
std::optional<ForkOrder> Receive(int socket) {
  std::array<char, kPathMax> path{};
  Control control{};
  iovec text{path.data(), path.size()};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.room.data();
  message.msg_controllen = control.room.size();
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* fds = CMSG_FIRSTHDR(&message);
  if (got <= 0 || fds == nullptr || fds->cmsg_len != CMSG_LEN(kFds * sizeof(int)))
    return std::nullopt;
  std::array<int, kFds> taken{};
  std::memcpy(taken.data(), CMSG_DATA(fds), sizeof taken);
  return ForkOrder{std::string(path.data(), static_cast<size_t>(got)), taken[0], taken[1],
                   taken[2]};
}

int Threads() {
  int count = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return -1;
  while (const dirent* entry = ::readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(tasks);
  return count;
}

bool Alone() {
  for (int look = 0; look < kLooks; ++look) {
    if (Threads() == 1) return true;
    ::usleep(1000);
  }
  return false;
}

// Only the calling thread is in the new process, whose parent is that of this one.
pid_t CloneAsSibling() {
  return static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

// In the process of the guard. Returns in that of the worker.
void BecomeGuardAndWorker(const ForkOrder& order) {
  const int guard = ::getpid();
  (void)::setpgid(0, 0);
  std::signal(SIGINT, SIG_DFL);
  std::array<int, 2> input{-1, -1};
  const bool ready = ::dup2(order.socket, 0) == 0 && ::dup2(order.out, 1) == 1 &&
                     ::dup2(order.err, 2) == 2 && ::pipe2(input.data(), O_CLOEXEC) == 0;
  ::close(order.socket);  // A copy in the worker would hide the guard's end from the node.
  ::close(order.out);
  ::close(order.err);
  PrepareGuard();
  (void)::send(0, &guard, sizeof guard, MSG_NOSIGNAL);
  const pid_t worker = ready ? ::fork() : -1;
  if (worker == 0) {
    ::close(input[1]);
    if (!PrepareWorker(guard, input[0])) ::_exit(kNoProgram);
    ::close(input[0]);
    std::signal(SIGINT, SIG_IGN);
    return;
  }
  ::close(input[0]);
  (void)::fcntl(input[1], F_SETFD, 0);
  const std::string pid = std::to_string(worker);
  const std::string to = std::to_string(input[1]);
  if (worker > 0)
    ::execl(order.guard.c_str(), "troupe-guard", "--adopt", pid.c_str(), to.c_str(), nullptr);
  if (worker > 0) (void)::kill(worker, SIGKILL);
  ::_exit(kNoProgram);
}

}  // namespace

bool OrderFork(int server, const ForkOrder& order) {
  const std::array<int, kFds> fds{order.socket, order.out, order.err};
  Control control{};
  std::string path = order.guard;
  iovec text{path.data(), path.size()};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.room.data();
  message.msg_controllen = control.room.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof fds);
  return path.size() < kPathMax && ::sendmsg(server, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
                                       static_cast<ssize_t>(path.size());
}

bool MayFork() {
  if (Threads() == 1) return true;
  const pid_t nothing = ::fork();
  if (nothing == 0) ::_exit(0);
  if (nothing > 0) (void)::waitpid(nothing, nullptr, 0);
  return Alone();
}

Forked ServeFork(int socket, const ForkHooks& hooks) {
  const std::optional<ForkOrder> order = Receive(socket);
  if (!order) return Forked::kNodeGone;
  if (!MayFork()) return Forked::kUnfit;
  hooks.before();
  if (CloneAsSibling() == 0) {
    BecomeGuardAndWorker(*order);
    hooks.in_child();
    return Forked::kChild;
  }
  hooks.in_parent();
  ::close(order->socket);
  ::close(order->out);
  ::close(order->err);
  return Forked::kParent;
}

}  // namespace troupe
