#include "actors/actor_client.h"

#include "actors/protocol.h"
#include "runtime/trace.h"

namespace troupe::actors {
namespace {

constexpr Duration kSweepInterval = milliseconds(20);

}  // namespace

ActorClient::ActorClient(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
  transport_->SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  transport_->loop().Post([this] { Sweep(); });
}

ActorClient::~ActorClient() {
  transport_->Stop();
  std::map<uint64_t, Pending> left;
  {
    std::lock_guard lock(mu_);
    left.swap(pending_);
  }
  for (auto& [id, call] : left) call.done(Error{ErrorCode::kCancelled, "the caller shut down"});
}

void ActorClient::Call(const std::string& actor, const std::string& method, std::string arguments,
                       Duration timeout, const Callback& done) {
  std::optional<Error> refusal;
  uint64_t id = 0;
  {
    std::lock_guard lock(mu_);
    if (const auto it = lost_.find(actor); it != lost_.end()) {
      refusal = Error{ErrorCode::kPeerGone, it->second};
    } else if (pending_.size() >= kCallsInFlightMax) {
      refusal = Error{ErrorCode::kBackpressure, "too many calls in flight"};
    } else {
      id = next_id_++;
      pending_.emplace(id, Pending{actor, done, transport_->loop().Now() + timeout});
    }
  }
  if (refusal) return done(*refusal);
  if (trace::On()) trace::AsyncBegin("call", id, {{"actor", actor}, {"method", method}});
  const Status sent = transport_->Send(
      actor, wire::Encode(kFrameActorCall, ActorCall{id, method, std::move(arguments)}));
  if (sent.ok()) return;
  Pending call;
  {
    std::lock_guard lock(mu_);
    const auto it = pending_.find(id);
    if (it == pending_.end()) return;
    call = std::move(it->second);
    pending_.erase(it);
  }
  call.done(sent.error());
}

void ActorClient::OnFrame(const std::string& frame) {
  Result<ActorReply> reply = wire::Decode<ActorReply>(kFrameActorReply, frame);
  if (!reply.ok()) return;
  Pending call;
  {
    std::lock_guard lock(mu_);
    const auto it = pending_.find(reply->id);
    if (it == pending_.end()) return;  // It timed out before.
    call = std::move(it->second);
    pending_.erase(it);
  }
  if (trace::On()) trace::AsyncEnd("call", reply->id, {{"code", int64_t{reply->code}}});
  if (reply->code != 0)
    return call.done(Error{static_cast<ErrorCode>(reply->code), reply->message});
  call.done(std::move(reply->value));
}

void ActorClient::Lost(const std::string& actor, const std::string& why) {
  std::vector<Pending> calls;
  {
    std::lock_guard lock(mu_);
    lost_[actor] = why;
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.actor != actor) {
        ++it;
        continue;
      }
      calls.push_back(std::move(it->second));
      it = pending_.erase(it);
    }
  }
  for (Pending& call : calls) call.done(Error{ErrorCode::kPeerGone, why});
}

void ActorClient::Sweep() {
  const Time now = transport_->loop().Now();
  std::vector<Pending> late;
  {
    std::lock_guard lock(mu_);
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.deadline > now) {
        ++it;
        continue;
      }
      late.push_back(std::move(it->second));
      it = pending_.erase(it);
    }
  }
  for (Pending& call : late)
    call.done(
        Error{ErrorCode::kDeadlineExceeded, "the actor did not answer within the call's deadline"});
  transport_->loop().CallAfter(kSweepInterval, [this] { Sweep(); });
}

}  // namespace troupe::actors
