#include "daemons/node/fork_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "runtime/fork_server.h"

namespace troupe::daemons {
namespace {

constexpr size_t kTailBytes = 4096;
constexpr const char* kServes = "TROUPE_FORK_SERVER";

}  // namespace

Result<ForkServer> ForkServer::Start(const SpareKind& kind) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Error{ErrorCode::kResourceExhausted,
                 std::string("cannot create a socket: ") + std::strerror(errno)};
  ForkServer server;
  server.socket_ = ends[0];
  SpawnOptions spawn;
  spawn.argv = kind.argv;
  spawn.env = kind.env;
  spawn.env.emplace(kServes, "1");
  spawn.capture_output = true;
  spawn.stdin_fd = ends[1];
  Result<ChildProcess> child = Spawn(spawn);
  ::close(ends[1]);
  if (!child.ok()) return child.error();
  server.process_ = std::move(*child);
  return server;
}

ForkServer::~ForkServer() { End(); }

ForkServer::ForkServer(ForkServer&& other) noexcept { *this = std::move(other); }

ForkServer& ForkServer::operator=(ForkServer&& other) noexcept {
  if (this == &other) return *this;
  End();
  process_ = std::move(other.process_);
  socket_ = std::exchange(other.socket_, -1);
  tail_ = std::move(other.tail_);
  return *this;
}

void ForkServer::End() {
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  if (process_.pid() > 0 && !process_.TryReap()) (void)process_.Terminate(Duration::zero());
}

bool ForkServer::Ready() {
  char said = 0;
  return ::recv(socket_, &said, 1, MSG_DONTWAIT) == 1 && said == kForksReady;
}

void ForkServer::ReadOutput() {
  std::array<char, kTailBytes> buffer{};
  for (const int fd : {process_.stdout_fd(), process_.stderr_fd()}) {
    for (ssize_t got = 1; got > 0;) {
      got = ::read(fd, buffer.data(), buffer.size());
      if (got > 0) tail_.append(buffer.data(), static_cast<size_t>(got));
      if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
    }
  }
}

std::string ForkServer::LastLine() const {
  std::string text = tail_;
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace troupe::daemons
