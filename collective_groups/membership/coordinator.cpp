#include "collective_groups/membership/coordinator.h"

#include <algorithm>

namespace troupe::groups {
namespace {

// More than there can be that no member that is heard has been in.
constexpr Epoch kUnknownEpochs = 100;

std::string Join(const std::vector<MemberId>& ids) {
  std::string text;
  for (const MemberId& id : ids) text.append(text.empty() ? "" : ", ").append(id.ToString());
  return text;
}

}  // namespace

const char* GroupPhaseName(GroupPhase phase) {
  static constexpr const char* kNames[] = {"forming", "recovering", "persisting", "preparing",
                                           "linking", "active",     "planning",   "parked",
                                           "ending",  "ended",      "failed"};
  return kNames[static_cast<size_t>(phase)];
}

const char* EpochCauseName(EpochCause cause) {
  static constexpr const char* kNames[] = {"formed",   "resumed",   "death",    "silence",
                                           "deadline", "lost_peer", "finish",   "join",
                                           "drain",    "restart",   "mismatch", "stall"};
  return kNames[static_cast<size_t>(cause)];
}

Coordinator::Coordinator(CoordinatorOptions options, std::optional<EpochRecord> record, Time now)
    : options_(std::move(options)), now_(now) {
  next_repeat_ = now + options_.repeat;
  // Members pass over what is older than they have seen, also from the coordinator before.
  plan_ = prelink_attempt_ = FirstOfTerm(options_.term);
  if (record && record->ended) {
    stored_ = std::move(record);
    phase_ = GroupPhase::kEnded;
  } else if (record) {
    stored_ = std::move(record);
    last_epoch_ = stored_->view.epoch;
    next_seniority_ = stored_->next_seniority;
    finishing_ = stored_->finishing;
    phase_ = GroupPhase::kRecovering;
    phase_deadline_ = now + options_.recover_grace;
  } else {
    phase_deadline_ = now + options_.form_timeout;
    parked_since_ = now;
  }
}

CoordinatorDecision Coordinator::Step(Time now, const CoordinatorEvent& event) {
  now_ = now;
  out_ = {};
  if (const auto* e = std::get_if<ReportReceived>(&event)) {
    OnReport(e->report);
  } else if (const auto* e = std::get_if<MemberDied>(&event)) {
    Evict(e->id, EpochCause::kDeath, e->id.ToString() + " died: " + e->reason);
  } else if (const auto* e = std::get_if<DrainRequested>(&event)) {
    if (const auto it = peers_.find(e->id); it != peers_.end()) it->second.draining = true;
  } else if (const auto* e = std::get_if<LimitsChanged>(&event)) {
    options_.min_members = e->min_members;
  } else if (const auto* e = std::get_if<TrainingBegins>(&event)) {
    OnTraining(*e);
  } else if (const auto* e = std::get_if<OrderChanged>(&event)) {
    options_.order = e->order;
  } else if (const auto* e = std::get_if<StoreAnswered>(&event)) {
    OnStore(*e);
  } else if (const auto* e = std::get_if<Resumed>(&event)) {
    OnResumed(e->stopped);
  } else {
    OnTick();
  }
  Reconsider();
  return std::move(out_);
}

Time Coordinator::NextDeadline() const {
  if (phase_ == GroupPhase::kEnded || phase_ == GroupPhase::kFailed) return Time::Never();
  Time next = std::min(next_repeat_, store_retry_at_);
  // Every step looks at these; one that has passed without effect is not to wake anybody again.
  if (phase_deadline_ > now_) next = std::min(next, phase_deadline_);
  if (broken_since_ != Time::Never() && broken_since_ + options_.error_grace > now_)
    next = std::min(next, broken_since_ + options_.error_grace);
  return next;
}

std::vector<Report> Coordinator::members() const {
  std::vector<Report> reports;
  for (const auto& [id, peer] : peers_) reports.push_back(peer.report);
  return reports;
}

bool Coordinator::IsDraining(const MemberId& id) const {
  const auto it = peers_.find(id);
  return it != peers_.end() && it->second.draining;
}

// ---- events ----

void Coordinator::OnReport(const Report& report) {
  if (deposed_) return;
  if (const auto gone = gone_.find(report.id); gone != gone_.end())
    return Expel(report.id, gone->second, "this incarnation is out of the group");
  if (phase_ == GroupPhase::kEnded || phase_ == GroupPhase::kFailed)
    return Expel(report.id, ExpelKind::kEnded, "the group is over");
  const Duration unheard = Unheard();
  for (auto& [id, other] : peers_) {  // Not for ever: the gaps between a few reports are no proof.
    const Time most = std::max(other.heard, other.said + options_.silent_lease);
    other.heard = std::min({now_, most, other.heard + unheard});
  }
  last_heard_ = now_;
  const auto [it, is_new] = peers_.try_emplace(report.id);
  Peer& peer = it->second;
  peer.heard = peer.said = now_;
  if (is_new) {
    peer.arrival = next_arrival_++;
    if (stored_) {  // After a restart the record still knows seniority and slot.
      if (const int rank = RankOf(stored_->view, report.id); rank >= 0) {
        peer.seniority = stored_->view.members[rank].seniority;
        peer.slot = stored_->view.members[rank].slot;
      }
    }
  } else if (report.sequence <= peer.report.sequence) {
    return;
  }
  if (report.state == MemberState::kReady && peer.ready_since == Time::Never())
    peer.ready_since = now_;
  // Others may have returned as well: one that was drained, or never took part.
  if (report.state == MemberState::kFinished && WasMember(report)) finished_.insert(report.id);
  const size_t offers_before = peer.report.prelinks.size();
  peer.report = report;
  NoteOperation(peer);
  // Another coordinator has got further, or the store has gone back: nobody knows by how much.
  const Epoch newest = std::max(report.epoch, report.newest);
  const bool untold = phase_ == GroupPhase::kPersisting && newest == next_.epoch;  // Not by us.
  if (newest > last_epoch_ || untold) last_epoch_ = newest + kUnknownEpochs;
  ExceedPlan(report.plan);
  for (const LinkOffer& offer : report.prelinks) ExceedPlan(offer.attempt);
  for (const LinkOffer& offer : report.linked) ExceedPlan(offer.attempt);
  const bool parked = phase_ == GroupPhase::kParked;  // Then no view is on its way.
  const bool outside = parked || (!InCurrent(report.id) && !InNext(report.id));
  const bool late = report.state == MemberState::kReady && IsLateFounder(peer) && outside;
  if (late && !peer.draining && !Finishing()) SendBuildFirst(report.id);
  if (phase_ == GroupPhase::kActive && report.prelinks.size() > offers_before)
    ForwardPrelinks(report.id);
}

void Coordinator::OnResumed(Duration stopped) {
  last_heard_ = std::min(now_, last_heard_ + stopped);
  for (auto& [id, peer] : peers_) {
    peer.heard = std::min(now_, peer.heard + stopped);
    peer.said = std::min(now_, peer.said + stopped);
  }
  for (Time* limit : {&phase_deadline_, &parked_since_}) {
    if (*limit != Time::Never()) *limit = *limit + stopped;
  }
}

void Coordinator::OnTick() {
  if (store_retry_at_ <= now_) Retry();
  EvictSilent();
  if (next_repeat_ <= now_) {
    next_repeat_ = now_ + options_.repeat;
    RepeatOutstanding();
  }
}

// Removes an incarnation for good and starts a new epoch if it mattered.
void Coordinator::Evict(const MemberId& id, EpochCause cause, const std::string& reason) {
  if (!gone_.try_emplace(id, ExpelKind::kFenced).second) return;
  const auto it = peers_.find(id);
  const bool known = it != peers_.end();
  if (known && it->second.prelink_attempt != 0) {
    // A member that links to it right now must not wait for the time limit.
    for (const ViewMember& m : current_.members) {
      if (peers_.contains(m.id))
        SendCancelPrelink(m.id, *it->second.slot, it->second.prelink_attempt);
    }
  }
  if (known) peers_.erase(it);
  faults_.Forget(id);
  if (finished_.contains(id)) return;
  const bool awaited = phase_ == GroupPhase::kRecovering && RankOf(stored_->view, id) >= 0;
  const bool matters = awaited || (known && (InCurrent(id) || InNext(id)));
  if (!matters) return;
  NoteCause(cause, reason);
  switch (phase_) {
    case GroupPhase::kActive:
    case GroupPhase::kPlanning:
      if (InCurrent(id) && !EndIfFinished()) Propose(reason, false, Survivors());
      break;
    case GroupPhase::kPreparing:
    case GroupPhase::kLinking:
      if (!EndIfFinished()) Propose(reason, false, Survivors());
      break;
    default:
      // Persisting re-checks when the store answers; Forming, Parked and Recovering look at who
      // is there.
      break;
  }
}

void Coordinator::NoteCause(EpochCause cause, const std::string& reason) {
  if (cause_at_ != Time::Never()) {
    // A peer that is lost is often the first sign of a death.
    if (cause == EpochCause::kDeath && cause_kind_ == EpochCause::kLostPeer) cause_kind_ = cause;
    return;
  }
  cause_kind_ = cause;
  cause_at_ = now_;
  cause_ = reason;
}

// ---- decisions ----

void Coordinator::Reconsider() {
  switch (phase_) {
    case GroupPhase::kForming:
    case GroupPhase::kParked:
      ReconsiderForming();
      break;
    case GroupPhase::kRecovering:
      ReconsiderRecovering();
      break;
    case GroupPhase::kPreparing:
    case GroupPhase::kLinking:
      ReconsiderProgress();
      break;
    case GroupPhase::kActive:
      ReconsiderActive();
      break;
    case GroupPhase::kPlanning:
      ReconsiderPlanning();
      break;
    default:
      break;
  }
}

void Coordinator::OnTraining(const TrainingBegins& e) {
  options_.prepare_timeout = e.prepare_timeout;
  options_.start_members = e.start_members;
  options_.form_timeout = e.form_timeout;
  if (phase_ == GroupPhase::kForming) phase_deadline_ = now_ + e.form_timeout;
}

void Coordinator::ReconsiderForming() {
  const bool parked = phase_ == GroupPhase::kParked;
  if (EndIfFinished()) return;
  const bool unwinding = AwaitUnwinding();
  const std::vector<MemberId> ready = ReadyToForm(unwinding);
  const bool enough = ready.size() >= MinMembers() && !unwinding &&
                      (parked || ready.size() >= options_.start_members || now_ >= phase_deadline_);
  if (enough && !ready.empty()) {
    const std::string reason = parked ? "enough members again" : "group formed";
    NoteCause(parked ? EpochCause::kResumed : EpochCause::kFormed, reason);
    Propose(reason, false, ready);
    return;
  }
  waiting_for_ = std::to_string(ready.size()) + " of " +
                 std::to_string(parked ? options_.min_members
                                       : std::max(options_.start_members, options_.min_members)) +
                 " members ready";
  if (now_ >= parked_since_ + options_.park_timeout) {
    const std::string reason =
        "only " + std::to_string(ready.size()) + " of at least " +
        std::to_string(options_.min_members) + " members within the elastic timeout of " +
        std::to_string(static_cast<int64_t>(ToSeconds(options_.park_timeout))) + " s";
    out_.actions.emplace_back(GroupFailed{reason});
    out_.reason = reason;
    End(GroupPhase::kFailed);
  }
}

// Survivors that still unwind hold state that nobody else may have: wait for them. Their lease
// bounds the wait for a process that is lost, the deadline that for a step that hangs.
bool Coordinator::AwaitUnwinding() {
  std::vector<MemberId> unwinding;
  for (const auto& [id, peer] : peers_) {
    const MemberState s = peer.report.state;
    if (s == MemberState::kLeaving || s == MemberState::kActive || s == MemberState::kLinked ||
        s == MemberState::kPrepared) {
      unwinding.push_back(id);
    }
  }
  if (unwinding.empty()) {
    unwinding_since_ = Time::Never();
    return false;
  }
  if (unwinding_since_ == Time::Never()) unwinding_since_ = now_;
  if (now_ < unwinding_since_ + options_.prepare_timeout) return true;
  for (const MemberId& id : unwinding) {
    const std::string reason = id.ToString() + " did not come out of its step";
    out_.actions.emplace_back(FenceMember{id, reason});
    Evict(id, EpochCause::kDeadline, reason);
  }
  unwinding_since_ = Time::Never();
  return false;
}

void Coordinator::ReconsiderRecovering() {
  const View& view = stored_->view;
  size_t unheard = 0;
  size_t active = 0;
  for (const ViewMember& m : view.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) {
      if (!gone_.contains(m.id)) ++unheard;  // Who is known to be dead will not be heard.
      continue;
    }
    if (it->second.report.state == MemberState::kFinished) ++active;
    if (it->second.report.state == MemberState::kActive && it->second.report.epoch == view.epoch)
      ++active;
  }
  if (active == view.members.size()) {
    current_ = view;
    for (const ViewMember& a : view.members) {
      for (const ViewMember& b : view.members) {
        if (a.slot < b.slot) links_.insert({a.slot, b.slot});
      }
    }
    for (ViewMember& m : current_.members) {
      m.version = peers_.at(m.id).report.version;
      m.has_state = peers_.at(m.id).report.has_state;
    }
    phase_ = GroupPhase::kActive;
    phase_deadline_ = Time::Never();
    waiting_for_.clear();
    const int size = static_cast<int>(current_.members.size());
    out_.actions.emplace_back(
        EpochActivated{current_, EpochCause::kRestart, size, Duration::zero(), true, true});
    out_.reason = "coordinator restarted; epoch " + std::to_string(view.epoch) + " goes on";
    return;
  }
  waiting_for_ = std::to_string(unheard) + " members to be heard after the restart";
  // One of them may be the last that holds the state, as in EvictSilent.
  const bool held = std::any_of(peers_.begin(), peers_.end(),
                                [](const auto& peer) { return peer.second.report.has_state; });
  const Duration longer =
      held ? Duration::zero()
           : std::max(Duration::zero(), options_.silent_lease - options_.recover_grace);
  if (unheard > 0 && now_ < phase_deadline_ + longer) return;
  if (unheard > 0) last_epoch_ += kUnknownEpochs;  // They may know a later one than the store.
  current_ = view;  // Whatever it became, its members are the ones to go on with.
  interrupted_ = true;
  NoteCause(EpochCause::kRestart, "coordinator restarted in mid-change");
  Propose(cause_, false, Survivors());
}

