// The sockets of a transport between hosts: ZeroMQ with CURVE.
//
// Thread: whoever runs the sockets of the context.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <zmq.hpp>

#include "runtime/result.h"
#include "runtime/transport.h"

namespace troupe::internal {

// A frame travels in parts of this size, and no connection takes a larger one: also not from who
// has not shown a key yet.
inline constexpr size_t kZmqPartBytes = size_t{1} << 20;
// Before the path of a process of this host.
inline constexpr std::string_view kLocalScheme = "ipc://";

// A ROUTER that listens on a tcp endpoint. kInvalidArgument without a key pair or for an endpoint
// that is none, kAlreadyExists if the port is in use, kUnavailable for an address that is not ours.
[[nodiscard]] Result<zmq::socket_t> BindRouter(zmq::context_t& context,
                                               const ZmqTransportOptions& options,
                                               const std::string& endpoint);
// A DEALER for a peer over tcp, and one that connects to it. kInvalidArgument without its key or
// our key pair, or for an endpoint that is none.
[[nodiscard]] Result<zmq::socket_t> MakeDealer(zmq::context_t& context,
                                               const ZmqTransportOptions& options,
                                               const PeerAddress& peer);
[[nodiscard]] Result<zmq::socket_t> ConnectDealer(zmq::context_t& context,
                                                  const ZmqTransportOptions& options,
                                                  const PeerAddress& peer);

// Of bytes that wait for a peer.
using Counter = std::shared_ptr<std::atomic<size_t>>;

// In parts, which count until they have left. False if there is no room.
bool SendFrame(zmq::socket_t& socket, std::string frame, const Counter& counter);
// The rest of a frame behind its first part. False if it is none of ours.
bool ReceiveParts(zmq::socket_t& socket, std::string& frame, bool more);

}  // namespace troupe::internal
