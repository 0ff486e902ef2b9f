// The fleet in numbers, kept up to date while a decision adds actions.
//
// Thread: one. Used by the sources of AutoscalerPolicy.
#pragma once

#include <map>
#include <sstream>
#include <string>

#include "autoscaler/plan.h"
#include "autoscaler/policy.h"

namespace troupe {

struct AutoscalerPolicy::Tally {
  struct PoolCount {
    int nodes = 0;     // Billed.
    int capacity = 0;  // Workers that stay.
    int pending = 0;   // Launches that have not shown up.
  };
  std::map<std::string, PoolCount> pools;
  std::map<std::string, int> zones;    // Spot workers that stay.
  std::map<std::string, int> regions;  // Spot workers that stay.
  int target = 0;
  int nodes = 0;
  int capacity = 0;
  int up = 0;  // Workers of nodes that are up and stay.
  int on_demand_capacity = 0;
  int launching = 0;
  double price_per_hour = 0;
  bool moving = false;  // What is to be replaced is left out of the capacity, and still there.

  static std::string ZoneOf(const PoolLimits& pool) {
    return pool.zone.empty() ? pool.name : pool.zone;
  }
  [[nodiscard]] PoolCount Of(const PoolLimits& pool) const {
    const auto found = pools.find(pool.name);
    return found == pools.end() ? PoolCount{} : found->second;
  }
  [[nodiscard]] int InZone(const PoolLimits& pool) const {
    const auto found = zones.find(ZoneOf(pool));
    return found == zones.end() ? 0 : found->second;
  }
  [[nodiscard]] int InRegion(const PoolLimits& pool) const {
    const auto found = regions.find(RegionOf(ZoneOf(pool)));
    return found == regions.end() ? 0 : found->second;
  }
  void Add(const PoolLimits& pool, int billed, int staying) {
    pools[pool.name].nodes += billed;
    nodes += billed;
    price_per_hour += billed * pool.price_per_hour;
    AddCapacity(pool, staying * pool.workers_per_node);
  }
  void AddCapacity(const PoolLimits& pool, int workers) {
    pools[pool.name].capacity += workers;
    capacity += workers;
    if (pool.market == Market::kOnDemand) {
      on_demand_capacity += workers;
      return;
    }
    zones[ZoneOf(pool)] += workers;
    regions[RegionOf(ZoneOf(pool))] += workers;
  }
};

namespace policy_text {

inline std::string Seconds(Duration duration) {
  std::ostringstream out;
  out.precision(4);
  out << ToSeconds(duration) << " s";
  return out.str();
}

inline std::string Figure(double value) {
  std::ostringstream out;
  out.precision(3);
  out << value;
  return out.str();
}

inline std::string Workers(int count) {
  return std::to_string(count) + (count == 1 ? " worker" : " workers");
}

}  // namespace policy_text

// It is there and has no notice.
[[nodiscard]] inline bool Stays(const FleetNode& node) {
  return (node.phase == NodePhase::kLaunching || node.phase == NodePhase::kUp) &&
         node.notice_deadline == Time::Never();
}

}  // namespace troupe