bool Coordinator::HasBegun(const Report& report) const {
  return at_once_ && phase_ == GroupPhase::kLinking && report.epoch == next_.epoch;
}

// A member whose function returned before it was where the next epoch needs it. One that a planned
// epoch leaves behind is needed too: without it nobody comes to the boundary.
std::optional<MemberId> Coordinator::ReturnedInMidChange() const {
  const auto returned = [this](const ViewMember& m) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end() || it->second.report.state != MemberState::kFinished) return false;
    return !HasBegun(it->second.report);
  };
  for (const View* view : {&next_, &current_}) {
    const bool needed = view == &next_ || (next_planned_ && phase_ == GroupPhase::kPreparing);
    const auto m = std::find_if(view->members.begin(), view->members.end(), returned);
    if (needed && m != view->members.end()) return m->id;
  }
  return std::nullopt;
}

void Coordinator::ReconsiderProgress() {
  // A planned epoch waits for a boundary, to which a member that hangs lets nobody come.
  if (phase_ == GroupPhase::kPreparing && next_planned_ && ReconsiderOperations()) return;
  if (const std::optional<MemberId> returned = ReturnedInMidChange()) {
    NoteCause(EpochCause::kFinish, returned->ToString() + " finished");
    if (!EndIfFinished()) Propose(returned->ToString() + " finished", false, Survivors());
    return;
  }
  const MemberState wanted =
      phase_ == GroupPhase::kPreparing ? MemberState::kPrepared : MemberState::kLinked;
  bool broken = false;
  for (const ViewMember& m : next_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) continue;
    const Report& r = it->second.report;
    if (r.epoch == next_.epoch && r.broken) broken = true;
    if (r.epoch > next_.epoch) broken = true;  // Another coordinator has taken it further.
    if (HasBegun(r) && (r.state == MemberState::kReady || r.state == MemberState::kLeaving))
      broken = true;  // It has gone already, and has come out again.
    // A planned member that went past its boundary, or lost a peer, cannot be waited for: leave by
    // abort instead.
    if (next_planned_ && phase_ == GroupPhase::kPreparing && r.state == MemberState::kActive &&
        (r.broken || r.boundary > plan_boundary_ || (r.plan == plan_ && !r.plan_accepted))) {
      broken = true;
    }
  }
  if (broken) {
    if (broken_since_ == Time::Never()) broken_since_ = now_;
    if (now_ < broken_since_ + options_.error_grace) return;
    NoteUnreachable();
    Propose(cause_, false, LeaveOutUnreachable(Survivors()));
    return;
  }
  const std::vector<MemberId> missing = MissingFrom(wanted);
  if (missing.empty()) {
    phase_ == GroupPhase::kPreparing ? BeginLinking() : BeginActive();
    return;
  }
  waiting_for_ =
      Join(missing) + (phase_ == GroupPhase::kPreparing ? " to come out of the step" : " to link");
  if (now_ < phase_deadline_) return;
  if (phase_ == GroupPhase::kPreparing && next_planned_) {
    // All of them may wait for one that hangs: abort the step, then see who does not come out.
    Propose(cause_, false, Survivors());
    return;
  }
  // In Linking one bad member can keep several waiting: put one aside and see.
  std::vector<MemberId> late = missing;
  if (phase_ == GroupPhase::kLinking) late = {LateToLink(missing.back())};
  for (const MemberId& id : late) {
    const std::string reason = id.ToString() + " missed the deadline of " + GroupPhaseName(phase_);
    out_.actions.emplace_back(FenceMember{id, reason});
    gone_.emplace(id, ExpelKind::kFenced);
    peers_.erase(id);
    out_.reason = reason;
  }
  NoteCause(EpochCause::kDeadline, out_.reason);
  Propose(out_.reason, false, Survivors());
}

