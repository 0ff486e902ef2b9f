#include "runtime/internal/local_streams.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/assert.h"
#include "runtime/private_folder.h"

namespace troupe::internal {
namespace {

// Small frames are taken a few hundred at a time: while they are handled, nothing of ours is
// written, and a peer that waits for it runs dry.
constexpr size_t kScratchBytes = size_t{32} << 10;
constexpr int kReadsPerTurn = 4;  // Of one link's large frame, before the others get their turn.
constexpr int kEventsPerTurn = 64;
constexpr int kAcceptsPerTurn = 64;
constexpr size_t kFramesPerWrite = 64;
constexpr int kWritesPerTurn = 4;  // Of one link, as for reads.
constexpr int kBacklog = 1024;
// So many frames, each so soon after the one before, are a flood: what follows waits for the loop,
// which writes many at once.
constexpr int kFloodFrames = 8;
constexpr Duration kFloodGap = microseconds(20);
constexpr int kSocketBytes = 1 << 20;  // Asked for; the kernel gives what it allows.
constexpr size_t kNameBytesMax = 128;
constexpr Duration kRetry = milliseconds(10);
constexpr Duration kRetryMax = milliseconds(500);
// After the process has run out of descriptors.
constexpr Duration kAcceptPause = milliseconds(100);

Error SystemError(const std::string& what) {
  const ErrorCode code = errno == EADDRINUSE ? ErrorCode::kAlreadyExists : ErrorCode::kUnavailable;
  return Error{code, what + ": " + std::strerror(errno)};
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kInvalidArgument, "the path of a socket has 1 to " +
                                                  std::to_string(sizeof address.sun_path - 1) +
                                                  " bytes: ipc://" + path};
  }
  path.copy(address.sun_path, path.size());
  return address;
}

// Whoever may write to the folder of a socket could put another one in its place.
Status CheckFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  return CheckPrivateFolder(folder.empty() ? "/" : folder, "socket folder");
}

int NewSocket() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
  return fd;
}

