// The naive model of the scheduler simulation: what was asked, what was answered, and slow checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/scheduler/scheduler_sim.h"
#include "tests/sim/scheduler/sim_amounts.h"

namespace troupe::sched::sim {

[[nodiscard]] SchedulerOptions SchedulerOptionsFor(const SimOptions& options);

struct ModelLease {
  Ask ask;
  int priority = 0;
  uint64_t number = 0;
  PlacementStrategy strategy = PlacementStrategy::kHybrid;
  std::string group;
  int bundle = kAnyBundle;  // Asked for.
  uint64_t gang = 0;
  Time since;
  std::string node;  // Empty: it waits.
  std::vector<uint32_t> devices;
  int given = kAnyBundle;  // The bundle it was given.
  bool confirmed = false;
  bool lent = false;       // Its CPU is for others.
  bool uninvited = false;  // Its CPU was claimed or taken back, so that there may be too little.

  // What it holds now.
  [[nodiscard]] Ask Held() const;
  [[nodiscard]] auto order() const { return std::pair(-priority, number); }
  [[nodiscard]] auto shape() const { return std::tuple(ask, strategy, group, bundle); }
  [[nodiscard]] LeaseRequest ToRequest(const std::string& id) const;
};

struct ModelBundle {
  Ask ask;
  std::string node;
  std::vector<uint32_t> devices;
  uint64_t batch = 0;  // 0: its node was lost.
};

struct ModelGroup {
  PlacementStrategy strategy = PlacementStrategy::kPack;
  int priority = 0;
  uint64_t number = 0;
  uint64_t resized = 0;
  uint32_t next = 0;
  bool was_placed = false;
  std::map<uint32_t, ModelBundle> bundles;
};

struct ModelGang {
  PlacementStrategy strategy = PlacementStrategy::kPack;
  size_t at_least = 1;
  uint64_t number = 0;
  bool met = false;
};

class Model {
 public:
  // Takes over what was decided. `ends`: leases that this event may take away.
  void Apply(Time now, const SchedulerDecision& decision, const std::set<std::string>& ends);
  // What is left of a node, of a bundle.
  [[nodiscard]] Room FreeOf(const std::string& node) const;
  [[nodiscard]] Room FreeIn(const ModelGroup& group, const std::string& id, uint32_t bundle) const;
  void Hash(const SchedulerDecision& decision);
  // Whether a bundle of its group holds it when nothing else is in it.
  [[nodiscard]] bool FitsItsGroup(const ModelLease& lease) const;
  void CheckAll(Time now, const Scheduler& scheduler);
  void CheckEnd(const Scheduler& scheduler);
  void Fail(const std::string& what) {
    if (violation.empty()) violation = what;
  }
  void LoseNode(const std::string& id);
  void EndLease(const std::string& id);

  std::map<std::string, ModelNode> nodes;
  std::map<std::string, ModelLease> leases;
  std::map<std::string, ModelGroup> groups;
  std::map<uint64_t, ModelGang> gangs;
  std::string violation;
  bool claiming = false;  // After a restart what runs is taken as it is.
  SimResult* result = nullptr;

 private:
  struct Promised {
    std::pair<int, uint64_t> order;
    std::string node;
    std::string group;
    int bundle = kAnyBundle;
    Ask held;
  };
  void ApplyGrant(Time now, const Granted& granted);
  void ApplyGroup(Time now, const GroupChange& change);
  void CheckLending();
  void CheckCapacity();
  void CheckBatches();
  void CheckStrategies();
  void CheckNobodyFits(Time now);
  void CheckBatchFits(Time now, const std::map<std::string, Room>& rooms, const std::string& who,
                      const std::vector<Ask>& asks, PlacementStrategy strategy, size_t enough,
                      const std::set<std::string>& beside);
  void CheckOrder();
  void CheckPromises(const Scheduler& scheduler);
  void CheckStarving(Time now);
  void CheckConfirmed(Time now);
  void CheckViews(const Scheduler& scheduler);
  [[nodiscard]] std::vector<Promised> Read(const std::vector<PromiseStatus>& list) const;
  // The promise on a node or bundle that binds a request of this order.
  [[nodiscard]] const Promised* Binding(const std::string& node, const std::string& group,
                                        int bundle, std::pair<int, uint64_t> order) const;

  uint64_t checks_ = 0;
  std::set<std::string> lost_now_;                         // Nodes,
  std::set<std::string> granted_now_;                      // leases granted
  std::set<std::pair<std::string, uint32_t>> placed_now_;  // as these bundles
  std::set<uint64_t> met_now_;                             // and members of these gangs.
  std::vector<Promised> promised_;
};

}  // namespace troupe::sched::sim