void Coordinator::ReconsiderActive() {
  if (EndIfFinished() || ReconsiderOperations() || ReconsiderFrozen()) return;
  bool broken = false;
  bool draining = false;
  bool settled = true;  // Everybody knows that the epoch is active.
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) continue;
    const Report& r = it->second.report;
    settled &= r.state == MemberState::kActive && r.epoch == current_.epoch;
    draining |= it->second.draining && r.state == MemberState::kActive;
    if (r.epoch > current_.epoch) {
      broken = true;
      NoteCause(EpochCause::kRestart,
                m.id.ToString() + " was taken further by another coordinator");
    }
    if (r.epoch != current_.epoch) continue;
    if (r.broken || r.state == MemberState::kReady || r.state == MemberState::kLeaving) {
      broken = true;
      NoteCause(EpochCause::kLostPeer, m.id.ToString() + " lost a peer: " + r.problem);
    }
  }
  if (broken) {
    if (broken_since_ == Time::Never()) broken_since_ = now_;
    if (now_ >= broken_since_ + options_.error_grace) Propose(cause_, false, Survivors());
    return;
  }
  if (Finishing()) {
    if (ReconsiderFinished()) return;
    for (const MemberId& id : ReadyOutside())
      Expel(id, ExpelKind::kEnded, "the group is finishing");
    return;
  }
  for (const MemberId& id : ReadyOutside()) {
    if (IsDraining(id)) Expel(id, ExpelKind::kDrained, "drained before it joined");
  }
  bool all_warm = true;
  std::vector<MemberId> warm;
  for (const MemberId& id : Joiners()) {
    Peer& joiner = peers_.at(id);
    if (joiner.prelink_attempt == 0) Prelink(id, joiner);
    if (IsWarm(joiner)) {
      warm.push_back(id);
    } else if (now_ >= joiner.prelink_deadline) {
      LeaveOutColdJoiner(id);
    } else if (joiner.absences == 0) {
      all_warm = false;  // The others wait for it once.
    }
  }
  const bool join = !warm.empty() && all_warm && current_.members.size() < kGroupMembersMax;
  if ((!join && !draining) || !settled) return;
  const bool drain = draining && SomeoneLeaves(AfterDrain());
  if (!join && !drain) {
    waiting_for_ = "somebody who takes over the state, or the place, of members asked to leave";
    return;
  }
  NoteCause(drain ? EpochCause::kDrain : EpochCause::kJoin,
            drain ? "drain" : "join of " + Join(warm));
  BeginPlanning(cause_);
}

