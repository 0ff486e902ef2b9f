// Transport: frames between named processes, without promise of delivery.
//
// A process listens on one endpoint and links to others by address; both ends of a link can then
// send by name. Links over tcp are ZeroMQ's, those over ipc Unix sockets of our own (decision
// 0017). Frames of one sender arrive in order or not at all; a protocol on top must live with loss
// and, on the simulated form, with duplication and reordering. Names carry the incarnation, so a
// restarted peer is another peer.
// Thread: Send from any thread; the handler runs on the loop; Listen and Connect from any thread
// before or after Start. Security: tcp:// endpoints use CURVE with an allow-list that answers
// before the first bind; ipc:// endpoints rely on the 0700 directory they live in. A guest is
// connected like others, but what it sends is told apart by its key.
// Limits: kTransportQueueMessagesMax frames per peer, wire::kWireFrameBytesMax bytes per frame.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/event_loop.h"
#include "runtime/executor.h"
#include "runtime/result.h"

namespace troupe {

inline constexpr int kTransportQueueMessagesMax = 10'000;

struct PeerAddress {
  std::string peer;        // The name the peer listens under.
  std::string endpoint;    // "tcp://10.0.0.1:7001" or "ipc:///run/x/head.sock".
  std::string public_key;  // Z85, 40 characters; empty for ipc.

  template <class A>
  void Fields(A& a) {
    a(peer, endpoint, public_key);
  }
};

// A CURVE key pair in Z85; runtime/curve_key_files.h keeps them in files.
struct CurveKeys {
  std::string public_key;
  std::string secret_key;
};
[[nodiscard]] Result<CurveKeys> GenerateCurveKeys();
// kInvalidArgument for what is no secret key.
[[nodiscard]] Result<CurveKeys> CurveKeysOf(const std::string& secret_key);

class Transport {
 public:
  using Handler = std::function<void(const std::string& from, std::string frame)>;
  // Called with the frame's destination when it could not be handed over (unknown peer, full
  // queue).
  using DropHandler = std::function<void(const std::string& to)>;

  virtual ~Transport() = default;
  [[nodiscard]] virtual const std::string& self() const = 0;
  virtual EventLoop& loop() = 0;
  virtual void SetHandler(Handler handler) = 0;
  virtual void SetDropHandler(DropHandler handler) = 0;
  // Who connects with a key that is let in this way is a guest from then on, also when that is let
  // in no longer. Its frames go to the guest handler, and to nobody without one.
  using GuestHandler =
      std::function<void(const std::string& from, const std::string& key, std::string frame)>;
  virtual void SetGuestHandler(const GuestHandler& /*handler*/) {}
  virtual void LetGuest(const std::string& /*public_key*/, bool /*in*/) {}
  // Binds and returns the address others can connect to (a port of 0 or "*" is resolved).
  virtual Result<PeerAddress> Listen(const std::string& endpoint) = 0;
  // Links to a listening peer; re-established by itself after a break. Connecting again to the same
  // name replaces it.
  virtual Status Connect(const PeerAddress& peer) = 0;
  virtual void Disconnect(const std::string& peer) = 0;
  // kBackpressure when the outbound queue is full; success says nothing about arrival.
  virtual Status Send(const std::string& to, std::string frame) = 0;
  // Ends the loop. When it returns, nothing runs on it any more; sends and connections are refused
  // with kCancelled, posted functions are dropped. An owner whose callbacks use the transport stops
  // it before it destroys anything. Idempotent; not from the loop.
  virtual void Stop() = 0;
  // Whether this thread runs the loop now, so that it cannot wait for the loop's end.
  [[nodiscard]] virtual bool InLoop() const { return false; }
  // Runs the loop on this thread until it has done something, or `until`. False, at once, if this
  // transport keeps its loop to itself, another thread does so, or the loop has ended.
  [[nodiscard]] virtual bool Help(Time until);
  // The same until `event` is set, by whoever runs the loop; false if it was not by `until`.
  [[nodiscard]] virtual bool AwaitHelping(FiberEvent& event, Time until);
  // Ends a Help of another thread.
  virtual void WakeHelper() {}
};

struct ZmqTransportOptions {
  std::string name;  // Routing id: unique per process incarnation, at most 128 bytes.
  CurveKeys keys;    // Needed for tcp endpoints only.
  std::vector<std::string>
      allowed_keys;  // Client keys accepted by a tcp listener; our own is always allowed.
  // Frames to a peer whose link is not up yet wait for it. Off: they are dropped, as protocols that
  // repeat want it.
  bool queue_while_connecting = false;
  // Threads that wait may run the loop, and send without it; see runtime/turn_taking.h.
  bool shared_loop = false;
};

// Starts the io thread at once; Stop or the destructor joins it.
[[nodiscard]] Result<std::unique_ptr<Transport>> MakeZmqTransport(ZmqTransportOptions options);

}  // namespace troupe
