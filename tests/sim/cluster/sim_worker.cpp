#include "tests/sim/cluster/sim_worker.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "actors/core/actor_group_protocol.h"
#include "actors/core/error_chain.h"
#include "daemons/head/core/collective_groups.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_node.h"
#include "tests/sim/cluster/sim_training.h"

namespace troupe::daemons::sim {

namespace {

constexpr Duration kRepeatResult = milliseconds(200);
constexpr size_t kResultPart = 5;  // Bytes.
constexpr Duration kRepeatJoin = milliseconds(100);
constexpr Duration kJoinAgain = milliseconds(300);  // After a refusal that will not last.

}  // namespace

SimWorker::SimWorker(World* world, SimNode* node, const StartWorker& start)
    : world_(world),
      node_(node),
      node_id_(node->id()),
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
  if (!std::exchange(alive_, false)) return;
  if (member_) member_->Stop();
  for (const Membership& membership : memberships_)
    if (membership.member) membership.member->Stop();
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
  if (again) Later(kSimBeat, [this] { Hello(true); });
}

void SimWorker::OnFrame(const std::string& frame) {
  if (!alive_) return;
  const uint8_t type = *wire::PeekType(frame);
  if (type == kFrameGroupCommand) {
    const GroupFrame outer = *wire::Decode<GroupFrame>(type, frame);
    const groups::CommandReceived command{*wire::Decode<groups::Command>(type, outer.body)};
    if (outer.group == kRun && member_) member_->Feed(command);
    for (const Membership& membership : memberships_)
      if (membership.training->group() == outer.group && membership.member)
        membership.member->Feed(command);
  } else if (type == kFrameAssignment) {
    OnAssignment(*wire::Decode<Assignment>(type, frame));
  } else if (type == kFramePartTaken) {
    kept_ = wire::Decode<PartTaken>(type, frame)->have;
  } else if (type == actors::kFrameActorAnswer) {
    OnJoined(*wire::Decode<actors::ActorAnswer>(type, frame));
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
  if (assigned()) return;  // A repeat.
  assignment_ = assignment;
  if (assignment.kind == AssignmentKind::kActor) {
    const auto given =
        *wire::Decode<actors::ActorAssignment>(actors::kActorAssignment, assignment.payload);
    actor_ = given.actor;
    actor_incarnation_ = given.incarnation;
    Hello(false);
    for (SimTraining* training : world_->TrainingsOf(actor_))
      memberships_.emplace_back().training = training;
    for (Membership& membership : memberships_)
      Later(world_->Between(milliseconds(1), seconds(1)),
            [this, &membership] { Join(membership); });
    return;
  }
  SimState state;
  state.hash = static_cast<uint64_t>(pid_);  // Until it is told, everybody has another model.
  member_ = std::make_unique<SimMember>(world_, &world_->training(kRun), this,
                                        *groups::MemberId::Parse(assignment.member), 0, state,
                                        [this](SimMember::Over how) { OnRunOver(how); });
  Hello(false);
  member_->Begin();
}

// ---- the run ----

void SimWorker::OnRunOver(SimMember::Over how) {
  if (how == SimMember::Over::kReturned) return SayResult(std::to_string(member_->state().hash));
  if (how == SimMember::Over::kRaised) return SayResult("raised", false);
  SayResult("");
}

bool SimWorker::SendPart(const std::string& payload) {
  if (kept_ >= payload.size()) return false;
  const WorkerPart part{process_, 1, kept_, payload.size(), payload.substr(kept_, kResultPart)};
  (void)port_.Send(kHeadName, wire::Encode(kFrameWorkerPart, part));
  return true;
}

// Nothing: it was sent away.
void SimWorker::SayResult(const std::string& payload, bool ok) {
  if (released_) return;
  const bool parts = world_->options_.large_results && ok && !payload.empty();
  if (parts && SendPart(payload))
    return Later(milliseconds(5), [this, payload] { SayResult(payload); });
  WorkerResult result;
  result.process = process_;
  result.assignment = assignment_.id;
  result.member = assignment_.member;
  result.ok = ok;
  result.rank = member_->rank();
  result.upload = parts ? 1 : 0;
  result.payload = parts ? "" : payload;
  (void)port_.Send(kHeadName, wire::Encode(kFrameWorkerResult, result));
  Later(kRepeatResult, [this, payload, ok] { SayResult(payload, ok); });
}

// ---- collective groups of actors ----

void SimWorker::Join(Membership& membership) {
  if (membership.joining != 0) return;
  membership.joining = next_request_++;
  RepeatJoin(membership, membership.joining);
}

void SimWorker::RepeatJoin(Membership& membership, uint64_t request) {
  if (request != membership.joining) return;
  const SimTraining& training = *membership.training;
  actors::CollectiveRequest join;
  join.request = request;
  join.verb = actors::CollectiveVerb::kJoin;
  join.spec.name = training.group().substr(std::string_view(actors::kCollectivePrefix).size());
  join.spec.trains = join.spec.elastic = training.elastic();
  join.actor = actor_;
  join.incarnation = actor_incarnation_;
  (void)port_.Send(kHeadName, wire::Encode(actors::kFrameCollectiveRequest, join));
  Later(kRepeatJoin, [this, &membership, request] { RepeatJoin(membership, request); });
}

void SimWorker::OnJoined(const actors::ActorAnswer& answer) {
  CheckRepeat(answer);
  const auto membership = std::ranges::find(memberships_, answer.request, &Membership::joining);
  if (membership == memberships_.end()) return;
  membership->joining = 0;
  if (answer.error.empty()) {
    membership->joined = answer.request;
    membership->number = answer.collective.number;
    CheckKept(answer.collective.spec.name, answer.collective);
    return Enter(*membership, answer.collective);
  }
  const Error refused = actors::FromChain(answer.error);
  if (refused.code == ErrorCode::kFenced) return;  // It is taken for dead, and will be ended.
  // The group is not made yet, or not open to it for now.
  if (refused.code != ErrorCode::kNotFound && refused.code != ErrorCode::kDrained)
    world_->Fail(actor_ + " joins " + membership->training->group() + ": " + refused.message);
  Later(kJoinAgain, [this, &again = *membership] { Join(again); });
}

void SimWorker::CheckRepeat(const actors::ActorAnswer& answer) {
  const auto before = std::ranges::find(memberships_, answer.request, &Membership::joined);
  if (before == memberships_.end() || !answer.error.empty()) return;
  if (answer.collective.number != before->number && !world_->StoreMayLack())
    world_->Fail(actor_ + " has joined " + before->training->group() + " twice by one request");
}

void SimWorker::CheckKept(const std::string& group, const actors::CollectiveStatus& joined) {
  if (world_->StoreMayLack()) return;
  const auto value = world_->store().Get(kCollectiveRecords + group);
  uint64_t joins = 0;
  if (value.ok() && *value) {
    const auto record = wire::Decode<CollectiveRecord>(actors::kCollectiveRecord, **value);
    if (record.ok()) joins = record->life > joined.life ? UINT64_MAX : record->joins;
  }
  if (joins < joined.number)
    world_->Fail(actor_ + " was told that it has joined " + group + ", which is not kept");
}

void SimWorker::Enter(Membership& membership, const actors::CollectiveStatus& joined) {
  SimState state;
  state.hash = static_cast<uint64_t>(pid_);
  if (membership.member) {
    state = membership.member->state();
    membership.member->Stop();
    past_.push_back(std::move(membership.member));
  }
  membership.member = std::make_unique<SimMember>(
      world_, membership.training, this, groups::MemberId{actor_, joined.number}, joined.life,
      state, [this, &membership](SimMember::Over how) { OnOver(membership, how); });
  membership.member->Begin();
}

void SimWorker::OnOver(Membership& membership, SimMember::Over how) {
  const bool fenced = how == SimMember::Over::kFenced;
  world_->Tell(actor_, " is out of ", membership.training->group(), fenced ? "" : " for good");
  Later(fenced ? milliseconds(1) : kJoinAgain, [this, &membership] { Join(membership); });
}

}  // namespace troupe::daemons::sim
