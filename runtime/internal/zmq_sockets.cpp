#include "runtime/internal/zmq_sockets.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/wire.h"

namespace troupe::internal {
namespace {

constexpr int kKeepaliveS = 1;
constexpr int kSilenceMs = 3000;  // Of a peer's host.
constexpr int kHandshakeMs = 5000;
constexpr size_t kCopiedFrameBytes = 1024;
constexpr size_t kCurveBytes = 256;  // More than encryption adds to a part.
constexpr int kReconnectMs = 20;
constexpr int kReconnectMaxMs = 500;
// After a lost packet the kernel would wait twice as long each time, up to a minute.
constexpr int kConnectTimeoutMs = 1000;

Error ZmqError(const std::string& what, const zmq::error_t& e) {
  const ErrorCode code = e.num() == EADDRINUSE ? ErrorCode::kAlreadyExists
                         : e.num() == EINVAL   ? ErrorCode::kInvalidArgument
                                               : ErrorCode::kUnavailable;
  return Error{code, what + ": " + e.what()};
}

// Whether a socket can be made at all; `what` is what was tried.
Status Usable(const std::string& what, const std::string& endpoint, bool keys) {
  if (!endpoint.starts_with("tcp://")) {
    return Error{ErrorCode::kInvalidArgument,
                 what + ": an endpoint is tcp://ADDRESS:PORT or ipc://PATH"};
  }
  if (keys) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument,
               what + ": a tcp endpoint needs the cluster's key pair, and a peer its public key"};
}

zmq::socket_t MakeSocket(zmq::context_t& context, zmq::socket_type type,
                         const ZmqTransportOptions& options) {
  zmq::socket_t socket(context, type);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::sndhwm, kTransportQueueMessagesMax);
  socket.set(zmq::sockopt::rcvhwm, kTransportQueueMessagesMax);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(kZmqPartBytes + kCurveBytes));
  // The kernel notices a host that is gone. Heartbeats of ZeroMQ 4.3 do not do: one that falls due
  // when a connection breaks whose receiver is full ends the process (libzmq issue 4364).
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, kKeepaliveS);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, kKeepaliveS);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, kSilenceMs / 1000 / kKeepaliveS);
  socket.set(zmq::sockopt::tcp_maxrt, kSilenceMs);
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  socket.set(zmq::sockopt::routing_id, options.name);
  return socket;
}

// A frame that ZeroMQ sends from where it lies, and that counts as long as it does.
struct Owned {
  Owned(std::string text, Counter count) : frame(std::move(text)), counter(std::move(count)) {
    *counter += frame.size();
  }
  ~Owned() { *counter -= frame.size(); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  const std::string frame;
  const Counter counter;
};

}  // namespace

// A small frame is copied, which costs less than to hand it over.
bool SendFrame(zmq::socket_t& socket, std::string frame, const Counter& counter) {
  if (frame.size() <= kCopiedFrameBytes)
    return socket.send(zmq::buffer(frame), zmq::send_flags::dontwait).has_value();
  const auto owned = std::make_shared<Owned>(std::move(frame), counter);
  for (size_t at = 0; at < owned->frame.size(); at += kZmqPartBytes) {
    const size_t bytes = std::min(kZmqPartBytes, owned->frame.size() - at);
    const bool last = at + bytes == owned->frame.size();
    auto* held = new std::shared_ptr<Owned>(owned);
    zmq::message_t part(
        const_cast<char*>(owned->frame.data()) + at, bytes,
        [](void*, void* hint) { delete static_cast<std::shared_ptr<Owned>*>(hint); }, held);
    const auto flags =
        zmq::send_flags::dontwait | (last ? zmq::send_flags::none : zmq::send_flags::sndmore);
    if (!socket.send(std::move(part), flags)) return false;
  }
  return true;
}

bool ReceiveParts(zmq::socket_t& socket, std::string& frame, bool more) {
  bool good = true;
  while (more) {
    zmq::message_t part;
    if (!socket.recv(part, zmq::recv_flags::dontwait)) return false;
    more = part.more();
    good = good && frame.size() + part.size() <= wire::kWireFrameBytesMax;
    if (good) frame.append(part.data<char>(), part.size());
  }
  return good;
}

Result<zmq::socket_t> BindRouter(zmq::context_t& context, const ZmqTransportOptions& options,
                                 const std::string& endpoint) {
  const std::string what = "cannot listen on " + endpoint;
  if (Status s = Usable(what, endpoint, !options.keys.secret_key.empty()); !s.ok())
    return s.error();
  try {
    zmq::socket_t router = MakeSocket(context, zmq::socket_type::router, options);
    router.set(zmq::sockopt::router_mandatory, true);
    // Names carry the incarnation, so a second connection of a name is the same process that
    // reconnected.
    router.set(zmq::sockopt::router_handover, true);
    router.set(zmq::sockopt::curve_server, true);
    router.set(zmq::sockopt::curve_secretkey, options.keys.secret_key);
    router.set(zmq::sockopt::zap_domain, "troupe");
    router.bind(endpoint);
    return router;
  } catch (const zmq::error_t& e) {
    return ZmqError(what, e);
  }
}

Result<zmq::socket_t> MakeDealer(zmq::context_t& context, const ZmqTransportOptions& options,
                                 const PeerAddress& peer) {
  const std::string what = "cannot connect to " + peer.endpoint;
  const bool keys = !peer.public_key.empty() && !options.keys.secret_key.empty();
  if (Status s = Usable(what, peer.endpoint, keys); !s.ok()) return s.error();
  try {
    zmq::socket_t dealer = MakeSocket(context, zmq::socket_type::dealer, options);
    dealer.set(zmq::sockopt::immediate, !options.queue_while_connecting);
    dealer.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
    dealer.set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
    dealer.set(zmq::sockopt::connect_timeout, kConnectTimeoutMs);
    dealer.set(zmq::sockopt::curve_serverkey, peer.public_key);
    dealer.set(zmq::sockopt::curve_publickey, options.keys.public_key);
    dealer.set(zmq::sockopt::curve_secretkey, options.keys.secret_key);
    return dealer;
  } catch (const zmq::error_t& e) {
    return ZmqError(what, e);
  }
}

Result<zmq::socket_t> ConnectDealer(zmq::context_t& context, const ZmqTransportOptions& options,
                                    const PeerAddress& peer) {
  Result<zmq::socket_t> dealer = MakeDealer(context, options, peer);
  if (!dealer.ok()) return dealer;
  try {
    dealer->connect(peer.endpoint);
    return dealer;
  } catch (const zmq::error_t& e) {
    return ZmqError("cannot connect to " + peer.endpoint, e);
  }
}

}  // namespace troupe::internal

namespace troupe {

Result<CurveKeys> GenerateCurveKeys() {
  char public_key[41] = {};
  char secret_key[41] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0) {
    return Error{ErrorCode::kUnavailable,
                 "this libzmq was built without CURVE; install Debian's libzmq5"};
  }
  return CurveKeys{public_key, secret_key};
}

Result<CurveKeys> CurveKeysOf(const std::string& secret_key) {
  char public_key[41] = {};
  if (secret_key.size() != sizeof public_key - 1 ||
      zmq_curve_public(public_key, secret_key.c_str()) != 0) {
    return Error{ErrorCode::kInvalidArgument, "this is no secret key of CURVE"};
  }
  return CurveKeys{public_key, secret_key};
}

}  // namespace troupe
