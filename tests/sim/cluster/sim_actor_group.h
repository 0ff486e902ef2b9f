// The group of actors of the simulated driver: made, resized, drained and ended by it, with one CPU
// for each member.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "actors/core/actor_group_protocol.h"
#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

inline constexpr const char* kOwner = "driver/driver-1";  // Of actors and groups.

class SimActorGroup {
 public:
  // Up to `max_size` members; none: there is no group.
  SimActorGroup(World* world, uint32_t max_size);

  // Asked for until it is answered.
  void Create();
  void Resize(uint32_t size);
  // Asks for another size, or for one member to go.
  void Disturb();
  void End();
  // It is not asked for any more.
  void Leave() { port_.Stop(); }
  [[nodiscard]] bool asking() const { return !asked_.empty(); }
  // What keeps it from having all its members, each alive in one process; empty: nothing.
  [[nodiscard]] std::string NotSettled() const;

 private:
  void DrainOne();
  void Look();
  void Ask(actors::ActorGroupRequest request);
  void Repeat(uint64_t request);
  void OnAnswer(const actors::ActorAnswer& answer);

  World* const world_;
  const uint32_t max_size_;
  uint32_t size_;
  SimPort port_;
  uint64_t next_request_ = 1;
  std::map<uint64_t, std::string> asked_;  // Frames.
  uint64_t looked_ = 0;                    // The last request for its status.
  std::optional<ActorGroupStatus> status_;
  uint64_t sequence_ = 0;  // Of the last event that was told.
};

}  // namespace troupe::daemons::sim
