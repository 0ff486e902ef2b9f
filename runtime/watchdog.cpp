#include "runtime/watchdog.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/process.h"

namespace troupe {
namespace {

constexpr const char* kSocketVariable = "NOTIFY_SOCKET";
constexpr const char* kTimeVariable = "WATCHDOG_USEC";
constexpr std::string_view kBeat = "WATCHDOG=1";
constexpr int kBeatsPerLimit = 3;
constexpr Duration kOurOwnStop = seconds(1);  // Asked later than that, we were stopped ourselves.

// The address of a socket; '@' begins an abstract name, as systemd writes them.
Result<std::pair<sockaddr_un, socklen_t>> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return Error{ErrorCode::kInvalidArgument, "the path of a socket is too long: " + path};
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';
  return std::pair(address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size()));
}

Result<int> Bind(const std::string& path) {
  const auto address = AddressOf(path);
  if (!address.ok()) return address.error();
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  ::unlink(path.c_str());
  if (fd >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0 &&
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address->first), address->second) == 0) {
    return fd;
  }
  const Error failed{ErrorCode::kUnavailable, "cannot make " + path + ": " + std::strerror(errno)};
  if (fd >= 0) ::close(fd);
  return failed;
}

}  // namespace

struct WatchdogBeat::Beating {
  int fd = -1;
  sockaddr_un address{};
  socklen_t size = 0;
  Duration interval{};

  Beating() = default;
  Beating(const Beating&) = delete;
  Beating& operator=(const Beating&) = delete;
  ~Beating() {
    if (fd >= 0) ::close(fd);
  }
  // One that finds no room is made up for by the next.
  void Send() const {
    (void)!::sendto(fd, kBeat.data(), kBeat.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address), size);
  }
};

WatchdogBeat::WatchdogBeat() {
  const std::string path = Env(kSocketVariable);
  const int64_t limit_us = std::strtoll(Env(kTimeVariable).c_str(), nullptr, 10);
  ::unsetenv(kSocketVariable);
  ::unsetenv(kTimeVariable);
  const auto address = AddressOf(path);
  if (!address.ok() || limit_us <= 0) return;
  auto beating = std::make_shared<Beating>();
  beating->fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (beating->fd < 0) return;
  std::tie(beating->address, beating->size) = *address;
  beating->interval = std::chrono::microseconds(limit_us) / kBeatsPerLimit;
  beating_ = std::move(beating);
}

WatchdogBeat::~WatchdogBeat() = default;

void WatchdogBeat::Start(EventLoop& loop) {
  if (!beating_) return;
  struct Round {
    static void Go(EventLoop& loop, const std::weak_ptr<Beating>& weak) {
      const std::shared_ptr<Beating> beating = weak.lock();
      if (!beating) return;
      beating->Send();
      loop.CallAfter(beating->interval, [&loop, weak] { Go(loop, weak); });
    }
  };
  loop.Post([&loop, weak = std::weak_ptr(beating_)] { Round::Go(loop, weak); });
}

Result<std::unique_ptr<WatchdogSocket>> WatchdogSocket::Open(const std::string& path) {
  const Result<int> fd = Bind(path);
  if (!fd.ok()) return fd.error();
  return std::unique_ptr<WatchdogSocket>(new WatchdogSocket(*fd, path));
}

WatchdogSocket::~WatchdogSocket() {
  if (fd_ >= 0) ::close(fd_);
}

std::optional<std::set<int>> WatchdogSocket::Beaten() {
  if (fd_ < 0 || ::access(path_.c_str(), F_OK) != 0) {
    if (fd_ >= 0) ::close(fd_);
    const Result<int> anew = Bind(path_);
    fd_ = anew.ok() ? *anew : -1;
    return std::nullopt;
  }
  std::set<int> beaten;
  for (int reads = 0; reads < kReadsMax; ++reads) {
    char text[64];
    iovec part{text, sizeof text};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(fd_, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (std::string_view(text, static_cast<size_t>(got)) != kBeat || header == nullptr ||
        header->cmsg_type != SCM_CREDENTIALS) {
      continue;
    }
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    beaten.insert(sender.pid);
  }
  return beaten;
}

void Watchdog::Begin(Time now) {
  heard_ = asked_ = now;
  told_ = false;
}

bool Watchdog::Expired(Time now) {
  const Duration gap = now - std::exchange(asked_, now);
  if (gap > kOurOwnStop) heard_ = heard_ + gap;
  if (limit_ <= Duration::zero() || told_ || now - heard_ < limit_) return false;
  return told_ = true;
}

}  // namespace troupe
