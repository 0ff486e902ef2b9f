#include "collective_groups/links/internal/proven_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

namespace troupe::groups {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Somebody who has connected and not said all of the secret yet.
struct Stranger {
  Socket socket;
  size_t said = 0;
};

enum class Knock { kProven, kWaiting, kWrong };

Error Gone(const std::string& what) { return {ErrorCode::kPeerGone, what}; }
Error Cancelled() { return {ErrorCode::kCancelled, "linking was cancelled"}; }

// Reads no byte beyond the secret: what follows is for whoever gets the connection.
Knock Hear(Stranger* stranger, const LinkSecret& secret) {
  while (stranger->said < secret.size()) {
    LinkSecret piece{};
    const ssize_t got =
        ::recv(stranger->socket.get(), piece.data(), secret.size() - stranger->said, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Knock::kWaiting;
    if (got <= 0) return Knock::kWrong;
    if (std::memcmp(piece.data(), secret.data() + stranger->said, static_cast<size_t>(got)) != 0) {
      return Knock::kWrong;
    }
    stranger->said += static_cast<size_t>(got);
  }
  return Knock::kProven;
}

// One round of those that have connected; more wait for the next.
Status AcceptSome(int listener, std::deque<Stranger>* strangers) {
  for (size_t i = 0; i < kStrangersMax; ++i) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (strangers->size() == kStrangersMax) strangers->pop_front();
      strangers->push_back({Socket(fd)});
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    if (errno == EINVAL) return Cancelled();
    const bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!full) continue;  // That connection is gone already.
    if (strangers->empty()) return Gone(std::string("accept: ") + std::strerror(errno));
    strangers->pop_front();
  }
  return Status::Ok();
}

// Until one of them is ready; false at the deadline. The first is the listener.
Result<bool> PollUntil(std::vector<pollfd>* fds, Time deadline) {
  for (;;) {
    const Duration left = deadline - SteadyClock().Now();
    if (left <= Duration::zero()) return false;
    const auto ms = std::chrono::ceil<milliseconds>(left).count();
    const int ready = ::poll(fds->data(), fds->size(), static_cast<int>(ms));
    if (ready < 0 && errno != EINTR) return Gone(std::string("poll: ") + std::strerror(errno));
    if (ready <= 0) continue;
    if (((*fds)[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return Cancelled();
    return true;
  }
}

}  // namespace

Result<LinkSecret> MakeLinkSecret() {
  LinkSecret secret;
  // So few bytes come whole or not at all.
  if (::getrandom(secret.data(), secret.size(), 0) == static_cast<ssize_t>(secret.size())) {
    return secret;
  }
  return Error{ErrorCode::kUnavailable, std::string("getrandom: ") + std::strerror(errno)};
}

Status PrepareListener(int listener) {
  const int flags = ::fcntl(listener, F_GETFL);
  if (flags < 0 || ::fcntl(listener, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(listener, F_SETFD, FD_CLOEXEC) != 0 || ::listen(listener, kKnocksMax) != 0) {
    return Error{ErrorCode::kUnavailable, std::string("listen: ") + std::strerror(errno)};
  }
  return Status::Ok();
}

Result<int> AcceptProven(int listener, const LinkSecret& secret, Time deadline) {
  std::deque<Stranger> strangers;
  for (;;) {
    if (Status s = AcceptSome(listener, &strangers); !s.ok()) return s.error();
    for (auto it = strangers.begin(); it != strangers.end();) {
      const Knock knock = Hear(&*it, secret);
      if (knock == Knock::kProven) return it->socket.Release();
      it = knock == Knock::kWrong ? strangers.erase(it) : it + 1;
    }
    std::vector<pollfd> fds{{listener, POLLIN, 0}};
    for (const Stranger& stranger : strangers) fds.push_back({stranger.socket.get(), POLLIN, 0});
    const Result<bool> ready = PollUntil(&fds, deadline);
    if (!ready.ok()) return ready.error();
    if (!ready.value()) {
      return Gone("nobody who knows the offer has connected (" + std::to_string(strangers.size()) +
                  " others are there)");
    }
  }
}

Result<int> ConnectProven(const sockaddr_storage& to, const LinkSecret& secret, int listener,
                          Time deadline) {
  Socket socket(::socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return Gone(std::string("socket: ") + std::strerror(errno));
  const socklen_t size = to.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  int problem = 0;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), size) != 0) {
    problem = errno;
    if (problem == EINPROGRESS || problem == EINTR) {
      std::vector<pollfd> fds{{listener, 0, 0}, {socket.get(), POLLOUT, 0}};
      const Result<bool> ready = PollUntil(&fds, deadline);
      if (!ready.ok()) return ready.error();
      socklen_t length = sizeof problem;
      if (!ready.value()) {
        problem = ETIMEDOUT;
      } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &problem, &length) != 0) {
        problem = errno;
      }
    }
  }
  // A fresh connection has room for so few bytes.
  if (problem == 0 && ::send(socket.get(), secret.data(), secret.size(), MSG_NOSIGNAL) !=
                          static_cast<ssize_t>(secret.size())) {
    problem = errno;
  }
  if (problem != 0) return Gone(std::string("connect: ") + std::strerror(problem));
  return socket.Release();
}

}  // namespace troupe::groups
