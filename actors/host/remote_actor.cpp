#include "actors/host/remote_actor.h"

#include <utility>

#include "actors/host/placing.h"
#include "runtime/trace.h"

namespace troupe::actors {
namespace {

constexpr size_t kConfirmBytes = 64 << 10;  // A reply so large is confirmed at once.
constexpr Duration kWatchInterval = seconds(1);

void Finish(std::vector<SettledCall> calls) {
  for (SettledCall& call : calls) call.done(std::move(call.result));
}

}  // namespace

RemoteActor::RemoteActor(std::shared_ptr<ActorSystem> system, ActorAddress address)
    : system_(std::move(system)),
      address_(std::move(address)),
      // The clock has run on by more than there can have been calls.
      window_(address_.actor, static_cast<uint64_t>(SteadyClock().Now().ns)) {}

RemoteActor::~RemoteActor() { system_->Forget(address_.actor, followed_); }

void RemoteActor::Begin() {
  if (address_.placed) {
    if (system_->directory_client() != nullptr) return Follow(address_.actor);
    return OnGone(NoCluster());
  }
  if (const Status s = system_->Reach(address_.process); !s.ok()) return OnGone(s.error());
  {
    std::lock_guard lock(mu_);
    window_.Bind(address_.incarnation);
  }
  if (system_->directory_client() != nullptr) Follow(kProcessPrefix + address_.process.peer);
}

void RemoteActor::Follow(const std::string& what) {
  followed_ = what;
  system_->directory_client()->Follow(what);
}

ActorAddress RemoteActor::address() const {
  std::lock_guard lock(mu_);
  return address_;
}

// With mu_ held, so that calls leave in the order of their numbers.
void RemoteActor::Pump(Time now) {
  for (ActorCall& call : window_.TakeSendable(now)) {
    if (trace::On() && !call.method.empty())
      trace::AsyncBegin("call", call.number, {{"actor", call.actor}, {"method", call.method}});
    const uint64_t number = call.number;
    const Status sent =
        system_->transport_->Send(address_.process.peer, wire::Encode(kFrameActorCall, call));
    if (!sent.ok()) window_.OnMissing({number});  // The next sweep tries again.
  }
}

uint64_t RemoteActor::Call(std::string method, std::string arguments, const CallOptions& options,
                           CallDone done) {
  const Time now = SteadyClock().Now();
  std::optional<Error> refusal;
  uint64_t number = 0;
  bool activate = false;
  {
    std::lock_guard lock(mu_);
    if (gone_) {
      refusal = reason_;
    } else if (system_->stopped_.load()) {
      refusal = Error{ErrorCode::kCancelled, "this runtime was shut down"};
    } else if (arguments.size() + method.size() + 4096 > wire::kWireFrameBytesMax) {
      refusal = Error{ErrorCode::kInvalidArgument,
                      "the arguments of " + method + " have " + std::to_string(arguments.size()) +
                          " bytes, over the limit of " + std::to_string(wire::kWireFrameBytesMax) +
                          " for a message; pass them in parts"};
    } else {
      Result<uint64_t> added = window_.Add(CallWindow::Call{
          std::move(method), std::move(arguments), now + options.timeout, options.retry, done});
      if (added.ok()) number = *added;
      if (!added.ok()) refusal = added.error();
      Pump(now);
      activate = !std::exchange(active_, true);
    }
  }
  if (refusal) {
    done(*refusal);
    return 0;
  }
  if (activate) system_->Activate(shared_from_this());
  return number;
}

void RemoteActor::Cancel(uint64_t call, const Cancellation& how) {
  CallWindow::GivenUp given_up;
  std::string peer;
  {
    std::lock_guard lock(mu_);
    given_up = window_.Cancel(call, Error{ErrorCode::kCancelled, "cancelled by its caller"});
    peer = address_.process.peer;
  }
  if (given_up.tell) {
    (void)system_->transport_->Send(
        peer, wire::Encode(kFrameActorCancel,
                           ActorCancel{address_.actor, call, how.force, how.recursive}));
  }
  if (given_up.settled) given_up.settled->done(std::move(given_up.settled->result));
}

void RemoteActor::OnReply(const std::string& from, ActorReply reply) {
  std::optional<SettledCall> settled;
  if (trace::On())
    trace::AsyncEnd("call", reply.number, {{"code", int64_t{reply.error.empty() ? 0 : 1}}});
  const bool confirm = reply.confirm || reply.value.size() > kConfirmBytes;
  {
    std::lock_guard lock(mu_);
    if (from != address_.process.peer) return;
    settled = window_.OnReply(std::move(reply));
    Pump(SteadyClock().Now());
    if (confirm) {
      const ActorCheck check{address_.actor, window_.incarnation(), window_.base(), {}};
      (void)system_->transport_->Send(address_.process.peer, wire::Encode(kFrameActorCheck, check));
    }
  }
  if (settled) settled->done(std::move(settled->result));
}

void RemoteActor::OnMissing(const std::string& from, const ActorMissing& missing) {
  std::lock_guard lock(mu_);
  if (from != address_.process.peer) return;
  window_.OnMissing(missing.numbers);
  Pump(SteadyClock().Now());
}

void RemoteActor::OnFull(const std::string& from, const ActorFull& full) {
  std::lock_guard lock(mu_);
  if (from != address_.process.peer) return;
  window_.OnFull(SteadyClock().Now(), full.number);
}

void RemoteActor::OnRoom(const std::string& from) {
  std::lock_guard lock(mu_);
  if (from != address_.process.peer) return;
  window_.OnRoom();
  Pump(SteadyClock().Now());
}

void RemoteActor::OnWhereabouts(const ActorLocation& whereabouts) {
  const Error reason = whereabouts.reason.empty()
                           ? Error{ErrorCode::kPeerGone, "the actor has ended"}
                           : FromChain(whereabouts.reason);
  if (whereabouts.state == ActorState::kDead) return OnGone(reason);
  const bool alive = whereabouts.state == ActorState::kAlive;
  if (alive) {
    if (const Status s = system_->Reach(whereabouts.process); !s.ok()) return OnGone(s.error());
  }
  std::vector<SettledCall> failed;
  {
    std::lock_guard lock(mu_);
    const bool same = window_.bound() && window_.incarnation() == whereabouts.incarnation;
    if (gone_ || whereabouts.incarnation < address_.incarnation || same) return;
    address_.incarnation = whereabouts.incarnation;
    why_not_ = std::string(ActorStateName(whereabouts.state)) +
               (whereabouts.reason.empty() ? "" : ": " + reason.message);
    room_reason_ = whereabouts.state == ActorState::kPending && !whereabouts.reason.empty()
                       ? reason.message
                       : "";
    if (window_.bound()) failed = window_.Unbind(reason, false);
    if (alive) {
      address_.process = whereabouts.process;
      window_.Bind(whereabouts.incarnation);
      Pump(SteadyClock().Now());
    }
  }
  Finish(std::move(failed));
}

void RemoteActor::OnGone(const Error& reason) {
  std::vector<SettledCall> failed;
  std::map<uint64_t, OnDown> monitors;
  {
    std::lock_guard lock(mu_);
    if (std::exchange(gone_, true)) return;
    reason_ = Error{reason.code == ErrorCode::kOk ? ErrorCode::kPeerGone : reason.code,
                    reason.message, reason.origin};
    failed = window_.Unbind(reason_, true);
    monitors.swap(monitors_);
  }
  for (SettledCall& call : failed) {
    // A code such as kUserError (its constructor threw) says more than that it is gone.
    if (reason_.code != ErrorCode::kPeerGone && !call.result.ok())
      call.result = Error{reason_.code, call.result.error().message, reason_.origin};
  }
  Finish(std::move(failed));
  for (const auto& [id, down] : monitors) down(reason_);
}

bool RemoteActor::Sweep(Time now) {
  std::vector<SettledCall> late;
  bool open = false;
  {
    std::lock_guard lock(mu_);
    late = window_.Sweep(now, why_not_);
    if (std::optional<ActorCheck> check = window_.TakeCheck(now)) {
      (void)system_->transport_->Send(address_.process.peer,
                                      wire::Encode(kFrameActorCheck, *check));
    }
    Pump(now);
    WatchAgain();
    open = window_.open() > 0 || (!monitors_.empty() && !address_.placed);
    active_ = open;
  }
  Finish(std::move(late));
  return open;
}

// With mu_ held. Of a placed actor the directory tells.
void RemoteActor::WatchAgain() {
  const Time now = SteadyClock().Now();
  if (monitors_.empty() || address_.placed || gone_ || now < watch_at_) return;
  watch_at_ = now + kWatchInterval;
  (void)system_->transport_->Send(address_.process.peer,
                                  wire::Encode(kFrameActorWatch, ActorWatch{address_.actor, true}));
}

std::string RemoteActor::WhyNot() const {
  std::lock_guard lock(mu_);
  return gone_ ? reason_.message : window_.bound() ? "" : why_not_;
}

std::string RemoteActor::RoomReason() const {
  std::lock_guard lock(mu_);
  return gone_ ? "" : room_reason_;
}

uint64_t RemoteActor::Monitor(OnDown down) {
  uint64_t id = 0;
  bool activate = false;
  std::optional<Error> gone;
  {
    std::lock_guard lock(mu_);
    if (gone_) {
      gone = reason_;
    } else {
      id = next_monitor_++;
      monitors_.emplace(id, down);
      watch_at_ = Time{};
      WatchAgain();
      activate = !address_.placed && !std::exchange(active_, true);
    }
  }
  if (gone) down(*gone);
  if (activate) system_->Activate(shared_from_this());
  return id;
}

void RemoteActor::Demonitor(uint64_t monitor) {
  std::lock_guard lock(mu_);
  monitors_.erase(monitor);
  if (!monitors_.empty() || address_.placed) return;
  (void)system_->transport_->Send(
      address_.process.peer, wire::Encode(kFrameActorWatch, ActorWatch{address_.actor, false}));
}

void RemoteActor::Kill(bool restart, const std::string& reason, CallDone done) {
  const ActorAddress address = this->address();
  if (address.placed) {
    if (system_->directory_client() == nullptr) return done(NoCluster());
    if (restart)
      return system_->directory_client()->Kill(address.actor, true, reason, std::move(done));
    // Its process may answer for some milliseconds more; who has ended it is not to hear that.
    return system_->directory_client()->Kill(
        address.actor, false, reason,
        [self = shared_from_this(), reason, done = std::move(done)](Result<std::string> ended) {
          if (ended.ok()) self->OnGone(Error{ErrorCode::kPeerGone, reason});
          done(std::move(ended));
        });
  }
  const Pack<std::string, std::string> arguments{{address.actor, reason}};
  system_->Refer(ActorSystem::HostOf(address.process))
      ->Call("end", wire::Encode(kArgumentsType, arguments), CallOptions{}, std::move(done));
}

}  // namespace troupe::actors
