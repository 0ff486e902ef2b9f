#include "tests/sim/cluster/sim_worker.h"

#include <algorithm>
#include <csignal>

#include "actors/core/actor_group_protocol.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_node.h"

namespace troupe::daemons::sim {

namespace {

constexpr Duration kBeat = milliseconds(300);
constexpr Duration kRepeatResult = milliseconds(200);
constexpr Duration kConnectLimit = milliseconds(200);

uint64_t Mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 1099511628211ULL + 0x9e3779b97f4a7c15ULL;
}

}  // namespace

SimWorker::SimWorker(World* world, SimNode* node, const StartWorker& start)
    : world_(world),
      node_(node),
      start_(start),
      process_(start.process),
      pid_(world->NewPid()),
      port_(world, start.process, node->host()) {
  port_.SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  // The interpreter and its imports; sometimes they take long.
  const bool slow = world_->Uniform() < 0.1;
  Later(world_->Between(milliseconds(5), slow ? seconds(3) : milliseconds(80)),
        [this] { Hello(true); });
}

void SimWorker::Later(Duration delay, std::function<void()> fn) {
  port_.loop().CallAfter(delay, [this, fn = std::move(fn)] {
    if (alive_) fn();
  });
}

void SimWorker::Die(int signal) {
  if (!alive_) return;
  alive_ = false;
  if (id_ && in_epoch_) world_->LeaveSteps(*id_, epoch_);
  in_epoch_ = false;
  node_->OnWorkerEnded(*this, signal);
}

void SimWorker::Hello(bool again) {
  WorkerHello hello;
  hello.process = process_;
  hello.node = node_->id();
  hello.pid = world_->Mutated(Mutation::kPidsUnknown) ? 0 : pid_;
  hello.host = host();
  hello.assignment = assignment_.id;
  hello.member = assignment_.member;
  if (!actor_.empty()) hello.address = {process_ + "-calls", "sim://" + process_, ""};
  (void)port_.Send(kHeadName, wire::Encode(kFrameWorkerHello, hello));
  if (again) Later(kBeat, [this] { Hello(true); });
}

void SimWorker::OnFrame(const std::string& frame) {
  if (!alive_) return;
  const uint8_t type = *wire::PeekType(frame);
  if (type == kFrameGroupCommand) {
    const GroupFrame outer = *wire::Decode<GroupFrame>(type, frame);
    if (core_) Feed(groups::CommandReceived{*wire::Decode<groups::Command>(type, outer.body)});
  } else if (type == kFrameAssignment) {
    OnAssignment(*wire::Decode<Assignment>(type, frame));
  } else if (type == actors::kFrameLeaveActor) {
    const auto leave = *wire::Decode<actors::LeaveActor>(type, frame);
    if (leave.actor != actor_ || std::exchange(released_, true)) return;
    Later(world_->Between(milliseconds(1), milliseconds(300)), [this] { Die(0); });
  } else if (type == kFrameReleaseWorker) {
    if (std::exchange(released_, true)) return;
    Later(world_->Between(milliseconds(1), milliseconds(100)), [this] { Die(0); });
  }
}

void SimWorker::OnAssignment(const Assignment& assignment) {
  if (core_ || !actor_.empty()) return;  // A repeat.
  assignment_ = assignment;
  if (assignment.kind == AssignmentKind::kActor) {
    const auto given =
        *wire::Decode<actors::ActorAssignment>(actors::kActorAssignment, assignment.payload);
    actor_ = given.actor;
    actor_incarnation_ = given.incarnation;
    return Hello(false);
  }
  id_ = groups::MemberId::Parse(assignment.member);
  state_.hash = static_cast<uint64_t>(pid_);  // Until it is told, everybody has another model.
  core_.emplace(groups::MemberOptions{*id_, host(), host()}, world_->Now());
  Hello(false);
  Feed(groups::MemberTick{});
  Later(world_->Between(milliseconds(1), milliseconds(200)), [this] {
    Feed(groups::UserReady{state_.version, state_.has_state, world_->Uniform() < 0.5});
  });
}

void SimWorker::Feed(const groups::MemberEvent& event) {
  if (!alive_ || core_->expelled()) return;
  for (const groups::MemberAction& action : core_->Step(world_->Now(), event)) Handle(action);
  ArmTimer();
}

void SimWorker::ArmTimer() {
  port_.loop().Cancel(timer_);
  timer_ = port_.loop().CallAt(core_->NextDeadline(), [this] {
    if (alive_) Feed(groups::MemberTick{});
  });
}

