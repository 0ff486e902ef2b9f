#include "tests/sim/sim_member.h"

#include <algorithm>

#include "runtime/wire.h"
#include "tests/sim/sim_head.h"

namespace troupe::groups::sim {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ULL + 0x9e3779b97f4a7c15ULL;
}

std::string HostOf(const SimOptions& options, const MemberId& id) {
  return "host" + std::to_string(id.incarnation % static_cast<uint64_t>(options.hosts));
}

// On hosts of their own memory, on one host, or on hosts without.
std::string MemoryOf(const SimOptions& options, const MemberId& id) {
  if (options.seed % 3 == 0) return "";
  return options.seed % 3 == 1 ? "memory" : "memory of " + HostOf(options, id);
}

}  // namespace

SimMember::SimMember(World* world, const MemberId& id, bool carries)
    : world_(world),
      id_(id),
      transport_(world->network_.MakeTransport(id.ToString())),
      core_(MemberOptions{id, host(), memory()}, world->Now()),
      carries_(carries) {
  state_.hash = id.incarnation;  // Until it is told, everybody has another model.
  transport_->SetHandler(
      [this](const std::string&, std::string frame) { Receive(std::move(frame)); });
  Feed(MemberTick{});
  Later(world_->Between(microseconds(100), milliseconds(30)), [this] {
    const std::vector<SimState>& known = world_->committed_;
    carries_ = carries_ && !known.empty();
    if (carries_) {
      state_ = known[static_cast<size_t>(world_->Uniform() * static_cast<double>(known.size()))];
      ++world_->result_.carriers;
    }
    Feed(UserReady{state_.version, state_.has_state, !carries_ && world_->Uniform() < 0.5});
  });
}

void SimMember::Later(Duration delay, std::function<void()> fn) {
  transport_->loop().CallAfter(delay, [this, fn = std::move(fn)] {
    if (!alive_) return;
    if (paused_) {
      held_.push_back(fn);
    } else {
      fn();
    }
  });
}

void SimMember::Pause(bool paused) {
  paused_ = paused;
  if (paused) return;
  std::deque<std::function<void()>> held;
  held.swap(held_);
  for (auto& fn : held) {
    if (alive_) fn();
  }
}

void SimMember::Receive(std::string frame) {
  if (!alive_) return;
  if (paused_) {
    held_.push_back([this, frame = std::move(frame)] { Receive(frame); });
    return;
  }
  const Result<Command> command = wire::Decode<Command>(kCommandFrame, frame);
  if (!command.ok()) return world_->Fail("wire: " + command.error().message);
  OnCommand(*command);
}

void SimMember::OnCommand(const Command& command) {
  const bool inside = core_.state() == MemberState::kActive;
  const Epoch before = core_.epoch();
  Feed(CommandReceived{command});
  const bool out = command.kind == CommandKind::kHalt ||
                   (command.kind == CommandKind::kPrepare && !command.planned);
  if (!inside || !out || core_.state() == MemberState::kActive || failed_ == before) return;
  const auto verdict = world_->verdicts_.find(before);
  if (verdict != world_->verdicts_.end() && verdict->second == world_->OnlyHead()) {
    world_->Fail("GM-11: " + id_.ToString() + " left a failed epoch without the verdict");
  }
}

void SimMember::Feed(const MemberEvent& event) {
  if (!alive_ || expelled_) return;
  const auto actions = core_.Step(world_->Now(), event);
  if (core_.state() == MemberState::kPrepared) world_->prepared_.insert({id_, core_.epoch()});
  for (const MemberAction& action : actions) Handle(action);
  ArmTimer();
}

void SimMember::ArmTimer() {
  transport_->loop().Cancel(timer_);
  timer_ = transport_->loop().CallAt(core_.NextDeadline(), [this] {
    if (!alive_) return;
    if (paused_) {
      held_.push_back([this] { Feed(MemberTick{}); });
    } else {
      Feed(MemberTick{});
    }
  });
}

