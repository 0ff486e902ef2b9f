// ZapResponder: says which CURVE keys may connect to the listeners of a ZeroMQ context, and marks
// what guests send with their key.
//
// A CURVE server without a ZAP handler accepts any client, so it is made before the first listener
// is bound.
// Thread: whoever runs the sockets of the context.
#pragma once

#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "runtime/log.h"
#include "runtime/metrics.h"

namespace troupe::internal {

class ZapResponder {
 public:
  // `guests`: their keys, which may change; outlives this.
  ZapResponder(zmq::context_t& context, std::set<std::string> allowed,
               const std::set<std::string>* guests)
      : socket_(context, zmq::socket_type::rep), allowed_(std::move(allowed)), guests_(guests) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.bind("inproc://zeromq.zap.01");
  }

  [[nodiscard]] void* handle() { return socket_.handle(); }
  // The key of the guest that a frame is from; empty: it is from somebody of the cluster.
  [[nodiscard]] static std::string GuestOf(zmq::message_t& frame) {
    const char* user = zmq_msg_gets(frame.handle(), "User-Id");
    const std::string_view id = user == nullptr ? "" : user;
    return id.starts_with(kGuest) ? std::string(id.substr(kGuest.size())) : "";
  }

  // One request, if there is one.
  void Answer() {
    std::vector<zmq::message_t> parts;
    for (bool more = true; more;) {
      zmq::message_t part;
      if (!socket_.recv(part, zmq::recv_flags::dontwait)) return;
      more = part.more();
      parts.push_back(std::move(part));
    }
    char key[41] = {};
    if (parts.size() >= 7 && parts[5].to_string_view() == "CURVE" && parts[6].size() == 32) {
      zmq_z85_encode(key, parts[6].data<uint8_t>(), 32);
    }
    const bool guest = guests_->contains(key);
    const bool allowed = guest || allowed_.contains(key);
    if (!allowed) {
      metrics::Add(metrics::Id::kRefusedKeys);
      LogRefused(key, parts.size() > 3 ? parts[3].to_string() : "an unknown address");
    }
    const std::string request_id = parts.size() > 1 ? parts[1].to_string() : "";
    const std::string fields[] = {"1.0",
                                  request_id,
                                  allowed ? "200" : "400",
                                  allowed ? "OK" : "key not allowed",
                                  guest     ? std::string(kGuest) + key
                                  : allowed ? "cluster"
                                            : "",
                                  ""};
    for (size_t i = 0; i < std::size(fields); ++i) {
      socket_.send(zmq::buffer(fields[i]),
                   i + 1 < std::size(fields) ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

 private:
  static constexpr size_t kRefusedKeysMax = 100;
  static constexpr std::string_view kGuest = "guest:";

  // Once per key: a refused client tries again several times a second.
  void LogRefused(const std::string& key, const std::string& address) {
    if (refused_.size() >= kRefusedKeysMax || !refused_.insert(key).second) return;
    LogWarning("refused a connection from ", address, ": its key ", key,
               " is not allowed; give that machine the cluster's key file, or a new join token");
  }

  zmq::socket_t socket_;
  const std::set<std::string> allowed_;
  const std::set<std::string>* const guests_;
  std::set<std::string> refused_;  // Keys that were logged.
};

}  // namespace troupe::internal
