// The sockets of a transport between hosts: ZeroMQ with CURVE.
//
// Thread: whoever runs the sockets of the context.
#pragma once

#include <string>
#include <zmq.hpp>

#include "runtime/result.h"
#include "runtime/transport.h"

namespace troupe::internal {

// A ROUTER that listens on a tcp endpoint. kInvalidArgument without a key pair or for an endpoint
// that is none, kAlreadyExists if the port is in use, kUnavailable for an address that is not ours.
[[nodiscard]] Result<zmq::socket_t> BindRouter(zmq::context_t& context,
                                               const ZmqTransportOptions& options,
                                               const std::string& endpoint);
// A DEALER to a peer over tcp. kInvalidArgument without its key or our key pair, or for an endpoint
// that is none.
[[nodiscard]] Result<zmq::socket_t> ConnectDealer(zmq::context_t& context,
                                                  const ZmqTransportOptions& options,
                                                  const PeerAddress& peer);

}  // namespace troupe::internal
