#include "tests/sim/cluster/sim_actor_group.h"

#include <utility>
#include <vector>

#include "actors/core/error_chain.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_training.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr const char* kGroup = "group-1";
constexpr double kDrainLimit_s = 2;

}  // namespace

SimActorGroup::SimActorGroup(World* world, uint32_t max_size)
    : world_(world), max_size_(max_size), size_(max_size), port_(world, "group-owner", kHeadHost) {
  port_.SetHandler([this](const std::string&, const std::string& frame) {
    const uint8_t type = *wire::PeekType(frame);
    if (type != actors::kFrameActorAnswer) return;
    const auto answer = *wire::Decode<actors::ActorAnswer>(type, frame);
    if (requests_.Take(answer)) OnStatus(answer.actors);
  });
}

void SimActorGroup::Create() {
  if (max_size_ == 0) return;
  actors::ActorGroupRequest create;
  create.verb = actors::ActorGroupVerb::kCreate;
  create.spec.group = kGroup;
  create.spec.name = kGroupName;
  create.spec.owner = kOwner;
  create.spec.min_size = 1;
  create.spec.size = size_;
  create.spec.max_size = max_size_;
  create.spec.member.type = "Simulated";
  create.spec.member.wish.resources = {{"CPU", 1}};
  create.spec.member.max_restarts = -1;
  create.spec.member.backoff_max_ms = 500;
  Ask(std::move(create));
  Look();
}

void SimActorGroup::Resize(uint32_t size) {
  if (max_size_ == 0 || asking()) return;
  size_ = size;
  actors::ActorGroupRequest resize;
  resize.verb = actors::ActorGroupVerb::kResize;
  resize.spec.group = kGroup;
  resize.size = size;
  Ask(std::move(resize));
}

void SimActorGroup::Disturb() {
  if (max_size_ == 0) return;
  if (world_->Uniform() < 0.4) return DrainOne();
  Resize(1 + static_cast<uint32_t>(world_->Uniform() * max_size_));
}

// One that is there as far as is known: that it is not any more is no error of the group's.
void SimActorGroup::DrainOne() {
  if (!status_ || status_->members.empty()) return;
  actors::ActorGroupRequest drain;
  drain.verb = actors::ActorGroupVerb::kDrain;
  drain.spec.group = kGroup;
  drain.member = status_->members.front().number;
  drain.reason = "another is to take its place";
  drain.limit_s = kDrainLimit_s;
  Ask(std::move(drain));
}

void SimActorGroup::End() {
  if (max_size_ == 0) return;
  actors::ActorGroupRequest end;
  end.verb = actors::ActorGroupVerb::kEnd;
  end.spec.group = kGroup;
  end.reason = "not needed any more";
  Ask(std::move(end));
}

// Its status, from time to time.
void SimActorGroup::Look() {
  actors::ActorGroupRequest look;
  look.verb = actors::ActorGroupVerb::kStatus;
  look.spec.group = kGroup;
  look.since = sequence_;
  requests_.Look(actors::kFrameActorGroupRequest, look);
  port_.loop().CallAfter(kSimLook, [this] { Look(); });
}

void SimActorGroup::Ask(actors::ActorGroupRequest request) {
  requests_.Ask(actors::kFrameActorGroupRequest, std::move(request),
                [this](const actors::ActorAnswer& answer) {
                  if (answer.error.empty()) return;
                  // A member that was to be drained may be none any more.
                  const Error problem = actors::FromChain(answer.error);
                  if (problem.code != ErrorCode::kNotFound)
                    world_->Fail("asking for a group: " + problem.message);
                });
}

void SimActorGroup::OnStatus(const ActorGroupStatus& status) {
  if (status.sequence < sequence_) {
    world_->Fail("the events of the group were " + std::to_string(sequence_) + " and are " +
                 std::to_string(status.sequence));
  }
  for (const GroupEvent& event : status.events) {
    if (event.sequence <= sequence_) continue;
    world_->Tell("the group: member ", event.member, " ", GroupEventKindName(event.kind), " ",
                 event.detail);
  }
  sequence_ = status.sequence;
  status_ = status;
}

std::string SimActorGroup::NotSettled() const {
  if (max_size_ == 0) return "";
  if (!status_) return "nothing is known of the group";
  if (status_->ended) return "the group has ended: " + status_->reason;
  if (status_->size != size_) return "the group is of size " + std::to_string(status_->size);
  std::map<std::string, std::vector<const SimWorker*>> hosts;
  for (const SimWorker* worker : world_->Workers())
    if (!worker->actor().empty()) hosts[worker->actor()].push_back(worker);
  size_t members = 0;
  for (const ActorGroupStatus::Member& member : status_->members) {
    const std::string who = "member " + std::to_string(member.number);
    if (member.state != GroupMemberState::kAlive) return who + " is not alive";
    const std::vector<const SimWorker*>& at = hosts[member.actor];
    if (at.size() != 1) return who + " has " + std::to_string(at.size()) + " processes";
    if (at[0]->actor_incarnation() != member.incarnation)
      return who + " lives a life that its owner was not told of";
    ++members;
  }
  if (members != size_) return "the group has " + std::to_string(members) + " members";
  return world_->training(kGroupName).NotSettled(members);
}

}  // namespace troupe::daemons::sim