// 0: there is no socket.
uint64_t SocketAt(const std::string& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

ssize_t Write(int fd, iovec* parts, size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

iovec Part(const char* data, size_t bytes) { return {const_cast<char*>(data), bytes}; }

}  // namespace

struct LocalStreams::Link {
  struct Frame {
    FrameHeader header;
    std::string body;
    [[nodiscard]] size_t size() const { return header.size() + body.size(); }
  };

  explicit Link(size_t frame_bytes_max) : reader(frame_bytes_max) {}
  [[nodiscard]] bool ours() const { return !path.empty(); }

  std::string peer;  // Of an accepted link: empty until it has said its name.
  std::string path;  // Of a link that we make.

  // Guarded by mu_.
  int fd = -1;
  std::deque<Frame> queue;
  size_t frames = 0;   // Not yet written whole: of `leaving` and of the queue.
  size_t bytes = 0;    // Of these.
  size_t written = 0;  // Bytes of the first of these.
  Time wrote_at;
  int soon = 0;  // Frames that came within kFloodGap of a write, one after the other.

  // The loop's.
  std::deque<Frame> leaving;  // Before those of the queue; written without mu_.
  FrameReader reader;
  Duration pause = kRetry;  // Before the next attempt to connect.
  bool gone = false;        // Not to be tried again.
};

LocalStreams::LocalStreams(Options options, EventLoop& loop)
    : options_(std::move(options)),
      loop_(loop),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      scratch_(kScratchBytes) {
  TROUPE_ASSERT(epoll_ >= 0, "epoll_create1");
}

LocalStreams::~LocalStreams() {
  Close();
  ::close(epoll_);
}

Status LocalStreams::Listen(const std::string& path) {
  const Result<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.error();
  if (Status s = CheckFolderOf(path); !s.ok()) return s;
  Listener listener{NewSocket(), path, 0};
  if (listener.fd < 0) return SystemError("cannot listen on ipc://" + path);
  if (SocketAt(path) != 0) ::unlink(path.c_str());
  if (::bind(listener.fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(listener.fd, kBacklog) != 0) {
    const Error error = SystemError("cannot listen on ipc://" + path);
    ::close(listener.fd);
    return error;
  }
  listener.inode = SocketAt(path);
  Watch(listener.fd, false, true);
  listeners_.push_back(std::move(listener));
  return Status::Ok();
}

Status LocalStreams::Connect(const std::string& peer, const std::string& path) {
  if (const Result<sockaddr_un> address = AddressOf(path); !address.ok()) return address.error();
  if (Status s = CheckFolderOf(path); !s.ok()) return s;
  Disconnect(peer);
  const auto link = std::make_shared<Link>(options_.frame_bytes_max);
  link->peer = peer;
  link->path = path;
  {
    std::lock_guard lock(mu_);
    made_.emplace(peer, link);
  }
  Attempt(link);
  return Status::Ok();
}

void LocalStreams::Disconnect(const std::string& peer) { Forget(made_, peer); }

void LocalStreams::Forget(std::map<std::string, LinkPtr>& links, const std::string& peer) {
  const auto it = links.find(peer);
  if (it == links.end()) return;
  const LinkPtr link = it->second;  // A copy: Broken erases it.
  Broken(link, true);
}

void LocalStreams::Attempt(const LinkPtr& link) {
  if (link->gone) return;
  const sockaddr_un address = *AddressOf(link->path);
  const int fd = NewSocket();
  const FrameHeader header = HeaderOf(options_.name);
  iovec name[] = {Part(header.data(), header.size()),
                  Part(options_.name.data(), options_.name.size())};
  // A new socket has room for a name.
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      Write(fd, name, 2) != static_cast<ssize_t>(header.size() + options_.name.size())) {
    if (fd >= 0) ::close(fd);
    loop_.CallAfter(link->pause, [this, link] { Attempt(link); });
    link->pause = std::min(2 * link->pause, kRetryMax);
    return;
  }
  link->pause = kRetry;
  link->reader = FrameReader(options_.frame_bytes_max);
  by_fd_[fd] = link;
  Watch(fd, false, true);
  {
    std::lock_guard lock(mu_);
    link->fd = fd;
    link->written = 0;
  }
  Flush(*link);
}

void LocalStreams::Broken(const LinkPtr& link, bool forget) {
  const bool again = link->ours() && !forget;
  link->gone = !again;
  {
    std::lock_guard lock(mu_);
    if (link->fd >= 0) {
      by_fd_.erase(link->fd);
      ::close(link->fd);
      link->fd = -1;
    }
    if (!again || !options_.queue_while_connecting) {
      link->leaving.clear();
      link->queue.clear();
      link->frames = 0;
      link->bytes = 0;
    }
    if (!again) {
      auto& links = link->ours() ? made_ : accepted_;
      const auto it = links.find(link->peer);
      if (it != links.end() && it->second == link) links.erase(it);
    }
  }
  if (again) loop_.CallAfter(link->pause, [this, link] { Attempt(link); });
}

LocalStreams::Sent LocalStreams::Send(const std::string& to, std::string&& frame) {
  std::lock_guard lock(mu_);
  auto it = made_.find(to);
  if (it == made_.end()) {
    it = accepted_.find(to);
    if (it == accepted_.end()) return Sent::kUnknown;
  }
  Link& link = *it->second;
  if (link.fd < 0 && !options_.queue_while_connecting) return Sent::kDropped;
  const bool full = link.frames >= options_.queue_frames_max ||
                    link.bytes + frame.size() > options_.queue_bytes_max;
  if (full && link.frames > 0) return Sent::kDropped;
  size_t written = 0;
  const FrameHeader header = HeaderOf(frame);
  const Time now = loop_.Now();
  link.soon = now - link.wrote_at < kFloodGap ? link.soon + 1 : 0;
  const bool first = link.frames == 0;
  if (link.fd >= 0 && first && link.soon < kFloodFrames) {
    link.wrote_at = now;
    iovec parts[] = {Part(header.data(), header.size()), Part(frame.data(), frame.size())};
    const ssize_t sent = Write(link.fd, parts, 2);
    if (sent == static_cast<ssize_t>(header.size() + frame.size())) return Sent::kYes;
    if (sent > 0) written = static_cast<size_t>(sent);
  }
  link.queue.push_back({header, std::move(frame)});
  ++link.frames;
  link.bytes += link.queue.back().size();
  if (!first || link.fd < 0) return Sent::kYes;
  link.written = written;
  Watch(link.fd, true, false);
  return Sent::kYes;
}

// Those who send meanwhile must not wait for the socket, so what is written is out of their queue.
void LocalStreams::Flush(Link& link) {
  for (int i = 0; i < kWritesPerTurn; ++i) {
    size_t skip = 0;
    {
      std::lock_guard lock(mu_);
      if (link.leaving.empty()) link.leaving.swap(link.queue);
      link.wrote_at = loop_.Now();
      skip = link.written;
      if (link.leaving.empty()) {
        if (i == 0) Watch(link.fd, false, false);
        return;
      }
    }
    iovec parts[2 * kFramesPerWrite];
    size_t count = 0;
    for (size_t k = 0; k < std::min(link.leaving.size(), kFramesPerWrite); ++k) {
      const Link::Frame& frame = link.leaving[k];
      for (const std::string_view part :
           {std::string_view(frame.header.data(), frame.header.size()), {frame.body}}) {
        if (part.size() > skip) parts[count++] = Part(part.data() + skip, part.size() - skip);
        skip -= std::min(skip, part.size());
      }
    }
    const ssize_t sent = Write(link.fd, parts, count);
    // If the peer has gone, the socket says so to the loop, which ends the link.
    if (sent < 0) break;
    size_t whole = 0;
    size_t bytes = 0;
    {
      std::lock_guard lock(mu_);
      link.written += static_cast<size_t>(sent);
      for (; whole < link.leaving.size() && link.written >= link.leaving[whole].size(); ++whole) {
        link.written -= link.leaving[whole].size();
        bytes += link.leaving[whole].size();
      }
      link.frames -= whole;
      link.bytes -= bytes;
    }
    // Their memory is given back without the lock, since that may have to wait for another one.
    link.leaving.erase(link.leaving.begin(), link.leaving.begin() + static_cast<long>(whole));
  }
  Watch(link.fd, true, false);
}

void LocalStreams::Watch(int fd, bool writes_too, bool anew) const {
  epoll_event event{};
  event.events = writes_too ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.fd = fd;
  TROUPE_ASSERT(::epoll_ctl(epoll_, anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0,
                "epoll_ctl");
}

void LocalStreams::HandleReady(const Handler& handler) {
  epoll_event events[kEventsPerTurn];
  const int count = ::epoll_wait(epoll_, events, kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    // A link that an earlier one's handler has ended is not there any more. If its descriptor has
    // a new owner already, that one finds nothing to read.
    if (const auto it = by_fd_.find(fd); it != by_fd_.end()) {
      const LinkPtr link = it->second;
      if ((events[i].events & EPOLLOUT) != 0) Flush(*link);
      if ((events[i].events & ~uint32_t{EPOLLOUT}) != 0) Read(link, handler);
      continue;
    }
    for (const Listener& listener : listeners_) {
      if (listener.fd == fd) Accept(listener);
    }
  }
}

void LocalStreams::Accept(const Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = ::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // No descriptor is left for it; the loop must not spin until there is one.
      ::epoll_ctl(epoll_, EPOLL_CTL_DEL, listener.fd, nullptr);
      loop_.CallAfter(kAcceptPause, [this, fd = listener.fd] { Watch(fd, false, true); });
      return;
    }
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
    const auto link = std::make_shared<Link>(options_.frame_bytes_max);
    link->fd = fd;
    by_fd_[fd] = link;
    Watch(fd, false, true);
    loop_.CallAfter(kHandshakeLimit, [this, weak = std::weak_ptr<Link>(link)] {
      const LinkPtr silent = weak.lock();
      if (silent && silent->peer.empty() && !silent->gone) Broken(silent, true);
    });
  }
}

