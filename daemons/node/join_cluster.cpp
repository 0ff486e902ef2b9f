#include "daemons/node/join_cluster.h"

#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "daemons/protocol/join.h"
#include "daemons/protocol/messages.h"
#include "runtime/curve_key_files.h"
#include "runtime/link_probe.h"
#include "runtime/process.h"
#include "runtime/transport.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kAskAgain = milliseconds(100);
constexpr Duration kLookAfter = seconds(3);  // Without an answer: whether the head refuses us.
constexpr Duration kLookLimit = seconds(2);

// One process that asks, under one name: the head gives the keys to no second one.
class Asking {
 public:
  Status Start(const JoinOptions& options, const CurveKeys& guest, const PeerAddress& head) {
    ZmqTransportOptions transport_options;
    transport_options.name = "join-" + options.node + "#" + RandomId();
    transport_options.keys = guest;
    Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(std::move(transport_options));
    if (!transport.ok()) return transport.error();
    transport_ = std::move(*transport);
    transport_->SetHandler([this](const std::string&, const std::string& frame) {
      Result<JoinReply> reply = wire::Decode<JoinReply>(kFrameJoinReply, frame);
      if (!reply.ok()) return;
      std::lock_guard lock(mu_);
      reply_ = std::move(*reply);
      came_.notify_one();
    });
    return transport_->Connect(head);
  }

  std::optional<JoinReply> Ask(const JoinOptions& options, Time until) {
    const std::string frame = wire::Encode(kFrameJoinRequest, JoinRequest{options.node});
    std::unique_lock lock(mu_);
    while (!reply_ && SteadyClock().Now() < until) {
      lock.unlock();
      (void)transport_->Send(kHeadName, frame);
      lock.lock();
      came_.wait_for(lock, kAskAgain, [&] { return reply_.has_value(); });
    }
    return reply_;
  }

 private:
  std::mutex mu_;
  std::condition_variable came_;
  std::optional<JoinReply> reply_;
  std::unique_ptr<Transport> transport_;  // Last: its handler uses the others.
};

}  // namespace

Status JoinCluster(const JoinOptions& options) {
  const Result<JoinToken> token = ParseJoinToken(options.token);
  if (!token.ok()) return token.error();
  if (::access(options.key_file.c_str(), F_OK) == 0) {
    const Result<ClientKeys> keys = LoadClientKeys(options.key_file);
    if (!keys.ok()) return keys.error();
    if (keys->head_key == token->head_key) return Status::Ok();
    return Error{ErrorCode::kAlreadyExists, "key file " + options.key_file +
                                                " is of another cluster than the join token; "
                                                "remove it, or name another one"};
  }
  const PeerAddress head{kHeadName, options.endpoint, token->head_key};
  Asking asking;
  if (const Status s = asking.Start(options, token->guest, head); !s.ok()) return s;
  const Time deadline = SteadyClock().Now() + options.limit;
  std::optional<JoinReply> reply = asking.Ask(options, SteadyClock().Now() + kLookAfter);
  LinkState link = LinkState::kOpen;
  while (!reply && SteadyClock().Now() < deadline) {
    link = ProbeLink(token->guest, head, kLookLimit);
    if (link == LinkState::kStranger) {
      return Error{ErrorCode::kPermissionDenied,
                   "what listens at " + options.endpoint +
                       " refuses this join token: it was used, its time is over, or it is of "
                       "another cluster; `troupe token` on a host of the cluster makes a new one"};
    }
    reply = asking.Ask(options, std::min(deadline, SteadyClock().Now() + kLookAfter));
  }
  if (!reply)
    return Error{ErrorCode::kUnavailable, "no head answers at " + options.endpoint + ": " +
                                              ExplainLink(link, options.key_file)};
  if (reply->code != 0) return Error{static_cast<ErrorCode>(reply->code), reply->message};
  return WriteClientKeys(options.key_file, reply->keys);
}

}  // namespace troupe::daemons
