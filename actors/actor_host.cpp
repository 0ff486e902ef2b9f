#include "actors/actor_host.h"

#include <algorithm>

#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"

namespace troupe::actors {
namespace {

Error Stopping() { return Error{ErrorCode::kPeerGone, "the actor is stopping"}; }

}  // namespace

ActorHost::ActorHost(Transport* transport, std::unique_ptr<Instance> instance,
                     const ActorBlueprint& blueprint)
    : transport_(transport),
      instance_(std::move(instance)),
      max_concurrency_(std::clamp(blueprint.max_concurrency, 1U, kMaxConcurrencyMax)),
      mailbox_depth_(std::clamp<size_t>(blueprint.mailbox_depth, 1, kMailboxDepthMax)),
      executor_({"actor", 1,
                 [](const std::string& what) { LogError("an exception left a fiber: ", what); }}) {}

ActorHost::~ActorHost() { (void)Stop(seconds(5)); }

void ActorHost::OnFrame(const std::string& from, const std::string& frame) {
  Result<ActorCall> call = wire::Decode<ActorCall>(kFrameActorCall, frame);
  if (!call.ok()) {
    LogWarning("dropped a call from ", from, ": ", call.error().message);
    return;
  }
  bool start = false;
  {
    std::lock_guard lock(mu_);
    if (stopping_ || mailbox_.size() >= mailbox_depth_) {
      metrics::Add(metrics::Id::kMailboxRejects);
      const Error refusal = stopping_ ? Stopping()
                                      : Error{ErrorCode::kBackpressure,
                                              "the actor's mailbox is full; call it again later"};
      return Answer(from, call->id, refusal);
    }
    mailbox_.push_back({from, std::move(*call)});
    metrics::Add(metrics::Id::kMailboxDepth);
    start = running_ < max_concurrency_;
    if (start) ++running_;
  }
  if (start) (void)executor_.Spawn(0, [this] { Drain(); });
}

// A fiber takes calls until there are none; as many fibers run as there may be calls at once.
void ActorHost::Drain() {
  for (;;) {
    Waiting next;
    {
      std::lock_guard lock(mu_);
      if (mailbox_.empty()) {
        --running_;
        return;
      }
      next = std::move(mailbox_.front());
      mailbox_.pop_front();
      metrics::Add(metrics::Id::kMailboxDepth, -1);
      metrics::Add(metrics::Id::kActorCalls);
    }
    // Calls on several fibers overlap, so they are told apart by where their `next` lies.
    const auto id = reinterpret_cast<uint64_t>(&next);
    if (trace::On()) trace::AsyncBegin(next.call.method, id, {{"caller", next.from}});
    const Result<std::string> result = instance_->Invoke(next.call.method, next.call.arguments);
    if (trace::On()) trace::AsyncEnd(next.call.method, id);
    Answer(next.from, next.call.id, result);
  }
}

void ActorHost::Answer(const std::string& to, uint64_t id, const Result<std::string>& result) {
  ActorReply reply{id, 0, "", ""};
  if (result.ok()) {
    reply.value = *result;
  } else {
    reply.code = static_cast<uint8_t>(result.error().code);
    reply.message = result.error().message;
  }
  (void)transport_->Send(to, wire::Encode(kFrameActorReply, reply));
}

Status ActorHost::Stop(Duration limit) {
  std::deque<Waiting> left;
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    left.swap(mailbox_);
  }
  for (const Waiting& waiting : left) Answer(waiting.from, waiting.call.id, Stopping());
  return executor_.Stop(limit);
}

}  // namespace troupe::actors
