#include "daemons/head/core/join_tokens.h"

#include <algorithm>
#include <utility>

#include "daemons/head/core/read_record.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr size_t kPublicKeyBytes = 40;

}  // namespace

// A used token has no record. An unused one gets its full time again: clocks differ.
void JoinTokens::Restore(const std::map<std::string, std::string>& records) {
  for (const auto& [name, bytes] : records) {
    const auto guest = ReadRecord<AdmitGuest>(*queue_, kFrameAdmitGuest, name, bytes);
    if (!guest) continue;
    tokens_[guest->key] = {guest->node, queue_->now() + milliseconds(guest->valid_ms), ""};
    queue_->Put(step::LetGuest{guest->key, true});
  }
}

Status JoinTokens::Admit(const AdmitGuest& guest) {
  if (keys_.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "this cluster is of one host, so that nothing can join it; `troupe start --head`, "
                 "or head.listen in a cluster file, makes one that others can join"};
  }
  if (guest.key.size() != kPublicKeyBytes)
    return Error{ErrorCode::kInvalidArgument, "this is no public key"};
  if (tokens_.contains(guest.key)) return Status::Ok();
  if (tokens_.size() >= kJoinTokensMax) {
    return Error{ErrorCode::kResourceExhausted,
                 "there are " + std::to_string(kJoinTokensMax) +
                     " join tokens that nobody has used; some end with their time"};
  }
  const auto most = static_cast<uint64_t>(kJoinTokenLimit / milliseconds(1));
  Token& token = tokens_[guest.key];
  token.node = guest.node;
  token.until = queue_->now() + milliseconds(std::min(guest.valid_ms, most));
  Keep(guest.key, token);
  queue_->Put(step::LetGuest{guest.key, true});
  return Status::Ok();
}

void JoinTokens::OnGuest(const std::string& from, const std::string& key,
                         const std::string& frame) {
  const Result<JoinRequest> request = wire::Decode<JoinRequest>(kFrameJoinRequest, frame);
  if (!request.ok()) return;  // It may say nothing else.
  queue_->Put(step::Send{from, wire::Encode(kFrameJoinReply, Use(from, key, *request))});
}

JoinReply JoinTokens::Use(const std::string& from, const std::string& key,
                          const JoinRequest& request) {
  const auto refuse = [](const std::string& why) {
    return JoinReply{static_cast<uint8_t>(ErrorCode::kPermissionDenied),
                     "this join token " + why + "; `troupe token` makes another one", ""};
  };
  const auto found = tokens_.find(key);
  if (found == tokens_.end() || queue_->now() >= found->second.until)
    return refuse("was used before, or its time is over");
  Token& token = found->second;
  if (!token.node.empty() && token.node != request.node)
    return refuse("is for the node " + token.node + ", not for " + request.node);
  if (!token.user.empty() && token.user != from) {
    queue_->Warn("a join token of ", request.node, " was used twice, by ", token.user, " and by ",
                 from, ", which was refused: somebody may have stolen it");
    return refuse("was used before");
  }
  if (token.user.empty()) {
    token.user = from;
    token.until = std::min(token.until, queue_->now() + kJoinRepeat);
    queue_->Note("node ", request.node, " has fetched the cluster's keys with a join token");
    queue_->Put(step::Keep{kJoinTokenRecords + key, ""});
  }
  return {0, "", keys_};
}

void JoinTokens::OnTick() {
  for (auto it = tokens_.begin(); it != tokens_.end();) {
    if (queue_->now() < it->second.until) {
      ++it;
      continue;
    }
    queue_->Put(step::LetGuest{it->first, false});
    if (it->second.user.empty()) queue_->Put(step::Keep{kJoinTokenRecords + it->first, ""});
    it = tokens_.erase(it);
  }
}

void JoinTokens::RefreshKeys() const {
  for (const auto& [key, token] : tokens_) {
    if (token.user.empty()) Keep(key, token);
  }
}

void JoinTokens::Keep(const std::string& key, const Token& token) const {
  const auto left =
      static_cast<uint64_t>(std::max<int64_t>(0, (token.until - queue_->now()) / milliseconds(1)));
  queue_->Put(step::Keep{kJoinTokenRecords + key,
                         wire::Encode(kFrameAdmitGuest, AdmitGuest{0, key, token.node, left})});
}

}  // namespace troupe::daemons
