#include "tests/sim/cluster/sim_placement.h"

#include <utility>

#include "actors/core/error_chain.h"
#include "tests/sim/cluster/sim_node.h"

namespace troupe::daemons::sim {
SimPlacement::SimPlacement(World* world, uint32_t bundles)
    : world_(world),
      bundles_(bundles),
      wanted_(bundles),
      port_(world, "placement-owner", kHeadHost) {
  port_.SetHandler([this](const std::string&, const std::string& frame) {
    const uint8_t type = *wire::PeekType(frame);
    if (type != actors::kFrameActorAnswer) return;
    const auto answer = *wire::Decode<actors::ActorAnswer>(type, frame);
    if (!requests_.Take(answer)) return;
    status_ = answer.group;
    CheckPlaces();
  });
}

actors::GroupRequest SimPlacement::About(actors::PlacementGroupVerb verb) const {
  actors::GroupRequest request;
  request.verb = verb;
  request.spec.group = kPlacementGroup;
  return request;
}

void SimPlacement::Create(std::function<void()> then) {
  if (bundles_ == 0) return then();
  actors::GroupRequest create = About(actors::PlacementGroupVerb::kCreate);
  create.spec.owner = kOwner;
  create.spec.strategy = world_->options_.seed % 2 == 0 ? "spread" : "pack";
  create.add.assign(bundles_, {{{"CPU", 1}}});
  requests_.Ask(actors::kFrameGroupRequest, std::move(create),
                [this, then = std::move(then)](const actors::ActorAnswer& answer) {
                  if (!answer.error.empty())
                    world_->Fail("reserving: " + actors::FromChain(answer.error).message);
                  then();
                });
  Look();
}

void SimPlacement::Disturb() {
  if (asking() || !status_ || status_->bundles.size() != wanted_) return;
  actors::GroupRequest resize = About(actors::PlacementGroupVerb::kResize);
  if (wanted_ > bundles_) {
    resize.remove.push_back(status_->bundles.front().number);
  } else {
    resize.add.push_back({{{"CPU", 1}}});
  }
  wanted_ = wanted_ > bundles_ ? bundles_ : bundles_ + 1;
  world_->Tell("asked: ", wanted_, " bundles");
  requests_.Ask(actors::kFrameGroupRequest, std::move(resize),
                [this](const actors::ActorAnswer& answer) {
                  if (!answer.error.empty())
                    world_->Fail("resizing bundles: " + actors::FromChain(answer.error).message);
                });
}

void SimPlacement::Remove() {
  if (bundles_ == 0) return;
  requests_.Ask(actors::kFrameGroupRequest, About(actors::PlacementGroupVerb::kRemove),
                [](const actors::ActorAnswer&) {});
}

void SimPlacement::Look() {
  requests_.Look(actors::kFrameGroupRequest, About(actors::PlacementGroupVerb::kStatus));
  port_.loop().CallAfter(kSimLook, [this] { Look(); });
}

// PG-3: a bundle stays where it is while its node lives and is heard.
void SimPlacement::CheckPlaces() {
  for (const PlacementGroupStatus::Bundle& bundle : status_->bundles) {
    const SimNode* node = world_->FindNode(bundle.node);
    if (node == nullptr) continue;
    auto& [name, incarnation] = places_[bundle.number];
    const SimNode* before = name == bundle.node ? nullptr : world_->FindNode(name);
    const bool stayed =
        before != nullptr && before->incarnation() == incarnation && !before->noticed();
    if (stayed && !world_->Disturbed() && !world_->StoreMayLack())
      world_->Fail("bundle " + std::to_string(bundle.number) + " has moved away from " + name);
    name = bundle.node;
    incarnation = node->incarnation();
  }
}

std::string SimPlacement::NotSettled() const {
  if (bundles_ == 0) return "";
  if (!status_) return "nothing is known of the bundles";
  if (!status_->placed()) return "the bundles are " + status_->state + ": " + status_->reason;
  if (status_->bundles.size() == wanted_) return "";
  return "there are " + std::to_string(status_->bundles.size()) + " bundles";
}

std::multiset<std::string> SimPlacement::nodes() const {
  std::multiset<std::string> nodes;
  if (!status_) return nodes;
  for (const PlacementGroupStatus::Bundle& bundle : status_->bundles) nodes.insert(bundle.node);
  return nodes;
}

}  // namespace troupe::daemons::sim
