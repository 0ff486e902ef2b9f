// What the autoscaler's policy sees and says: limits, demand and fleet in; actions with their
// reasons out.
//
// Thread: value types. Workers are members of training groups; a node holds `workers_per_node` of
// them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/clock.h"

namespace troupe {

enum class Market : uint8_t { kSpot, kOnDemand };
// "spot", "on_demand".
[[nodiscard]] std::string_view MarketName(Market market);
// "us-east-1" of "us-east-1a", "europe-west4" of "europe-west4-b"; other names stay as they are.
[[nodiscard]] std::string RegionOf(const std::string& zone);

struct PoolLimits {
  std::string name;
  Market market = Market::kOnDemand;
  std::string zone;
  int workers_per_node = 1;
  int min_workers = 0;
  int max_workers = 0;
  double price_per_hour = 0;  // Dollars for one node.
};

struct FleetLimits {
  std::vector<PoolLimits> pools;
  int min_workers = 0;
  int max_workers = 1;
  int max_nodes = 1;                 // Hard: whatever is billed, draining nodes included.
  int max_concurrent_launches = 10;  // Pending and launching nodes.
  int on_demand_base = 0;            // Workers that on-demand pools hold first.
  int on_demand_percent_above_base = 0;
  double budget_per_hour = 0;          // Dollars; 0: no limit.
  double min_marginal_efficiency = 0;  // Of a further worker, against the first; 0: no limit.
  double max_fraction_per_zone = 1;    // Of the target, in spot pools of one zone.
  // How long all members stand still when one joins; 0: joins cost nothing.
  Duration rebuild_time = Duration::zero();
  Duration fallback_after = seconds(120);
  Duration idle_timeout = seconds(60);
  Duration launch_timeout = seconds(600);
  Duration drain_timeout = seconds(120);  // For a drain without a notice.
  Duration cooldown = seconds(180);  // After a failed launch; doubled each time up to cooldown_max.
  Duration cooldown_max = seconds(1800);
};

struct Demand {
  int workers = 0;  // What the runs could use now.
  // More than so many would add too little, and why; see ScalingCurve.
  int useful = std::numeric_limits<int>::max();
  std::string why = {};
};

enum class NodePhase : uint8_t { kLaunching, kUp, kDraining, kTerminating };

struct FleetNode {
  std::string id;
  std::string token;
  std::string pool;
  NodePhase phase = NodePhase::kLaunching;
  Time since;                            // Since when it is in this phase.
  Time idle_since = Time::Never();       // Never: it works.
  Time notice_deadline = Time::Never();  // The provider takes it back then; Never: no notice.
  bool at_risk = false;                  // Its provider says that it may take it back.
};

struct Launch {
  std::string token;
  std::string pool;
};
struct Drain {
  std::string node;
  Time deadline;
};
struct Terminate {
  std::string node;
};
struct Action {
  std::variant<Launch, Drain, Terminate> what;
  std::string reason;
};

struct Decision {
  std::vector<Action> actions;
  // Wanted, present, and what stands in the way: "want 4 workers (demand 9, limits 2 to 4), have 2;
  // ...".
  std::string reason;
  Time next_wake = Time::Never();  // When the outcome may change by itself.
};

}  // namespace troupe
