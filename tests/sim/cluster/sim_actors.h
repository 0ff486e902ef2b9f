// The actors of the simulated driver: made, followed and ended by it, each with one CPU and as many
// lives as it needs. With them what it has of groups: one of actors, a collective one, and bundles.
#pragma once

#include <map>
#include <string>

#include "actors/core/cluster_protocol.h"
#include "tests/sim/cluster/sim_actor_group.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_placement.h"
#include "tests/sim/cluster/sim_requests.h"
#include "tests/sim/cluster/sim_ring.h"

namespace troupe::daemons::sim {

class SimActors {
 public:
  explicit SimActors(World* world);

  void Create();
  // Asks for something else of its groups.
  void Disturb();
  void Settle();
  // When all is settled: for what must be refused.
  void AskOtherwise();
  void Kill();
  // They are not asked for any more; their owner is gone, or says nothing.
  void Leave();
  [[nodiscard]] bool asking() const {
    return requests_.waiting() || group_.asking() || ring_.asking() || pair_.asking() ||
           placement_.asking();
  }
  // Why not all of them live, each in one process that the driver was told of.
  [[nodiscard]] std::string NotSettled() const;

 private:
  void CreateActors();
  void Beat();
  void OnFrame(const std::string& frame);
  [[nodiscard]] uint32_t count() const { return world_->options_.actors; }
  // Whether this one draws of the bundles.
  [[nodiscard]] bool InBundle(uint32_t number) const { return number < world_->options_.bundles; }

  World* const world_;
  SimPort port_;
  SimRequests requests_{&port_};
  SimActorGroup group_;
  SimRing ring_;
  SimRing pair_;
  SimPlacement placement_;
  std::map<std::string, actors::ActorLocation> actors_;  // As they were told of last.
};

}  // namespace troupe::daemons::sim
