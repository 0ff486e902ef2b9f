#include "tests/sim/sim_head.h"

#include <algorithm>
#include <utility>

#include "runtime/wire.h"

namespace troupe::groups::sim {
namespace {

CoordinatorOptions CoordinatorOptionsFor(World& world, const std::string& owner) {
  CoordinatorOptions o;
  o.group = "g";
  o.owner = owner;
  o.term = static_cast<uint64_t>(world.next_term_++);
  o.min_members = world.Sabotaged(Sabotage::kIgnoreMinimum)
                      ? 1
                      : static_cast<uint32_t>(world.options_.min_members);
  o.start_members = static_cast<uint32_t>(world.options_.members);
  o.form_timeout = milliseconds(200);
  o.lease = kLease;
  o.silent_lease = world.Sabotaged(Sabotage::kGiveUpLastHolder) ? kLease : kSilentLease;
  o.prepare_timeout = seconds(3);
  o.link_timeout = seconds(1);
  o.prelink_timeout = milliseconds(500);
  o.frozen_after = kFrozenAfter;
  o.absence_max = seconds(1);
  o.recover_grace = milliseconds(500);
  if (world.Sabotaged(Sabotage::kRetryAtOnce)) o.proposal_delay_min = Duration::zero();
  if (world.Sabotaged(Sabotage::kWaitForReturned)) o.finish_grace = seconds(1000);
  o.stall_report_after = kStallReport;
  o.stall_remove_after = kStallRemove;
  return o;
}

}  // namespace

SimHead::SimHead(World* world, std::string owner, std::optional<EpochRecord> record)
    : world_(world),
      owner_(std::move(owner)),
      core_(CoordinatorOptionsFor(*world, owner_), std::move(record), world->Now()) {
  ArmTimer();
}

void SimHead::Receive(Report report) {
  if (world_->Sabotaged(Sabotage::kHideProgress)) report.blocked = false;
  if (world_->Sabotaged(Sabotage::kHideSignatures)) report.progress.signature = 0;
  if (world_->Sabotaged(Sabotage::kSwapProgress)) {
    report.blocked = !report.blocked;
    if (report.blocked) report.progress.sequence += 2;
  }
  if (world_->Sabotaged(Sabotage::kStrangerFinishes) && !core_.view().members.empty() &&
      report.state == MemberState::kFinished && RankOf(core_.view(), report.id) < 0) {
    report.id = core_.view().members.front().id;
    report.sequence += 1'000'000;
  }
  if (running_) heard_[report.id] = {world_->Now(), report};
  Feed(ReportReceived{report});
  if (world_->Sabotaged(Sabotage::kActivateEarly) && report.state == MemberState::kPrepared) {
    for (Report other : core_.members()) {
      if (other.id == report.id) continue;
      other.state = report.state;
      other.epoch = report.epoch;
      ++other.sequence;
      Feed(ReportReceived{other});
      ++other.sequence;
      other.state = MemberState::kLinked;
      Feed(ReportReceived{other});
    }
  }
}

void SimHead::Feed(const CoordinatorEvent& event) {
  if (!running_) return;
  const CoordinatorDecision decision = core_.Step(world_->Now(), event);
  for (const CoordinatorAction& action : decision.actions) Handle(action);
  ArmTimer();
}

void SimHead::ArmTimer() {
  world_->loop().Cancel(timer_);
  const Time next = core_.NextDeadline();
  if (next == Time::Never() || world_->Sabotaged(Sabotage::kNoRepeats)) return;
  timer_ = world_->loop().CallAt(std::max(next, world_->Now() + microseconds(10)),
                                 [this] { OnTimer(); });
}

void SimHead::OnTimer() {
  known_ = core_.members();
  Feed(Tick{});
  const bool stale = world_->Sabotaged(Sabotage::kStaleDeadline);
  if (running_ && (stale ? world_->Now() : core_.NextDeadline()) <= world_->Now())
    world_->Fail("GM-16: a deadline that has passed wakes the coordinator again");
}

void SimHead::Handle(const CoordinatorAction& action) {
  if (const auto* a = std::get_if<SendCommand>(&action)) {
    SendTo(a->to, a->command);
  } else if (const auto* a = std::get_if<PersistRecord>(&action)) {
    Persist(*a);
  } else if (const auto* a = std::get_if<FenceMember>(&action)) {
    if (a->reason.find("silent") != std::string::npos) CheckSilent(a->id);
    world_->Fence(a->id);
  } else if (const auto* a = std::get_if<GroupStalled>(&action)) {
    if (!a->removed) return;
    world_->CheckStall(a->view, a->missing);
    ++world_->result_.hangs;
  } else if (std::holds_alternative<GroupUnreachable>(action)) {
    ++world_->result_.left_out;
  } else if (const auto* a = std::get_if<EpochActivated>(&action)) {
    if (a->cause == EpochCause::kMismatch) ++world_->result_.mismatches;
  } else if (const auto* a = std::get_if<GroupParked>(&action)) {
    if (a->reason.starts_with("a drain leaves"))
      world_->Fail("GM-17: members were let go without whom the group cannot go on");
  } else if (std::holds_alternative<Deposed>(action)) {
    running_ = false;
  }
}

void SimHead::CheckSilent(const MemberId& id) {
  const Time said = heard_.at(id).first;
  const Report& last = heard_.at(id).second;
  if (!last.has_state || world_->Now() - said > kSilentLease) return;
  const bool held = std::any_of(known_.begin(), known_.end(), [&](const Report& other) {
    return other.id != id && world_->Now() - heard_.at(other.id).first <= kLease &&
           other.has_state && other.version + 1 >= last.version;
  });
  if (!held) world_->Fail("GM-12: the last holder of the state was given up for its silence");
}

// At first only: later the others may be gone as well.
void SimHead::CheckReleased(const MemberId& id) {
  const SimMember* member = world_->Find(id);
  if (!released_.insert(id).second || member == nullptr || world_->any_finished_) return;
  const bool of_the_last = member->last_activated() > 0 &&  // Not one that was left behind.
                           member->last_activated() >= core_.view().epoch;
  if (world_->OnlyHead() != this || !of_the_last || !member->state().has_state) return;
  const std::vector<Report> left = core_.members();
  const bool held = std::any_of(left.begin(), left.end(), [&](const Report& other) {
    const SimMember* heir = world_->Find(other.id);
    return heir != nullptr && heir->state().has_state &&
           heir->state().version >= member->state().version;
  });
  ++world_->result_.released;
  if (!held) world_->Fail("GM-17: the last holder of the state was let go");
}

void SimHead::SendTo(const MemberId& to, Command command) {
  world_->CheckSent(command);
  if (command.kind == CommandKind::kExpel && command.expel == ExpelKind::kDrained)
    CheckReleased(to);
  if (command.kind == CommandKind::kPrepare && command.epoch == reused_) CheckReused();
  if (command.kind == CommandKind::kFail) world_->verdicts_[command.epoch] = this;
  if (world_->Sabotaged(Sabotage::kDifferentMembers) && command.kind == CommandKind::kInstall &&
      command.view.members.size() > 2 && command.view.members.back().id != to) {
    command.view.members.pop_back();
  }
  if (world_->Sabotaged(Sabotage::kForgetVerdict)) {
    if (command.kind == CommandKind::kFail && world_->Uniform() < 0.5) return;
    command.failed = 0;
  }
  (void)world_->head_transport_->Send(to.ToString(), wire::Encode(kCommandFrame, command));
}

// After a store has forgotten, numbers that no member knows may come again.
void SimHead::NoteReused(Epoch epoch) {
  if (world_->result_.store_losses == 0) world_->Fail("GM-1: a stored epoch did not grow");
  world_->ForgetEpochs(epoch);
  reused_ = epoch;
}

void SimHead::CheckReused() {
  const std::vector<Report> heard = core_.members();
  const bool known = std::any_of(heard.begin(), heard.end(), [&](const Report& r) {
    return std::max(r.epoch, r.newest) >= reused_;
  });
  if (known) world_->Fail("GM-1: an epoch came twice, and a member that is heard knows it");
  reused_ = 0;
}

void SimHead::Persist(const PersistRecord& request) {
  const bool lie = world_->Sabotaged(Sabotage::kSendBeforeStore);
  if (lie) {
    world_->loop().CallAfter(microseconds(1), [this, id = request.request] {
      Feed(StoreAnswered{id, ErrorCode::kOk, {}});
    });
  }
  world_->loop().CallAfter(world_->Between(microseconds(60), milliseconds(1)),
                           [this, request, lie] { Answer(request, lie); });
}

void SimHead::Answer(const PersistRecord& request, bool lie) {
  SimStore& store = world_->store_;
  StoreAnswered answer{request.request, ErrorCode::kOk, {}};
  const auto epoch_of = [](const std::optional<EpochRecord>& r) { return r ? r->view.epoch : 0; };
  const auto owner_of = [](const std::optional<EpochRecord>& r) {
    return r ? r->owner : std::string();
  };
  if (!store.available) {
    answer.code = ErrorCode::kUnavailable;
    if (world_->Uniform() < 0.7)
      return Feed(answer);  // The rest: it happens, but the answer is lost.
  }
  const bool matches = epoch_of(store.record) == epoch_of(request.expected) &&
                       owner_of(store.record) == owner_of(request.expected);
  const bool repeated = store.record && store.record->view == request.record.view &&
                        store.record->owner == owner_ &&
                        store.record->ended == request.record.ended;
  if (!matches && !repeated) {
    if (answer.code == ErrorCode::kOk)
      answer = {request.request, ErrorCode::kConflict, store.record};
  } else {
    if (!repeated && !request.record.ended && request.record.view.epoch <= store.newest)
      NoteReused(request.record.view.epoch);
    world_->CheckMemberList(request.record.view.epoch, request.record.view, "store");
    world_->CheckStored(request.record);
    store.record = request.record;
    store.newest = std::max(store.newest, request.record.view.epoch);
    store.history.push_back(request.record);
  }
  if (!lie) Feed(answer);
}

}  // namespace troupe::groups::sim
