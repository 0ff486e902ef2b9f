#include "daemons/node/guarded_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "runtime/fork_server.h"

namespace troupe::daemons {
namespace {

constexpr int kNeverForked = 127;
constexpr Duration kKillLimit = seconds(7);  // More than a guard needs for a worker that hangs on.

Error NoRoom(const std::string& what) {
  return Error{ErrorCode::kResourceExhausted,
               "cannot create " + what + ": " + std::strerror(errno)};
}

Result<std::array<int, 2>> SocketPair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return NoRoom("a socket");
  return ends;
}

}  // namespace

Result<GuardedProcess> GuardedProcess::Start(const std::string& guard, SpawnOptions command) {
  return Launch({guard}, std::move(command));
}

Result<GuardedProcess> GuardedProcess::StartSpare(const std::string& guard, SpawnOptions command) {
  return Launch({guard, "--spare"}, std::move(command));
}

Result<GuardedProcess> GuardedProcess::Launch(std::vector<std::string> guard,
                                              SpawnOptions command) {
  if (command.argv.empty())
    return Error{ErrorCode::kInvalidArgument, "nothing to start: argv is empty"};
  const auto path = command.env.find("PATH");
  const Result<std::string> program =
      FindProgram(command.argv[0], path == command.env.end() ? "" : path->second);
  if (!program.ok()) return program.error().WithContext("cannot start " + command.argv[0]);
  Result<std::array<int, 2>> ends = SocketPair();
  if (!ends.ok()) return ends.error();
  GuardedProcess process;
  process.socket_ = (*ends)[0];
  command.argv.insert(command.argv.begin(), guard.begin(), guard.end());
  command.stdin_fd = (*ends)[1];
  command.parent_death_signal = 0;  // The socket tells it.
  Result<ChildProcess> child = Spawn(command);
  ::close((*ends)[1]);
  if (!child.ok()) return child.error();
  process.guard_ = std::move(*child);
  return process;
}

Result<GuardedProcess> GuardedProcess::Fork(const std::string& guard, int server) {
  OutputPipe out;
  OutputPipe err;
  if (!out.Open() || !err.Open()) return NoRoom("a pipe");
  Result<std::array<int, 2>> ends = SocketPair();
  if (!ends.ok()) return ends.error();
  GuardedProcess process;
  process.socket_ = (*ends)[0];
  const bool ordered = OrderFork(server, {guard, (*ends)[1], out.write, err.write});
  ::close((*ends)[1]);
  if (!ordered) return Error{ErrorCode::kUnavailable, "the fork server takes no order"};
  process.guard_ = ChildProcess(out.TakeRead(), err.TakeRead());
  return process;
}

GuardedProcess::~GuardedProcess() { Close(); }

GuardedProcess::GuardedProcess(GuardedProcess&& other) noexcept { *this = std::move(other); }

GuardedProcess& GuardedProcess::operator=(GuardedProcess&& other) noexcept {
  if (this == &other) return *this;
  Close();
  guard_ = std::move(other.guard_);
  socket_ = std::exchange(other.socket_, -1);
  pid_ = std::exchange(other.pid_, 0);
  killed_ = std::exchange(other.killed_, false);
  return *this;
}

void GuardedProcess::Close() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

int GuardedProcess::Told() {
  int told = 0;
  const ssize_t got = ::recv(socket_, &told, sizeof told, MSG_DONTWAIT);
  if (got == sizeof told) return told;
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

int GuardedProcess::pid() {
  if (pid_ == 0 && began()) pid_ = std::max(Told(), 0);
  return pid_;
}

std::optional<ExitInfo> GuardedProcess::TryReap() {
  if (began()) return guard_.TryReap();
  const int guard = Told();
  if (guard > 0) guard_.Is(guard);
  if (guard >= 0) return std::nullopt;
  return killed_ ? ExitInfo{-1, SIGKILL} : ExitInfo{kNeverForked, 0};
}

bool GuardedProcess::GiveWork(const std::string& work) {
  pollfd ended{end_fd(), static_cast<short>(began() ? POLLIN : POLLHUP), 0};
  if (work.size() < 2 || work.size() > kWorkBytesMax || ::poll(&ended, 1, 0) != 0) return false;
  return ::send(socket_, work.data(), work.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(work.size());
}

void GuardedProcess::Kill(int signal) {
  if (!began()) (void)TryReap();
  if (!began() && signal == SIGKILL) {  // Once it is forked, its guard reads that nobody wants it.
    killed_ = true;
    (void)::shutdown(socket_, SHUT_RDWR);
    return;
  }
  const bool again = signal == SIGKILL && std::exchange(killed_, killed_ || signal == SIGKILL);
  const auto byte = static_cast<unsigned char>(signal);
  const bool sent = ::send(socket_, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  if (again || (!sent && signal == SIGKILL)) guard_.Kill(SIGKILL);
}

ExitInfo GuardedProcess::Terminate(Duration grace) {
  if (!began()) Kill(SIGKILL);
  if (!began()) return {};
  Kill(SIGTERM);
  if (const auto info = guard_.WaitFor(grace); info.ok()) return *info;
  Kill(SIGKILL);
  if (const auto info = guard_.WaitFor(kKillLimit); info.ok()) return *info;
  return guard_.Terminate(Duration::zero());
}

}  // namespace troupe::daemons
