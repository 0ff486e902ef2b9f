// A fleet held through months of a market in seconds of computing: the planner's decisions, a
// simulated cloud, a simulated training, and what it comes to.
//
// The planner of `troupe up` is AutoscalerPolicy, and the fleet that it sees is kept by Fleet: both
// are the objects that run in production. It is asked after each change, when it wants to be, and
// every kLookAtLeast.
// Thread: one. Pure: the same input gives the same figures.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "autoscaler/plan.h"
#include "autoscaler/simulator/market_history.h"
#include "autoscaler/simulator/simulated_training.h"

namespace troupe::simulator {

inline constexpr Duration kLookAtLeast = seconds(60);

// Who decides.
class Planner {
 public:
  virtual ~Planner() = default;
  virtual Decision Decide(Time now, const Demand& demand, const std::vector<FleetNode>& fleet) = 0;
  virtual void LaunchFailed(Time now, const std::string& token, const std::string& why,
                            bool retriable) = 0;
  // A node of that pool costs so many dollars an hour from now on.
  virtual void PriceIs(const std::string& pool, double per_hour) {}
};

struct SimulationOptions {
  TrainingModel training;
  Duration boot = seconds(60);         // From the launch until the node is up; it is paid.
  Duration notice = Duration::zero();  // Before a node is taken back.
  Duration drain = seconds(5);         // A planned leave.
  Duration tick = seconds(1);          // From a decision with actions to the next.
};

// Figures of one fleet. Hours are those of the market.
struct FleetFigures {
  std::string name;
  double hours = 0;
  double dollars = 0;
  double useful_hours = 0;  // Worker-hours.
  double wanted_hours = 0;  // Worker-hours of max_workers without a pause.
  int launches = 0;         // Asked for.
  int failed_launches = 0;
  int drains = 0;     // Of nodes that stay otherwise.
  int decisions = 0;  // With an action.
  int preemptions = 0;
  double hours_below_min = 0;
  int most_nodes = 0;
  double most_dollars_per_hour = 0;

  [[nodiscard]] double Goodput() const {
    return wanted_hours > 0 ? useful_hours / wanted_hours : 0;
  }
  [[nodiscard]] double DollarsPerUsefulHour() const {
    return useful_hours > 0 ? dollars / useful_hours : 0;
  }
};

inline constexpr size_t kPlotPoints = 480;
// Mean number of nodes held in each of kPlotPoints equal parts of the time, by pool.
using HeldNodes = std::map<std::string, std::vector<double>>;

struct SimulatedFleet {
  FleetFigures figures;
  HeldNodes held;
};

[[nodiscard]] SimulatedFleet RunFleet(Planner& planner, const std::vector<PoolLimits>& pools,
                                      const MarketHistory& market,
                                      const SimulationOptions& options);
// Through the policy that runs in production.
[[nodiscard]] SimulatedFleet RunPolicy(const FleetLimits& limits, const MarketHistory& market,
                                       const SimulationOptions& options);

}  // namespace troupe::simulator