// Whoever waits at the boundary goes on; Active decides afresh.
void Coordinator::WithdrawPlan() {
  plan_boundary_ = 0;
  ++plan_;
  for (const ViewMember& m : current_.members) SendPlan(m.id);
  phase_ = GroupPhase::kActive;
  phase_deadline_ = Time::Never();
  out_.reason = "plan withdrawn";
}

void Coordinator::ReconsiderPlanning() {
  if (ReconsiderOperations()) return;
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) continue;
    const Report& r = it->second.report;
    if (r.broken || r.state != MemberState::kActive || Finishing() || now_ >= phase_deadline_) {
      WithdrawPlan();
      if (!r.broken) cause_at_ = Time::Never();
      return;
    }
  }
  bool refused = false;
  for (const ViewMember& m : current_.members) {
    const Report& r = peers_.at(m.id).report;
    if (r.plan != plan_ || r.epoch != current_.epoch) {
      waiting_for_ = m.id.ToString() + " to answer the plan";
      return;
    }
    refused |= !r.plan_accepted;
  }
  if (refused) {
    StartPlanRound();
    return;
  }
  std::vector<MemberId> members = AfterDrain();
  const bool joined =
      std::ranges::any_of(members, [&](const MemberId& id) { return !InCurrent(id); });
  if (!joined && !SomeoneLeaves(members)) {
    cause_at_ = Time::Never();
    return WithdrawPlan();
  }
  if (members.size() < options_.min_members) {
    Park("a drain leaves " + std::to_string(members.size()) + " members, below the minimum of " +
         std::to_string(options_.min_members));
    return;
  }
  Propose(cause_, true, std::move(members));
}

}  // namespace troupe::groups
