// The placement group of the simulated driver: bundles of one CPU, of which actors may draw.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "actors/core/group_protocol.h"
#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_requests.h"

namespace troupe::daemons::sim {

class SimPlacement {
 public:
  // With `bundles`, or one more; none: there is no group.
  SimPlacement(World* world, uint32_t bundles);

  // `then`: when it is there, placed or not.
  void Create(std::function<void()> then);
  // Asks for one more bundle, or gives one back.
  void Disturb();
  void Remove();
  // It is not asked for any more.
  void Leave() { port_.Stop(); }
  [[nodiscard]] bool asking() const { return requests_.waiting(); }
  // What keeps all bundles from having a place; empty: nothing.
  [[nodiscard]] std::string NotSettled() const;
  // Of the bundles, as far as is known.
  [[nodiscard]] std::multiset<std::string> nodes() const;

 private:
  [[nodiscard]] actors::GroupRequest About(actors::PlacementGroupVerb verb) const;
  void Look();
  void CheckPlaces();

  World* const world_;
  const uint32_t bundles_;
  uint32_t wanted_;
  SimPort port_;
  SimRequests requests_{&port_};
  std::optional<PlacementGroupStatus> status_;
  std::map<uint32_t, std::pair<std::string, uint64_t>> places_;  // Node and its incarnation.
};

}  // namespace troupe::daemons::sim