void SimMember::Handle(const MemberAction& action) {
  if (const auto* a = std::get_if<SendReport>(&action)) {
    Report report = a->report;  // A step that is not over has moved what it had.
    const bool hosts = std::any_of(view_.members.begin(), view_.members.end(), [this](auto& m) {
      return memory().empty() || m.memory != memory();
    });
    if (report.blocked && hosts) report.moved = 1 + report.progress.sequence;
    if (world_->Sabotaged(Sabotage::kStrangerFinishes) && expelled_)
      report.state = MemberState::kFinished;
    (void)transport_->Send(kHead, wire::Encode(kReportFrame, report));
  } else if (std::holds_alternative<AbortEpoch>(action)) {
    SpoilLinks();
    UnwindSoon();
  } else if (const auto* a = std::get_if<FailOperations>(&action)) {
    world_->CheckVerdict(a->epoch);
    failed_ = a->epoch;
    UnwindSoon();
  } else if (const auto* a = std::get_if<MakeOffers>(&action)) {
    OffersMade made{a->epoch, {}, ""};
    for (const LinkPeer& peer : a->peers) made.offers.push_back({peer.slot, 0, Address(id_)});
    Later(world_->Between(microseconds(50), microseconds(500)), [this, made] { Feed(made); });
  } else if (const auto* a = std::get_if<LinkEpoch>(&action)) {
    const bool blocked = std::any_of(a->offers.begin(), a->offers.end(),
                                     [this](const auto& offer) { return !Reaches(offer.address); });
    const Duration takes =
        blocked ? kConnectLimit : world_->Between(microseconds(100), milliseconds(1));
    Later(takes, [this, a = *a] {
      EpochLinked linked{a.view.epoch, ""};
      for (const LinkOffer& offer : a.offers) {
        if (Reaches(offer.address)) {
          links_.insert(offer.address);
        } else {
          linked.problem = "no route";
          linked.unreachable.push_back(offer.slot);
        }
      }
      if (world_->Sabotaged(Sabotage::kHideUnreachable)) linked.unreachable = {};
      Feed(linked);
    });
  } else if (const auto* a = std::get_if<MakePrelink>(&action)) {
    Later(microseconds(200), [this, a = *a] {
      Feed(PrelinkOffered{a.peer.slot, a.attempt, Address(id_)});
    });
  } else if (const auto* a = std::get_if<LinkAhead>(&action)) {
    Later(Reaches(a->address) ? microseconds(300) : kConnectLimit, [this, a = *a] {
      const bool ok = Reaches(a.address);
      if (ok) links_.insert(a.address);
      Feed(PrelinkDone{a.slot, a.attempt, ok});
    });
  } else if (const auto* a = std::get_if<Activated>(&action)) {
    world_->CheckActivated(*this, a->view);
    last_activated_ = a->view.epoch;
    StartEpoch(a->view);
  } else if (std::holds_alternative<TooLateToFound>(action)) {
    Later(world_->Between(milliseconds(1), milliseconds(100)), [this] {
      Feed(UserReady{state_.version, state_.has_state, false});
    });
  } else if (const auto* a = std::get_if<BoundaryAnswer>(&action)) {
    Later(microseconds(10), [this, stop = a->stop, g = generation_] {
      if (!in_epoch_ || g != generation_) return;
      stop ? Unwind() : NextStep();
    });
  } else if (std::holds_alternative<Expelled>(action)) {
    expelled_ = true;
    in_epoch_ = false;
    world_->LeaveSteps(id_, epoch_);
    Later(world_->Between(microseconds(100), milliseconds(100)), [this] { ReturnLate(); });
  }
}

// Who was sent away returns from its function, and says so until its process is gone.
void SimMember::ReturnLate() {
  Time until = world_->Now() + world_->Between(milliseconds(10), seconds(1));
  for (const MemberAction& action : core_.Step(world_->Now(), UserFinished{})) Handle(action);
  const auto speak = [this, until](const auto& again) -> void {
    if (world_->Now() >= until) return Kill();
    for (const MemberAction& action : core_.Step(world_->Now(), MemberTick{})) Handle(action);
    Later(milliseconds(100), [again] { again(again); });
  };
  speak(speak);
}

std::string SimMember::host() const { return HostOf(world_->options_, id_); }
std::string SimMember::memory() const { return MemoryOf(world_->options_, id_); }

bool SimMember::Reaches(const std::string& address) const {
  const std::optional<MemberId> peer = MemberId::Parse(address.substr(0, address.find('@')));
  return peer && world_->Reachable(id_, *peer);
}

void SimMember::NoticeCut() {
  if (!in_epoch_ || world_->cut_is_silent_) return;
  const bool cut = std::any_of(view_.members.begin(), view_.members.end(),
                               [this](const auto& m) { return !world_->Reachable(id_, m.id); });
  if (cut) Feed(CommunicatorBroke{epoch_, "no route"});
}

// What is cut short leaves half a message on a link, but not in memory.
void SimMember::SpoilLinks() {
  const std::string mine = memory();
  std::erase_if(links_, [&](const std::string& peer) {
    const bool memory = !mine.empty() && peer.ends_with("@" + mine);
    return !memory || world_->Sabotaged(Sabotage::kTrustLinks);
  });
}

std::string SimMember::Address(const MemberId& id) const {
  return id.ToString() + "@" + MemoryOf(world_->options_, id);
}

bool SimMember::LinkedTo(const MemberId& id) const {
  return id == id_ || links_.contains(Address(id));
}

// ---- the training loop ----

void SimMember::StartEpoch(const View& view) {
  in_epoch_ = true;
  synced_ = false;
  in_step_ = false;
  ++generation_;
  epoch_ = view.epoch;
  view_ = view;
  step_ = 0;
  world_->result_.epochs = std::max(world_->result_.epochs, view.epoch);
  if (world_->Now() < breaks_until_) {
    Later(world_->Between(microseconds(100), milliseconds(2)), [this, g = generation_] {
      if (in_epoch_ && g == generation_) Feed(CommunicatorBroke{epoch_, "a device failed"});
    });
  }
  world_->Sync(*this, view);
}

