// What a fleet is held against, on the same market:
//
//   on-demand   max_workers on the cheapest on-demand pool, all the time
//   one zone    the spot pool that comes out best, seen from the end; the whole group or nothing,
//               and a restart whenever a node is lost. It knows at once when capacity is back.
//   greedy      every spot pool, the cheapest first; what is missing is asked for everywhere once a
//               minute; the same elastic training as ours
//   omniscient  at each instant the cheapest nodes that can be had for max_workers, without a boot
//               or a rebuild: nobody can be cheaper at that goodput
// Thread: any. Pure.
#pragma once

#include <optional>
#include <vector>

#include "autoscaler/simulator/simulation.h"

namespace troupe::simulator {

inline constexpr Duration kGreedyRetry = seconds(60);

// None if there is no on-demand pool that can hold max_workers.
[[nodiscard]] std::optional<FleetFigures> OnDemandFleet(const std::vector<PoolLimits>& pools,
                                                        const MarketHistory& market,
                                                        const SimulationOptions& options);
// None if there is no spot pool. `restart`: of the whole group, after it has nodes again.
[[nodiscard]] std::optional<FleetFigures> OneZoneFleet(const std::vector<PoolLimits>& pools,
                                                       const MarketHistory& market,
                                                       const SimulationOptions& options,
                                                       Duration restart);
[[nodiscard]] FleetFigures GreedyFleet(const FleetLimits& limits, const MarketHistory& market,
                                       const SimulationOptions& options);
[[nodiscard]] FleetFigures OmniscientFleet(const std::vector<PoolLimits>& pools,
                                           const MarketHistory& market,
                                           const SimulationOptions& options);

}  // namespace troupe::simulator
