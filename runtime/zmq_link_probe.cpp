#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "runtime/internal/zmq_sockets.h"
#include "runtime/link_probe.h"
#include "runtime/process.h"

namespace troupe {
namespace {

constexpr Duration kLook = milliseconds(20);

LinkState ProbeLocal(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return LinkState::kNoConnection;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return LinkState::kNoConnection;
  const bool listens =
      ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno == EAGAIN;  // Its backlog is full.
  ::close(fd);
  return listens ? LinkState::kOpen : LinkState::kNoConnection;
}

// What ZeroMQ tells of the one connection that is tried.
class Handshake final : public zmq::monitor_t {
 public:
  [[nodiscard]] std::optional<LinkState> state() const { return state_; }

  // Whether somebody has taken a connection, and has not closed it.
  [[nodiscard]] bool connected() const { return connected_; }

  void on_event_connected(const zmq_event_t&, const char*) override { connected_ = true; }
  void on_event_disconnected(const zmq_event_t&, const char*) override { connected_ = false; }
  void on_event_handshake_succeeded(const zmq_event_t&, const char*) override {
    state_ = LinkState::kOpen;
  }
  void on_event_handshake_failed_auth(const zmq_event_t&, const char*) override {
    state_ = LinkState::kStranger;
  }
  void on_event_handshake_failed_protocol(const zmq_event_t&, const char*) override {
    state_ = LinkState::kStranger;
  }
  void on_event_handshake_failed_no_detail(const zmq_event_t&, const char*) override {
    state_ = LinkState::kStranger;
  }

 private:
  std::optional<LinkState> state_;
  bool connected_ = false;
};

}  // namespace

LinkState ProbeLink(const CurveKeys& own, const PeerAddress& peer, Duration limit) {
  if (peer.endpoint.starts_with(internal::kLocalScheme))
    return ProbeLocal(peer.endpoint.substr(internal::kLocalScheme.size()));
  ZmqTransportOptions options;
  options.name = "probe-" + RandomId();
  options.keys = own;
  try {
    zmq::context_t context(1);
    Result<zmq::socket_t> socket = internal::MakeDealer(context, options, peer);
    if (!socket.ok()) return LinkState::kNoConnection;
    Handshake handshake;
    handshake.init(*socket, "inproc://" + options.name, ZMQ_EVENT_ALL);
    socket->connect(peer.endpoint);
    const Time deadline = SteadyClock().Now() + limit;
    while (!handshake.state() && SteadyClock().Now() < deadline) {
      (void)handshake.check_event(
          static_cast<int>(std::chrono::duration_cast<milliseconds>(kLook).count()));
    }
    return handshake.state().value_or(handshake.connected() ? LinkState::kOpen
                                                            : LinkState::kNoConnection);
  } catch (const zmq::error_t&) {
    return LinkState::kNoConnection;
  }
}

std::string ExplainLink(LinkState state, const std::string& key_file) {
  if (state == LinkState::kStranger) {
    return "what listens there does not go with the key file " + key_file +
           ": it is the head of another cluster, or none; copy the file of that head here, or name "
           "another one (TROUPE_KEY_FILE, --key-file)";
  }
  if (state == LinkState::kOpen) {
    return "it is there, but does not answer; it is overloaded, stopped or hangs: see the "
           "head's log (`troupe logs head` on its host)";
  }
  return "no connection comes about; is the head running there, and does every firewall in "
         "between let its port through?";
}

}  // namespace troupe
