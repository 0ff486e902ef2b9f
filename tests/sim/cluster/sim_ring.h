// A collective group of the simulated driver's actors, elastic or fixed. All of them are in each of
// these groups.
#pragma once

#include <optional>
#include <string>

#include "actors/core/collective_protocol.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_requests.h"

namespace troupe::daemons::sim {

class SimRing {
 public:
  // Of so many actors; none: there is no group.
  SimRing(World* world, SimTraining* training, uint32_t size);

  // When its actors are there.
  void Create();
  void Destroy();
  // One of its actors asks to use it in another way than all others do: it is refused.
  void AskOtherwise(const std::string& actor, uint64_t incarnation);
  // It is not asked for any more.
  void Leave() { port_.Stop(); }
  [[nodiscard]] bool asking() const { return requests_.waiting(); }
  // What keeps all its actors from being members of one epoch; empty: nothing.
  [[nodiscard]] std::string NotSettled() const;

 private:
  [[nodiscard]] actors::CollectiveRequest About(actors::CollectiveVerb verb) const;
  void Look();

  World* const world_;
  SimTraining* const training_;
  const std::string name_;
  const uint32_t size_;
  SimPort port_;
  SimRequests requests_{&port_};
  std::optional<actors::CollectiveStatus> status_;
};

}  // namespace troupe::daemons::sim
