#include "tests/sim/cluster/sim_actors.h"

#include <utility>
#include <vector>

#include "actors/core/error_chain.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kBeat = milliseconds(300);
constexpr Duration kRepeat = milliseconds(100);

}  // namespace

SimActors::SimActors(World* world, uint32_t group)
    : world_(world), port_(world, "owner-1", kHeadHost), group_(world, group) {
  port_.SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  Beat();
}

void SimActors::Create(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    actors::CreateActor create;
    create.request = next_request_++;
    create.spec.actor = "actor-" + std::to_string(i);
    create.spec.type = "Simulated";
    create.spec.owner = kOwner;
    create.spec.wish.resources = {{"CPU", 1}};
    create.spec.max_restarts = -1;
    create.spec.backoff_max_ms = 500;
    actors_[create.spec.actor] = {};
    Ask(create.request, wire::Encode(actors::kFrameCreateActor, create));
  }
  group_.Create();
}

void SimActors::Leave() {
  port_.Stop();
  group_.Leave();
}

void SimActors::Kill() {
  for (const auto& [id, actor] : actors_) {
    const uint64_t request = next_request_++;
    Ask(request, wire::Encode(actors::kFrameActorRequest,
                              actors::ActorRequest{request, actors::ActorVerb::kKill, id, 0,
                                                   "not needed any more"}));
  }
  group_.End();
}

void SimActors::Ask(uint64_t request, std::string frame) {
  asked_[request] = std::move(frame);
  Repeat(request);
}

void SimActors::Repeat(uint64_t request) {
  const auto it = asked_.find(request);
  if (it == asked_.end()) return;
  (void)port_.Send(kHeadName, it->second);
  port_.loop().CallAfter(kRepeat, [this, request] { Repeat(request); });
}

// Sends the whole list each time and names no head, so that the answer has all states.
void SimActors::Beat() {
  actors::FollowActors follow{kOwner, "", 0, 1, true, {}, {}};
  for (const auto& [id, actor] : actors_) follow.add.push_back(id);
  (void)port_.Send(kHeadName, wire::Encode(actors::kFrameFollowActors, follow));
  port_.loop().CallAfter(kBeat, [this] { Beat(); });
}

void SimActors::OnFrame(const std::string& frame) {
  const uint8_t type = *wire::PeekType(frame);
  if (type == actors::kFrameActorAnswer) {
    const auto answer = *wire::Decode<actors::ActorAnswer>(type, frame);
    if (asked_.erase(answer.request) > 0 && !answer.error.empty())
      world_->Fail("asking for an actor: " + actors::FromChain(answer.error).message);
  } else if (type == actors::kFrameActorStates) {
    const auto states = *wire::Decode<actors::ActorStates>(type, frame);
    for (const actors::ActorLocation& actor : states.actors) actors_[actor.actor] = actor;
  }
}

std::string SimActors::NotSettled() const {
  std::map<std::string, std::vector<const SimWorker*>> hosts;
  for (const SimWorker* worker : world_->Workers())
    if (!worker->actor().empty()) hosts[worker->actor()].push_back(worker);
  for (const auto& [id, actor] : actors_) {
    const std::vector<const SimWorker*>& at = hosts[id];
    if (actor.state != actors::ActorState::kAlive) return id + " is not alive for its owner";
    if (at.size() != 1) return id + " has " + std::to_string(at.size()) + " processes";
    if (actor.incarnation != at[0]->actor_incarnation())
      return id + " lives a life that its owner was not told of";
  }
  return group_.NotSettled();
}

}  // namespace troupe::daemons::sim
