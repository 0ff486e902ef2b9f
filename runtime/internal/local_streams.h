// LocalStreams: the links of a transport to processes of its own host, over Unix stream sockets.
//
// A link is made by one side and serves both. Its first frame is the name of who made it, which the
// other side sends to from then on; a second link of a name replaces the first. A link that was
// made comes back by itself after a break; one that was accepted is forgotten.
// A sender writes to the socket itself; what does not fit waits for the loop. So a message costs
// one wake-up, that of its receiver.
// Thread: Send from any thread; all else on the loop. Security: that of the socket's directory.
// Limits: of the options; kHandshakeLimit for a link's name.
// Invariants: LS-1 frames of a link arrive whole and in the order of Send, or not at all. LS-2
// nothing waits for a peer: what cannot be written is queued, up to the limit, or refused.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/brief_mutex.h"
#include "runtime/event_loop.h"
#include "runtime/internal/frame_reader.h"
#include "runtime/result.h"

namespace troupe::internal {

inline constexpr Duration kHandshakeLimit = seconds(5);

class LocalStreams {
 public:
  struct Options {
    std::string name;  // Ours.
    bool queue_while_connecting = false;
    size_t queue_frames_max = 0;
    size_t queue_bytes_max = 0;  // Of one link; a single frame may be larger.
    size_t frame_bytes_max = 0;
  };
  using Handler = std::function<void(const std::string& from, std::string frame)>;
  enum class Sent {
    kYes,      // Or queued.
    kDropped,  // The link is not up, or its queue is full.
    kUnknown,  // There is no link of this name; the frame was left alone.
  };

  LocalStreams(Options options, EventLoop& loop);
  ~LocalStreams();
  LocalStreams(const LocalStreams&) = delete;
  LocalStreams& operator=(const LocalStreams&) = delete;

  // Takes over the path from whoever listened there before. kUnavailable if that cannot be.
  Status Listen(const std::string& path);
  // Replaces a link to this peer. kInvalidArgument for a path that no socket can have.
  Status Connect(const std::string& peer, const std::string& path);
  void Disconnect(const std::string& peer);
  [[nodiscard]] Sent Send(const std::string& to, std::string&& frame);

  // Readable when there is something for HandleReady to do.
  [[nodiscard]] int handle() const { return epoll_; }
  void HandleReady(const Handler& handler);
  // Ends all links; those who still send are told that they are unknown.
  void Close();

 private:
  struct Link;
  using LinkPtr = std::shared_ptr<Link>;
  struct Listener {
    int fd = -1;
    std::string path;
    uint64_t inode = 0;
  };

  void Accept(const Listener& listener);
  void Read(const LinkPtr& link, const Handler& handler);
  // False if the link is not to be read any further.
  bool Take(const LinkPtr& link, std::string frame, const Handler& handler);
  bool Introduce(const LinkPtr& link, const std::string& name);
  void Attempt(const LinkPtr& link);
  // The socket has ended. A link that we made tries again, unless `forget`.
  void Broken(const LinkPtr& link, bool forget);
  void Forget(std::map<std::string, LinkPtr>& links, const std::string& peer);
  void Watch(int fd, bool writes_too, bool anew) const;
  // Writes what the socket takes of what waits.
  void Flush(Link& link);

  const Options options_;
  EventLoop& loop_;
  const int epoll_;

  // The loop's.
  std::vector<Listener> listeners_;
  std::map<int, LinkPtr> by_fd_;
  std::vector<char> scratch_;

  // Guarded by mu_, as are descriptor and queue of each link; changed on the loop only, but for
  // queues.
  BriefMutex mu_;
  std::map<std::string, LinkPtr> made_;
  std::map<std::string, LinkPtr> accepted_;
};

}  // namespace troupe::internal
