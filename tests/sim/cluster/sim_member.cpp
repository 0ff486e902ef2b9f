#include "tests/sim/cluster/sim_member.h"

#include <algorithm>
#include <utility>

#include "daemons/protocol/messages.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_training.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kConnectLimit = milliseconds(200);

uint64_t Mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ULL + 0x9e3779b97f4a7c15ULL;
}

}  // namespace

SimMember::SimMember(World* world, SimTraining* training, SimWorker* at, groups::MemberId id,
                     uint64_t life, const SimState& state, OnOver over)
    : world_(world),
      training_(training),
      at_(at),
      id_(std::move(id)),
      life_(life),
      on_over_(std::move(over)),
      core_({id_, at->host(), at->host()}, world->Now()),
      state_(state) {
  training_->Add(this);
}

SimMember::~SimMember() { Stop(); }

void SimMember::Begin() {
  Feed(groups::MemberTick{});
  Later(world_->Between(milliseconds(1), milliseconds(200)), [this] {
    Feed(groups::UserReady{state_.version, state_.has_state, world_->Uniform() < 0.5});
  });
}

void SimMember::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (in_epoch_) training_->LeaveSteps(*this);
  in_epoch_ = false;
  at_->port().loop().Cancel(timer_);
  training_->Remove(this);
}

void SimMember::Later(Duration delay, std::function<void()> fn) {
  at_->Later(delay, [this, fn = std::move(fn)] {
    if (!stopped_) fn();
  });
}

void SimMember::Feed(const groups::MemberEvent& event) {
  if (stopped_ || core_.expelled()) return;
  for (const groups::MemberAction& action : core_.Step(world_->Now(), event)) Handle(action);
  if (!stopped_) ArmTimer();
}

void SimMember::ArmTimer() {
  at_->port().loop().Cancel(timer_);
  timer_ = at_->port().loop().CallAt(core_.NextDeadline(), [this] { Feed(groups::MemberTick{}); });
}

void SimMember::Handle(const groups::MemberAction& action) {
  if (const auto* a = std::get_if<groups::SendReport>(&action)) {
    groups::Report report = a->report;
    if (report.blocked) report.moved = 1 + report.progress.sequence;
    const GroupFrame frame{training_->group(), wire::Encode(kFrameGroupReport, report)};
    (void)at_->port().Send(kHeadName, wire::Encode(kFrameGroupReport, frame));
  } else if (std::holds_alternative<groups::AbortEpoch>(action) ||
             std::holds_alternative<groups::FailOperations>(action)) {
    UnwindSoon();
  } else if (const auto* a = std::get_if<groups::MakeOffers>(&action)) {
    groups::OffersMade made{a->epoch, {}, ""};
    for (const groups::LinkPeer& peer : a->peers)
      made.offers.push_back({peer.slot, 0, at_->host()});
    Later(world_->Between(microseconds(50), milliseconds(2)), [this, made] { Feed(made); });
  } else if (const auto* a = std::get_if<groups::LinkEpoch>(&action)) {
    Link(*a);
  } else if (const auto* a = std::get_if<groups::MakePrelink>(&action)) {
    Later(microseconds(200), [this, a = *a] {
      Feed(groups::PrelinkOffered{a.peer.slot, a.attempt, at_->host()});
    });
  } else if (const auto* a = std::get_if<groups::LinkAhead>(&action)) {
    const bool ok = !world_->AreCut(at_->host(), a->address);
    Later(ok ? microseconds(300) : kConnectLimit, [this, a = *a, ok] {
      Feed(groups::PrelinkDone{a.slot, a.attempt, ok});
    });
  } else if (const auto* a = std::get_if<groups::Activated>(&action)) {
    training_->OnActivated(*this, a->view);
    StartEpoch(a->view);
  } else if (std::holds_alternative<groups::TooLateToFound>(action)) {
    Later(world_->Between(milliseconds(1), milliseconds(100)), [this] {
      Feed(groups::UserReady{state_.version, state_.has_state, false});
    });
  } else if (const auto* a = std::get_if<groups::BoundaryAnswer>(&action)) {
    Later(microseconds(10), [this, stop = a->stop, g = generation_] {
      if (!in_epoch_ || g != generation_) return;
      stop ? Unwind() : NextStep();
    });
  } else if (const auto* a = std::get_if<groups::Expelled>(&action)) {
    OnExpelled(*a);
  }
}