void LocalStreams::Read(const LinkPtr& link, const Handler& handler) {
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const std::span<char> space = link->reader.Space(scratch_);
    const ssize_t bytes = ::recv(link->fd, space.data(), space.size(), 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const auto filled = space.first(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
    const bool going = bytes > 0 && link->reader.Filled(filled, [&](std::string frame) {
      return Take(link, std::move(frame), handler);
    });
    if (!going) {
      if (link->fd >= 0) Broken(link, false);
      return;
    }
    const bool small = space.data() == scratch_.data();
    if (small || filled.size() < space.size()) return;  // Enough, or there was no more.
  }
}

bool LocalStreams::Take(const LinkPtr& link, std::string frame, const Handler& handler) {
  if (link->peer.empty()) return Introduce(link, frame);
  if (handler) handler(link->peer, std::move(frame));
  return link->fd >= 0;  // The handler may have ended it.
}

bool LocalStreams::Introduce(const LinkPtr& link, const std::string& name) {
  if (name.empty() || name.size() > kNameBytesMax) return false;
  Forget(accepted_, name);
  link->peer = name;
  std::lock_guard lock(mu_);
  accepted_.emplace(name, link);
  return true;
}

void LocalStreams::Close() {
  for (const auto* links : {&made_, &accepted_}) {
    while (!links->empty()) {
      const LinkPtr link = links->begin()->second;
      Broken(link, true);
    }
  }
  while (!by_fd_.empty()) {  // Those that have not said their names.
    const LinkPtr link = by_fd_.begin()->second;
    Broken(link, true);
  }
  for (const Listener& listener : listeners_) {
    ::close(listener.fd);
    if (SocketAt(listener.path) == listener.inode) ::unlink(listener.path.c_str());
  }
  listeners_.clear();
}

}  // namespace troupe::internal
