// A made-up spot market for cluster files without recorded traces: zones that fail by themselves
// and, part of the time, together with their region.
//
// A zone offers all that its pool may hold, or a part of that, or nothing; so does a region that is
// out. How long each lasts is drawn from exponential distributions with the means of recorded
// 16-node markets (docs/performance.md): hours of offers, an hour of outage, most falls to nothing.
// Thread: any. The same seed makes the same market.
#pragma once

#include <cstdint>
#include <vector>

#include "autoscaler/plan.h"
#include "autoscaler/simulator/market_history.h"

namespace troupe::simulator {

struct SyntheticOptions {
  uint64_t seed = 1;
  Duration length = seconds(30 * 86400);
  Duration zone_up = seconds(5 * 3600);     // Mean.
  Duration zone_out = seconds(2400);        // Mean.
  Duration region_up = seconds(20 * 3600);  // Mean.
  Duration region_out = seconds(3600);      // Mean.
  int partial_percent = 15;                 // Of a zone's times of offers: less than all.
};

[[nodiscard]] MarketHistory MakeMarket(const SyntheticOptions& options,
                                       const std::vector<PoolLimits>& pools);

}  // namespace troupe::simulator
