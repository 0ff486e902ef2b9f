#include "tests/sim/cluster/sim_ring.h"

#include <set>
#include <string_view>

#include "actors/core/error_chain.h"
#include "tests/sim/cluster/sim_training.h"

namespace troupe::daemons::sim {
SimRing::SimRing(World* world, SimTraining* training, uint32_t size)
    : world_(world),
      training_(training),
      name_(training->group().substr(std::string_view(actors::kCollectivePrefix).size())),
      size_(size),
      port_(world, name_ + "-owner", kHeadHost) {
  port_.SetHandler([this](const std::string&, const std::string& frame) {
    const uint8_t type = *wire::PeekType(frame);
    if (type != actors::kFrameActorAnswer) return;
    const auto answer = *wire::Decode<actors::ActorAnswer>(type, frame);
    if (requests_.Take(answer)) status_ = answer.collective;
  });
}

actors::CollectiveRequest SimRing::About(actors::CollectiveVerb verb) const {
  actors::CollectiveRequest request;
  request.verb = verb;
  request.spec.name = name_;
  return request;
}

void SimRing::Create() {
  if (size_ == 0) return;
  actors::CollectiveRequest create = About(actors::CollectiveVerb::kCreate);
  create.spec.owner = kOwner;
  create.spec.size = size_;
  create.spec.elastic = training_->elastic();
  for (uint32_t i = 0; i < size_; ++i)
    create.spec.actors.push_back(kActorPrefix + std::to_string(i));
  requests_.Ask(actors::kFrameCollectiveRequest, std::move(create),
                [this](const actors::ActorAnswer& answer) {
                  if (!answer.error.empty())
                    world_->Fail("making a ring: " + actors::FromChain(answer.error).message);
                });
  Look();
}

void SimRing::Destroy() {
  if (size_ == 0) return;
  requests_.Ask(actors::kFrameCollectiveRequest, About(actors::CollectiveVerb::kDestroy),
                [](const actors::ActorAnswer&) {});
}

void SimRing::AskOtherwise(const std::string& actor, uint64_t incarnation) {
  if (size_ < 2 || !status_) return;
  actors::CollectiveRequest join = About(actors::CollectiveVerb::kJoin);
  join.spec.trains = !training_->elastic();
  join.actor = actor;
  join.incarnation = incarnation;
  requests_.Ask(actors::kFrameCollectiveRequest, std::move(join),
                [this](const actors::ActorAnswer& answer) {
                  if (answer.error.empty())
                    world_->Fail("of " + name_ + " one member trains and others do not");
                });
}

void SimRing::Look() {
  requests_.Look(actors::kFrameCollectiveRequest, About(actors::CollectiveVerb::kStatus));
  port_.loop().CallAfter(kSimLook, [this] { Look(); });
}

std::string SimRing::NotSettled() const {
  if (size_ == 0) return "";
  if (!status_) return "nothing is known of " + name_;
  std::set<uint64_t> numbers;
  for (const actors::CollectiveStatus::Seat& seat : status_->seats) {
    if (seat.number == 0) return seat.actor + " is not in " + name_ + ": " + seat.state;
    numbers.insert(seat.number);
  }
  if (numbers.size() != size_) return name_ + " has " + std::to_string(numbers.size()) + " members";
  if (status_->phase != "active") return name_ + " is " + status_->phase + ": " + status_->reason;
  return training_->NotSettled(size_);
}

}  // namespace troupe::daemons::sim
