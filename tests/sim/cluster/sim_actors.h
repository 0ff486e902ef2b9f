// The actors of the simulated driver: made, followed and ended by it, each with one CPU and as many
// lives as it needs. With them its group of actors.
#pragma once

#include <map>
#include <string>

#include "actors/core/cluster_protocol.h"
#include "tests/sim/cluster/sim_actor_group.h"
#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

class SimActors {
 public:
  // The group has up to `group` members; none: there is none.
  SimActors(World* world, uint32_t group);

  // Asked for until it is answered.
  void Create(uint32_t count);
  void Kill();
  // They are not asked for any more; their owner is gone, or says nothing.
  void Leave();
  [[nodiscard]] SimActorGroup& group() { return group_; }
  [[nodiscard]] bool asking() const { return !asked_.empty() || group_.asking(); }
  // Why not all of them live, each in one process that the driver was told of.
  [[nodiscard]] std::string NotSettled() const;

 private:
  void Beat();
  void Ask(uint64_t request, std::string frame);
  void Repeat(uint64_t request);
  void OnFrame(const std::string& frame);

  World* const world_;
  SimPort port_;
  SimActorGroup group_;
  uint64_t next_request_ = 1;
  std::map<uint64_t, std::string> asked_;                // Frames.
  std::map<std::string, actors::ActorLocation> actors_;  // As they were told of last.
  std::string log_;
};

}  // namespace troupe::daemons::sim