void SimWorker::Handle(const groups::MemberAction& action) {
  if (const auto* a = std::get_if<groups::SendReport>(&action)) {
    groups::Report report = a->report;
    if (report.blocked) report.moved = 1 + report.progress.sequence;
    (void)port_.Send(
        kHeadName,
        wire::Encode(kFrameGroupReport, GroupFrame{kRun, wire::Encode(kFrameGroupReport, report)}));
  } else if (std::holds_alternative<groups::AbortEpoch>(action) ||
             std::holds_alternative<groups::FailOperations>(action)) {
    UnwindSoon();
  } else if (const auto* a = std::get_if<groups::MakeOffers>(&action)) {
    groups::OffersMade made{a->epoch, {}, ""};
    for (const groups::LinkPeer& peer : a->peers) made.offers.push_back({peer.slot, 0, host()});
    Later(world_->Between(microseconds(50), milliseconds(2)), [this, made] { Feed(made); });
  } else if (const auto* a = std::get_if<groups::LinkEpoch>(&action)) {
    groups::EpochLinked linked{a->view.epoch, ""};
    for (const groups::LinkOffer& offer : a->offers) {
      if (!world_->AreCut(host(), offer.address)) continue;
      linked.problem = "no route";
      linked.unreachable.push_back(offer.slot);
    }
    const bool ok = linked.problem.empty();
    Later(ok ? world_->Between(microseconds(100), milliseconds(3)) : kConnectLimit,
          [this, linked] { Feed(linked); });
  } else if (const auto* a = std::get_if<groups::MakePrelink>(&action)) {
    Later(microseconds(200), [this, a = *a] {
      Feed(groups::PrelinkOffered{a.peer.slot, a.attempt, host()});
    });
  } else if (const auto* a = std::get_if<groups::LinkAhead>(&action)) {
    const bool ok = !world_->AreCut(host(), a->address);
    Later(ok ? microseconds(300) : kConnectLimit, [this, a = *a, ok] {
      Feed(groups::PrelinkDone{a.slot, a.attempt, ok});
    });
  } else if (const auto* a = std::get_if<groups::Activated>(&action)) {
    world_->OnActivated(a->view);
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
  } else if (std::holds_alternative<groups::Expelled>(action)) {
    if (over_) return;  // It has returned, and says so.
    if (in_epoch_) world_->LeaveSteps(*id_, epoch_);
    in_epoch_ = false;
    over_ = true;
    Later(world_->Between(microseconds(100), milliseconds(100)), [this] { SayResult(""); });
  }
}

// ---- training ----

void SimWorker::StartEpoch(const groups::View& view) {
  in_epoch_ = true;
  synced_ = false;
  in_step_ = false;
  ++generation_;
  epoch_ = view.epoch;
  view_ = view;
  rank_ = groups::RankOf(view, *id_);
  step_ = 0;
  world_->Sync(*this, view);
}

void SimWorker::Synced() {
  synced_ = true;
  state_.has_state = true;
  Feed(groups::UserVersion{state_.version});
  NextStep();
}

void SimWorker::NextStep() {
  if (!in_epoch_) return;
  Later(world_->Between(milliseconds(2), milliseconds(20)), [this, g = generation_] {
    if (!in_epoch_ || g != generation_) return;
    if (raises_ || state_.version >= world_->finish_at()) return Return();
    in_step_ = true;
    ++step_;
    Feed(groups::OperationBegan{epoch_, {step_, 1, "step"}});
    world_->EnterStep(*this, view_, step_);
  });
}

void SimWorker::CompleteStep(groups::Epoch epoch, uint64_t step) {
  if (!in_epoch_ || !in_step_) return;
  if (epoch != epoch_ || step != step_) return world_->Fail("a collective completed across epochs");
  in_step_ = false;
  Feed(groups::OperationEnded{epoch, step});
  state_.hash = Mix(Mix(state_.hash, epoch), state_.version);
  ++state_.version;
  state_.has_state = true;
  world_->OnCommitted(*this);
  Feed(groups::UserVersion{state_.version});
  Feed(groups::UserBoundary{});
}

void SimWorker::Return() {
  over_ = true;
  in_epoch_ = false;
  Feed(groups::UserFinished{});
  raises_ ? SayResult("raised", false) : SayResult(std::to_string(state_.hash));
}

// Nothing: it was sent away.
void SimWorker::SayResult(const std::string& payload, bool ok) {
  if (released_) return;
  WorkerResult result;
  result.process = process_;
  result.assignment = assignment_.id;
  result.member = assignment_.member;
  result.ok = ok;
  result.rank = rank_;
  result.payload = payload;
  (void)port_.Send(kHeadName, wire::Encode(kFrameWorkerResult, result));
  Later(kRepeatResult, [this, payload, ok] { SayResult(payload, ok); });
}

void SimWorker::UnwindSoon() {
  if (!in_epoch_) return;
  Later(world_->Between(microseconds(20), milliseconds(1)), [this, g = generation_] {
    if (in_epoch_ && g == generation_) Unwind();
  });
}

void SimWorker::Unwind() {
  if (in_step_) Feed(groups::OperationEnded{epoch_, step_});
  in_step_ = false;
  in_epoch_ = false;
  world_->LeaveSteps(*id_, epoch_);
  ++generation_;
  Later(world_->Between(microseconds(10), microseconds(300)), [this] {
    if (!over_) Feed(groups::UserReady{state_.version, state_.has_state});
  });
}

}  // namespace troupe::daemons::sim
