// Small things that the parts of the cluster simulation share.
#pragma once

#include <cstdint>

#include "runtime/loopback_transport.h"

namespace troupe::daemons::sim {

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
