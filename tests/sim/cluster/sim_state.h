// Small things that the parts of the cluster simulation share.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/loopback_transport.h"

namespace troupe::daemons::sim {

inline constexpr const char* kRun = "run-1";
inline constexpr const char* kHeadHost = "head-host";
inline constexpr const char* kOwner = "driver/driver-1";  // Of actors and groups.
inline const std::string kActorPrefix = "actor-";
inline constexpr const char* kGroupName = "simulated";  // The group of actors.
inline constexpr const char* kRingName = "ring";        // The collective groups of the others.
inline constexpr const char* kPairName = "pair";
inline constexpr const char* kPlacementGroup = "pg-1";

class SimClock final : public Clock {
 public:
  explicit SimClock(const LoopbackNetwork* network) : network_(network) {}
  [[nodiscard]] Time Now() const override { return network_->Now(); }

 private:
  const LoopbackNetwork* const network_;
};

// What a member has committed.
struct SimState {
  uint64_t version = 0;
  uint64_t hash = 0;
  bool has_state = false;
};

}  // namespace troupe::daemons::sim
