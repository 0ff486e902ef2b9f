#include "tests/sim/cluster/sim_actors.h"

#include <utility>
#include <vector>

#include "actors/core/error_chain.h"
#include "runtime/wire.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
SimActors::SimActors(World* world)
    : world_(world),
      port_(world, "owner-1", kHeadHost),
      group_(world, world->options_.group),
      ring_(world, &world->training(kRingName),
            world->options_.ring == Ring::kNone ? 0 : world->options_.actors),
      pair_(world, &world->training(kPairName),
            world->options_.pair == Ring::kNone ? 0 : world->options_.actors),
      placement_(world, world->options_.bundles) {
  port_.SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  Beat();
}

void SimActors::Create() {
  placement_.Create([this] { CreateActors(); });
  group_.Create();
}

void SimActors::CreateActors() {
  for (uint32_t i = 0; i < count(); ++i) {
    actors::CreateActor create;
    create.spec.actor = kActorPrefix + std::to_string(i);
    create.spec.type = "Simulated";
    create.spec.owner = kOwner;
    create.spec.wish.resources = {{"CPU", 1}};
    if (InBundle(i)) create.spec.wish.group = kPlacementGroup;
    create.spec.max_restarts = -1;
    create.spec.backoff_max_ms = 500;
    actors_[create.spec.actor] = {};
    requests_.Ask(actors::kFrameCreateActor, std::move(create),
                  [this](const actors::ActorAnswer& answer) {
                    if (!answer.error.empty())
                      world_->Fail("making an actor: " + actors::FromChain(answer.error).message);
                    if (requests_.waiting()) return;
                    ring_.Create();
                    pair_.Create();
                  });
  }
}

void SimActors::Disturb() { world_->Uniform() < 0.7 ? group_.Disturb() : placement_.Disturb(); }

void SimActors::Settle() { group_.Resize(world_->options_.group); }

void SimActors::AskOtherwise() {
  if (actors_.empty()) return;
  const auto& [id, actor] = *actors_.begin();
  ring_.AskOtherwise(id, actor.incarnation);
  pair_.AskOtherwise(id, actor.incarnation);
}

void SimActors::Leave() {
  port_.Stop();
  group_.Leave();
  ring_.Leave();
  pair_.Leave();
  placement_.Leave();
}

void SimActors::Kill() {
  if (world_->Uniform() < 0.5) ring_.Destroy();
  if (world_->Uniform() < 0.5) pair_.Destroy();
  for (const auto& [id, actor] : actors_) {
    requests_.Ask(actors::kFrameActorRequest,
                  actors::ActorRequest{0, actors::ActorVerb::kKill, id, 0, "not needed any more"},
                  [this](const actors::ActorAnswer& answer) {
                    if (!answer.error.empty())
                      world_->Fail("ending an actor: " + actors::FromChain(answer.error).message);
                  });
  }
  group_.End();
  placement_.Remove();
}

// Sends the whole list each time and names no head, so that the answer has all states.
void SimActors::Beat() {
  actors::FollowActors follow{kOwner, "", 0, 1, true, {}, {}};
  for (const auto& [id, actor] : actors_) follow.add.push_back(id);
  (void)port_.Send(kHeadName, wire::Encode(actors::kFrameFollowActors, follow));
  port_.loop().CallAfter(kSimBeat, [this] { Beat(); });
}

void SimActors::OnFrame(const std::string& frame) {
  const uint8_t type = *wire::PeekType(frame);
  if (type == actors::kFrameActorAnswer) {
    (void)requests_.Take(*wire::Decode<actors::ActorAnswer>(type, frame));
  } else if (type == actors::kFrameActorStates) {
    const auto states = *wire::Decode<actors::ActorStates>(type, frame);
    for (const actors::ActorLocation& actor : states.actors) actors_[actor.actor] = actor;
  }
}

std::string SimActors::NotSettled() const {
  std::map<std::string, std::vector<const SimWorker*>> hosts;
  for (const SimWorker* worker : world_->Workers())
    if (!worker->actor().empty()) hosts[worker->actor()].push_back(worker);
  std::multiset<std::string> bundles = placement_.nodes();
  for (const auto& [id, actor] : actors_) {
    const std::vector<const SimWorker*>& at = hosts[id];
    if (actor.state != actors::ActorState::kAlive) return id + " is not alive for its owner";
    if (at.size() != 1) return id + " has " + std::to_string(at.size()) + " processes";
    if (actor.incarnation != at[0]->actor_incarnation())
      return id + " lives a life that its owner was not told of";
    if (!InBundle(static_cast<uint32_t>(std::stoul(id.substr(kActorPrefix.size()))))) continue;
    const auto bundle = bundles.find(at[0]->node());
    if (bundle == bundles.end()) return id + " runs outside of its bundles";
    bundles.erase(bundle);
  }
  if (std::string why = placement_.NotSettled(); !why.empty()) return why;
  if (std::string why = ring_.NotSettled(); !why.empty()) return why;
  if (std::string why = pair_.NotSettled(); !why.empty()) return why;
  return group_.NotSettled();
}

}  // namespace troupe::daemons::sim
