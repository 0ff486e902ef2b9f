// How long a launch waits for others, so that their nodes join together: each join stands all
// members still for `rebuild_time`, while a worker that comes later is missed for as long.
//
// With losses at the rate l, n workers up and R per rebuild, launching at once costs l R n workers.
// A window W that opens with the first loss costs (R n + W + l W^2 / 2) / (W + 1/l). Its least is
// at W = (sqrt(2 K - 1) - 1) / l with K = l R n; for K <= 1 it does not pay to wait. For large K
// that is sqrt(2 R n / l).
// Thread: one. A pure core: the caller hands in the time.
#pragma once

#include <optional>

#include "autoscaler/plan.h"
#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kLossesHalfLife = seconds(3600);

class JoinWindow {
 public:
  // So many workers' nodes were taken away.
  void Lost(Time now, int nodes);
  // When `missing` workers are to be launched; in the past: now. Never later for those that are
  // missing below `min_workers`.
  [[nodiscard]] Time Due(Time now, const FleetLimits& limits, int up, int missing);
  // The best window with so many workers up.
  [[nodiscard]] Duration WindowOf(Duration rebuild, int up) const;

 private:
  double losses_ = 0;  // Faded.
  Time faded_at_;
  std::optional<Time> open_since_;
};

}  // namespace troupe