void SimMember::TakeState(SimState state) {
  if (world_->Sabotaged(Sabotage::kForgetLedger)) state.ledger = state_.ledger;
  state_ = std::move(state);
}

void SimMember::Synced() {
  synced_ = true;
  state_.has_state = true;
  world_->CheckSynced(*this, view_);
  Feed(UserVersion{state_.version});
  NextStep();
}

void SimMember::NextStep() {
  if (!in_epoch_) return;
  Later(world_->Between(microseconds(200), milliseconds(2)), [this, g = generation_] {
    if (!in_epoch_ || g != generation_) return;
    if (return_next_ && !world_->AnyHangs()) {
      returned_at_ = world_->Now();
      ++world_->result_.returns;
      return Return();
    }
    if (hang_next_ == 0) return EnterStep();
    // Whom nobody waits for may hang for ever.
    const bool others = view_.members.size() > 1 && !world_->any_finished_;
    const bool for_ever = hang_next_ == 2 && others;
    hang_next_ = 0;
    hung_since_ = world_->Now();
    if (for_ever) return;
    Later(world_->Between(milliseconds(10), seconds(1)), [this] {
      hung_since_ = Time::Never();
      if (!in_epoch_) return;
      core_.state() == MemberState::kActive ? EnterStep() : Unwind();
    });
  });
}

void SimMember::Return() {
  finished_ = true;
  in_epoch_ = false;
  world_->any_finished_ = true;
  Feed(UserFinished{});
}

void SimMember::EnterStep() {
  share_ = {};
  if (state_.ledger.remaining() > 0) {  // Else this is the barrier after the last step.
    std::vector<uint64_t> sizes(view_.members.size(), kBatch / view_.members.size());
    for (size_t r = 0; r < kBatch % sizes.size(); ++r) ++sizes[r];
    const auto shares = state_.ledger.Lease(state_.version + 1, sizes);
    if (!shares.ok()) return world_->Fail("GM-9: " + shares.error().message);
    share_ = (*shares)[static_cast<size_t>(RankOf(view_, id_))];
  }
  in_step_ = true;
  const uint64_t signature = mismatch_next_ ? 2 : 1;
  mismatch_next_ = false;
  ++step_;
  step_since_ = world_->Now();
  Feed(OperationBegan{epoch_, {step_, signature, "step"}});
  world_->EnterStep(*this, epoch_, view_, {step_, signature, share_});
}

void SimMember::CompleteStep(Epoch epoch, uint64_t step,
                             const std::vector<SampleLedger::Share>& shares) {
  if (!in_epoch_) return;
  if (epoch != epoch_ || step != step_)
    return world_->Fail("GM-4: a collective completed across epochs");
  in_step_ = false;
  Feed(OperationEnded{epoch, step});
  if (state_.ledger.remaining() == 0) return Return();  // That was the barrier after the last step.
  for (const auto& share : shares) {
    for (const auto& [begin, end] : share) {
      for (uint64_t i = begin; i < end; ++i) ++state_.counts[i];
    }
  }
  if (!state_.ledger.Commit(state_.version + 1).ok())
    return world_->Fail("GM-9: a step was committed that was not leased");
  state_.hash = Mix(Mix(state_.hash, epoch), state_.version);
  ++state_.version;
  state_.has_state = true;
  world_->CheckLedger(*this);
  Feed(UserVersion{state_.version});
  Feed(UserBoundary{});
}

// The blocked collective unwinds a little later on the user's thread; one that hangs elsewhere does
// not notice.
void SimMember::UnwindSoon() {
  if (!in_epoch_ || hung_since_ != Time::Never()) return;
  Later(world_->Between(microseconds(20), microseconds(400)), [this, g = generation_] {
    if (in_epoch_ && g == generation_ && hung_since_ == Time::Never()) Unwind();
  });
}

void SimMember::Unwind() {
  if (in_step_) Feed(OperationEnded{epoch_, step_});
  if (in_step_ && world_->Sabotaged(Sabotage::kCommitOnAbort)) {
    for (const auto& [begin, end] : share_) {
      for (uint64_t i = begin; i < end; ++i) ++state_.counts[i];
    }
    if (state_.ledger.Commit(state_.version + 1).ok()) ++state_.version;
    world_->CheckLedger(*this);
  }
  state_.ledger.Void(state_.version + 1);
  in_step_ = false;
  in_epoch_ = false;
  world_->LeaveSteps(id_, epoch_);
  ++generation_;
  Later(world_->Between(microseconds(10), microseconds(300)), [this] {
    if (!finished_) Feed(UserReady{state_.version, state_.has_state});
  });
}

}  // namespace troupe::groups::sim