void SimMember::Link(const groups::LinkEpoch& link) {
  groups::EpochLinked linked{link.view.epoch, ""};
  for (const groups::LinkOffer& offer : link.offers) {
    if (!world_->AreCut(at_->host(), offer.address)) continue;
    linked.problem = "no route";
    linked.unreachable.push_back(offer.slot);
  }
  const bool ok = linked.problem.empty();
  Later(ok ? world_->Between(microseconds(100), milliseconds(3)) : kConnectLimit,
        [this, linked] { Feed(linked); });
}

void SimMember::OnExpelled(const groups::Expelled& expelled) {
  if (over_) return;  // It has returned, and says so.
  if (in_epoch_) training_->LeaveSteps(*this);
  in_epoch_ = false;
  over_ = true;
  const bool fenced = expelled.kind == groups::ExpelKind::kFenced;
  Later(world_->Between(microseconds(100), milliseconds(100)),
        [this, fenced] { on_over_(fenced ? Over::kFenced : Over::kEnded); });
}

// ---- training ----

void SimMember::StartEpoch(const groups::View& view) {
  in_epoch_ = true;
  synced_ = false;
  in_step_ = false;
  ++generation_;
  epoch_ = view.epoch;
  view_ = view;
  rank_ = groups::RankOf(view, id_);
  step_ = 0;
  training_->Sync(*this, view);
}

void SimMember::Synced() {
  synced_ = true;
  state_.has_state = true;
  Feed(groups::UserVersion{state_.version});
  NextStep();
}

void SimMember::NextStep() {
  if (!in_epoch_) return;
  Later(world_->Between(milliseconds(2), milliseconds(20)), [this, g = generation_] {
    if (!in_epoch_ || g != generation_) return;
    if (raises_ || state_.version >= training_->finish_at())
      return End(raises_ ? Over::kRaised : Over::kReturned);
    in_step_ = true;
    ++step_;
    Feed(groups::OperationBegan{epoch_, {step_, 1, "step"}});
    training_->EnterStep(*this, view_, step_);
  });
}

void SimMember::CompleteStep(groups::Epoch epoch, uint64_t step) {
  if (!in_epoch_ || !in_step_) return;
  if (epoch != epoch_ || step != step_) return world_->Fail("a collective completed across epochs");
  in_step_ = false;
  Feed(groups::OperationEnded{epoch, step});
  state_.hash = Mix(Mix(state_.hash, epoch), state_.version);
  ++state_.version;
  state_.has_state = true;
  training_->OnCommitted(*this);
  Feed(groups::UserVersion{state_.version});
  Feed(groups::UserBoundary{});
}

void SimMember::End(Over how) {
  over_ = true;
  in_epoch_ = false;
  Feed(groups::UserFinished{});
  on_over_(how);
}

void SimMember::UnwindSoon() {
  if (!in_epoch_) return;
  Later(world_->Between(microseconds(20), milliseconds(1)), [this, g = generation_] {
    if (in_epoch_ && g == generation_) Unwind();
  });
}

void SimMember::Unwind() {
  if (in_step_) Feed(groups::OperationEnded{epoch_, step_});
  in_step_ = false;
  in_epoch_ = false;
  training_->LeaveSteps(*this);
  ++generation_;
  Later(world_->Between(microseconds(10), microseconds(300)), [this] {
    if (!over_) Feed(groups::UserReady{state_.version, state_.has_state});
  });
}

}  // namespace troupe::daemons::sim
