#include "collective_groups/membership/member.h"

#include <algorithm>

namespace troupe::groups {

const char* MemberStateName(MemberState state) {
  static constexpr const char* kNames[] = {"idle",   "ready",  "leaving", "prepared",
                                           "linked", "active", "finished"};
  return kNames[static_cast<size_t>(state)];
}

namespace {

// A member can be ahead of one that has joined by a few broadcasts, which wait for nobody.
constexpr size_t kRecentMax = 8;
// A user's thread is mostly out of its epoch before that, and what the member is then says more.
constexpr Duration kLeavingSaid = milliseconds(20);

std::vector<LinkPeer> PeersOf(const Command& command) {
  std::vector<LinkPeer> peers;
  for (size_t i = 0; i < command.relink.size(); ++i) {
    const bool known = i < command.memories.size();
    peers.push_back({command.relink[i], known ? command.memories[i] : ""});
  }
  return peers;
}

}  // namespace

Member::Member(MemberOptions options, Time now)
    : options_(std::move(options)), now_(now), next_beat_(now) {}

std::vector<MemberAction> Member::Step(Time now, const MemberEvent& event) {
  now_ = now;
  out_.clear();
  if (const auto* e = std::get_if<UserReady>(&event)) {
    OnUserReady(*e);
  } else if (std::holds_alternative<UserBoundary>(event)) {
    OnUserBoundary();
  } else if (const auto* e = std::get_if<UserVersion>(&event)) {
    version_ = e->version;
    has_state_ = true;
  } else if (std::holds_alternative<UserFinished>(event)) {
    if (waiting_) AnswerBoundary(false);
    parked_ = false;
    // Who was sent away returns as well, and that is not the end of the group.
    if (!expelled_) state_ = MemberState::kFinished;
    SendNow();
  } else if (const auto* e = std::get_if<CommunicatorBroke>(&event)) {
    const bool mine =
        e->epoch == epoch_ && (state_ == MemberState::kActive || state_ == MemberState::kLinked);
    if (mine && !broken_) {
      broken_ = true;
      problem_ = e->problem;
      if (left_at_ == Time::Never()) left_at_ = now_;
      Abort();
      if (waiting_) StopAtBoundary();
      SendNow();
    }
  } else if (const auto* e = std::get_if<OffersMade>(&event)) {
    OnOffersMade(*e);
  } else if (const auto* e = std::get_if<EpochLinked>(&event)) {
    if (state_ == MemberState::kPrepared && e->epoch == epoch_) {
      broken_ = !e->problem.empty();
      problem_ = e->problem;
      unreachable_ = e->unreachable;
      if (!broken_) state_ = MemberState::kLinked;
      broken_ || !at_once_ ? SendNow() : Activate();
    }
  } else if (const auto* e = std::get_if<PrelinkOffered>(&event)) {
    const auto it = prelinks_.find(e->slot);
    if (it != prelinks_.end() && it->second.attempt == e->attempt && !e->address.empty()) {
      it->second.mine = e->address;
      TryLinkAhead(e->slot, it->second);
      SendNow();
    }
  } else if (const auto* e = std::get_if<PrelinkDone>(&event)) {
    const auto it = prelinks_.find(e->slot);
    if (it != prelinks_.end() && it->second.attempt == e->attempt && e->ok) {
      it->second.linked = true;
      SendNow();
    }
  } else if (const auto* e = std::get_if<CommandReceived>(&event)) {
    OnCommand(e->command);
  } else if (const auto* e = std::get_if<OperationBegan>(&event)) {
    OnOperation(*e);
  } else if (const auto* e = std::get_if<OperationEnded>(&event)) {
    if (e->epoch == epoch_ && e->sequence == progress_.sequence) {
      blocked_ = false;
      slow_at_ = Time::Never();
    }
  } else {
    OnTick();
  }
  return std::move(out_);
}

Time Member::NextDeadline() const { return std::min({next_beat_, wait_deadline_, slow_at_}); }

void Member::OnOperation(const OperationBegan& e) {
  if (e.epoch != epoch_ || state_ != MemberState::kActive) return;
  if (progress_.sequence != 0) recent_.push_back(std::move(progress_));
  if (recent_.size() > kRecentMax) recent_.erase(recent_.begin());
  progress_ = e.progress;
  blocked_ = true;
  slow_at_ = now_ + options_.slow_operation;
  if (eager_ || progress_.joined) SendNow();
}

void Member::OnUserReady(const UserReady& e) {
  version_ = e.version;
  has_state_ = e.has_state;
  founder_ = e.founder;
  if (expelled_ || state_ == MemberState::kFinished) return;
  if (state_ ==
      MemberState::kActive) {  // The user's code gave the epoch up on its own: free the others too.
    if (left_at_ == Time::Never()) left_at_ = now_;
    Abort();
  }
  parked_ = true;
  if (state_ == MemberState::kIdle || state_ == MemberState::kActive ||
      state_ == MemberState::kLeaving) {
    state_ = MemberState::kReady;
  }
  if (prepare_ && prepare_->epoch > epoch_) {
    StartOffers();
  } else {
    SendNow();
  }
}

void Member::OnOffersMade(const OffersMade& e) {
  if (!prepare_ || e.epoch != prepare_->epoch || e.epoch != offering_ || !parked_) return;
  offering_ = 0;
  state_ = MemberState::kPrepared;
  epoch_ = e.epoch;
  offers_ = e.offers;
  unreachable_.clear();
  linking_ = false;
  // Who plans takes the links of the epoch before for clean.
  const bool spoilt = aborted_ && prepare_->planned;
  problem_ = e.problem.empty() && spoilt ? "the epoch before was cut short" : e.problem;
  broken_ = !problem_.empty();
  SendNow();
}

void Member::OnUserBoundary() {
  if (state_ != MemberState::kActive || broken_) {
    out_.emplace_back(BoundaryAnswer{true});
    return;
  }
  ++boundary_;
  if (!plan_accepted_ || boundary_ != plan_boundary_) {
    out_.emplace_back(BoundaryAnswer{false});
    return;
  }
  waiting_ = true;
  if (left_at_ == Time::Never()) left_at_ = now_;
  if (stop_confirmed_) {
    StopAtBoundary();
  } else {
    wait_deadline_ = now_ + options_.boundary_wait;
    SendNow();
  }
}

void Member::OnCommand(const Command& command) {
  // The answer to a late report of an earlier membership of this process.
  const bool of_another = command.kind == CommandKind::kExpel && command.plan != 0 &&
                          command.plan != options_.id.incarnation;
  if (of_another) return;
  if (expelled_ || state_ == MemberState::kFinished) {
    // A late command for a finished member is answered with its final state; being sent away is
    // not, or the two would go on answering each other.
    if (command.kind == CommandKind::kExpel) return OnExpel(command);
    return SendNow();
  }
  switch (command.kind) {
    case CommandKind::kPlan:
      OnPlan(command);
      break;
    case CommandKind::kPrepare:
      OnPrepare(command);
      break;
    case CommandKind::kInstall:
      OnInstall(command);
      break;
    case CommandKind::kActivate:
      OnActivate(command);
      break;
    case CommandKind::kHalt:
      OnHalt(command);
      break;
    case CommandKind::kExpel:
      OnExpel(command);
      break;
    case CommandKind::kPrelink:
      OnPrelink(command);
      break;
    case CommandKind::kLeave:
      OnLeave(command);
      break;
    case CommandKind::kBuildFirst:
      OnBuildFirst();
      break;
    case CommandKind::kCancelPrelink:
      OnCancelPrelink(command);
      break;
    case CommandKind::kFail:
      OnFail(command.epoch, command.reason);
      break;
    case CommandKind::kAssist:
      OnAssist(command);
      break;
  }
}

void Member::OnInstall(const Command& command) {
  if (command.epoch != epoch_) return;
  if (state_ == MemberState::kPrepared && !linking_) {
    linking_ = true;
    at_once_ = command.at_once;
    view_ = command.view;
    out_.emplace_back(LinkEpoch{command.view, command.offers});
  } else if (state_ == MemberState::kLinked || state_ == MemberState::kActive) {
    SendNow();
  }
}

void Member::OnActivate(const Command& command) {
  if (command.epoch == epoch_ && state_ == MemberState::kLinked && !broken_) Activate();
}

void Member::Activate() {
  state_ = MemberState::kActive;
  aborted_ = false;
  eager_ = false;
  recent_.clear();
  parked_ = false;
  founder_ = false;
  boundary_ = 0;
  plan_accepted_ = false;
  stop_confirmed_ = false;
  prepare_.reset();
  offers_.clear();
  prelinks_.clear();
  progress_ = Progress{};
  blocked_ = false;
  slow_at_ = Time::Never();
  pause_ = left_at_ == Time::Never() ? Duration::zero() : now_ - left_at_;
  left_at_ = Time::Never();
  out_.emplace_back(Activated{view_, pause_});
  SendNow();
}

void Member::OnPlan(const Command& command) {
  if (state_ != MemberState::kActive || command.epoch != epoch_ || command.plan < plan_) return;
  if (command.plan > plan_) {
    plan_ = command.plan;
    plan_boundary_ = command.boundary;
    plan_accepted_ = command.boundary > boundary_ && !broken_;
    stop_confirmed_ = false;
    if (waiting_)
      AnswerBoundary(false);  // The plan it waited for is void; the new boundary, if any, is ahead.
  }
  SendNow();
}

void Member::OnPrepare(const Command& command) {
  if (command.epoch < epoch_ || (prepare_ && command.epoch < prepare_->epoch)) return;
  if (command.epoch == epoch_ && state_ != MemberState::kReady && state_ != MemberState::kLeaving) {
    SendNow();
    return;
  }
  if (command.failed != 0) OnFail(command.failed, command.verdict);
  const bool repeated = prepare_ && prepare_->epoch == command.epoch;
  prepare_ = command;
  if (command.planned && state_ == MemberState::kActive) {
    if (plan_accepted_ && command.plan == plan_) {
      stop_confirmed_ = true;
      if (waiting_) StopAtBoundary();
    } else {
      SendNow();
    }
    return;
  }
  if (!command.planned) prelinks_.clear();
  if (state_ == MemberState::kActive) {
    LeaveAtOnce();
  } else if (parked_ && !(repeated && offering_ == command.epoch)) {
    StartOffers();
  }
}

void Member::OnHalt(const Command& command) {
  if (command.epoch < epoch_) return;
  if (command.failed != 0) OnFail(command.failed, command.verdict);
  if (prepare_ && prepare_->epoch <= command.epoch) prepare_.reset();
  prelinks_.clear();
  offering_ = 0;
  if (state_ == MemberState::kActive) {
    LeaveAtOnce();
  } else if (state_ == MemberState::kPrepared || state_ == MemberState::kLinked) {
    if (state_ == MemberState::kLinked) Abort();
    state_ = MemberState::kReady;
    SendNow();
  }
}

void Member::OnLeave(const Command& command) {
  if (state_ != MemberState::kActive || command.epoch != epoch_) return;
  if (plan_accepted_ && command.plan == plan_) {
    stop_confirmed_ = true;
    if (waiting_) StopAtBoundary();
  } else {
    SendNow();
  }
}

void Member::OnPrelink(const Command& command) {
  for (const LinkPeer& peer : PeersOf(command)) {
    PrelinkState& state = prelinks_[peer.slot];
    if (state.attempt >= command.plan) continue;
    // A link to who had the slot before would hold up this one.
    if (state.linking && !state.linked) out_.emplace_back(CancelPrelink{peer.slot});
    state = PrelinkState{};
    state.attempt = command.plan;
    out_.emplace_back(MakePrelink{command.slot, peer, command.plan});
  }
  for (const LinkOffer& offer : command.offers) {
    const auto it = prelinks_.find(offer.slot);
    if (it == prelinks_.end() || it->second.attempt != offer.attempt) continue;
    it->second.theirs = offer.address;
    TryLinkAhead(offer.slot, it->second);
  }
}

void Member::OnCancelPrelink(const Command& command) {
  for (const uint32_t slot : command.relink) {
    const auto it = prelinks_.find(slot);
    if (it == prelinks_.end() || it->second.attempt > command.plan) continue;
    prelinks_.erase(it);
    out_.emplace_back(CancelPrelink{slot});
  }
}

// The verdict of the coordinator on the epoch we are in. Its links carried half an operation, so
// the epoch counts as broken.
void Member::OnAssist(const Command& command) {
  if (state_ != MemberState::kActive || command.epoch != epoch_) return;
  if (command.progress.sequence != 0) {
    out_.emplace_back(Assist{command.progress});
  } else if (!eager_) {
    eager_ = true;
    SendNow();
  }
}

void Member::OnFail(Epoch epoch, const std::string& reason) {
  if (state_ != MemberState::kActive || epoch != epoch_) return;
  if (failed_ != epoch_) {
    failed_ = epoch_;
    broken_ = aborted_ = true;
    problem_ = reason;
    if (left_at_ == Time::Never()) left_at_ = now_;
    out_.emplace_back(FailOperations{epoch_, reason});
    if (waiting_) StopAtBoundary();
  }
  SendNow();
}

void Member::OnBuildFirst() {
  if (state_ != MemberState::kReady || !founder_ || !parked_ || prepare_) return;
  state_ = MemberState::kIdle;
  parked_ = false;
  founder_ = false;
  out_.emplace_back(TooLateToFound{});
  SendNow();
}

void Member::OnExpel(const Command& command) {
  if (expelled_) return;
  expelled_ = true;
  if (state_ == MemberState::kActive) Abort();
  if (waiting_) AnswerBoundary(true);
  out_.emplace_back(Expelled{command.expel, command.reason});
}

void Member::OnTick() {
  if (waiting_ && now_ >= wait_deadline_) {
    // Nobody confirmed: the coordinator may be away, and training does not need it.
    plan_accepted_ = false;
    AnswerBoundary(false);
    SendNow();
  }
  const bool slow = now_ >= slow_at_;
  if (slow) slow_at_ = Time::Never();  // Once per operation.
  if (slow || now_ >= next_beat_) SendNow();
}

// Leaves the active epoch by abort; the user's thread comes out through its failing collective.
void Member::LeaveAtOnce() {
  if (left_at_ == Time::Never()) left_at_ = now_;
  Abort();
  state_ = MemberState::kLeaving;
  if (waiting_) AnswerBoundary(true);
  next_beat_ = std::min(next_beat_, now_ + kLeavingSaid);
}

void Member::Abort() {
  aborted_ = true;
  out_.emplace_back(AbortEpoch{epoch_});
}

void Member::StopAtBoundary() {
  state_ = MemberState::kLeaving;
  AnswerBoundary(true);
}

void Member::AnswerBoundary(bool stop) {
  waiting_ = false;
  wait_deadline_ = Time::Never();
  if (!stop) left_at_ = Time::Never();
  out_.emplace_back(BoundaryAnswer{stop});
}

void Member::StartOffers() {
  offering_ = prepare_->epoch;
  out_.emplace_back(MakeOffers{prepare_->epoch, prepare_->slot, PeersOf(*prepare_)});
}

void Member::TryLinkAhead(uint32_t slot, PrelinkState& state) {
  if (state.linking || state.mine.empty() || state.theirs.empty()) return;
  state.linking = true;
  out_.emplace_back(LinkAhead{slot, state.attempt, state.theirs});
}

void Member::SendNow() {
  next_beat_ = now_ + options_.beat;
  Report r;
  r.id = options_.id;
  r.sequence = ++sequence_;
  r.host = options_.host;
  r.memory = options_.memory;
  r.state = state_;
  r.epoch = epoch_;
  r.newest = newest_ = std::max({newest_, epoch_, prepare_ ? prepare_->epoch : 0});
  r.version = version_;
  r.has_state = has_state_;
  r.founder = founder_;
  r.broken = broken_;
  r.problem = problem_;
  if (broken_ && state_ == MemberState::kPrepared) r.unreachable = unreachable_;
  r.boundary = boundary_;
  r.plan = plan_;
  r.plan_accepted = plan_accepted_;
  r.pause_us = static_cast<uint64_t>(std::chrono::duration_cast<microseconds>(pause_).count());
  // Until all are linked: somebody's Install may have been lost.
  if (state_ == MemberState::kPrepared || state_ == MemberState::kLinked) r.offers = offers_;
  for (const auto& [slot, link] : prelinks_) {
    if (!link.mine.empty()) r.prelinks.push_back({slot, link.attempt, link.mine});
    if (link.linked) r.linked.push_back({slot, link.attempt, ""});
  }
  r.progress = progress_;
  r.blocked = blocked_;
  if (eager_ || blocked_) r.recent = recent_;
  out_.emplace_back(SendReport{std::move(r)});
}

}  // namespace troupe::groups
