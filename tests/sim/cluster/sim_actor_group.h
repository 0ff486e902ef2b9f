// The group of actors of the simulated driver: made, resized, drained and ended by it, with one CPU
// for each member. Its members train.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "actors/core/actor_group_protocol.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_requests.h"

namespace troupe::daemons::sim {

class SimActorGroup {
 public:
  // Up to `max_size` members; none: there is no group.
  SimActorGroup(World* world, uint32_t max_size);

  void Create();
  void Resize(uint32_t size);
  // Asks for another size, or for one member to go.
  void Disturb();
  void End();
  // It is not asked for any more.
  void Leave() { port_.Stop(); }
  [[nodiscard]] bool asking() const { return requests_.waiting(); }
  // What keeps it from having all its members, each alive in one process; empty: nothing.
  [[nodiscard]] std::string NotSettled() const;

 private:
  void DrainOne();
  void Look();
  void Ask(actors::ActorGroupRequest request);
  void OnStatus(const ActorGroupStatus& status);

  World* const world_;
  const uint32_t max_size_;
  uint32_t size_;
  SimPort port_;
  SimRequests requests_{&port_};
  std::optional<ActorGroupStatus> status_;
  uint64_t sequence_ = 0;  // Of the last event that was told.
};

}  // namespace troupe::daemons::sim
