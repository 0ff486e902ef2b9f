#include "autoscaler/simulator/simulation.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "autoscaler/fleet.h"
#include "autoscaler/policy.h"
#include "autoscaler/simulator/simulated_cloud.h"

namespace troupe::simulator {
namespace {

constexpr Time kSimulationStart{1'000'000'000'000};

double Hours(Duration span) { return ToSeconds(span) / 3600; }

class PolicyPlanner final : public Planner {
 public:
  explicit PolicyPlanner(const FleetLimits& limits) : policy_(limits, "simulated") {}
  Decision Decide(Time now, const Demand& demand, const std::vector<FleetNode>& fleet) override {
    return policy_.Decide(now, demand, fleet);
  }
  void LaunchFailed(Time now, const std::string& token, const std::string& why,
                    bool retriable) override {
    policy_.LaunchFailed(now, token, why, retriable);
  }
  void PriceIs(const std::string& pool, double per_hour) override {
    policy_.PriceIs(pool, per_hour);
  }

 private:
  AutoscalerPolicy policy_;
};

class FleetRun {
 public:
  FleetRun(Planner& planner, const std::vector<PoolLimits>& pools, const MarketHistory& market,
           const SimulationOptions& options)
      : planner_(planner),
        market_(market),
        options_(options),
        end_(kSimulationStart + market.length),
        changes_(market.Changes()),
        cloud_(pools, market, kSimulationStart, options.boot, options.notice),
        training_(options.training) {
    for (const PoolLimits& pool : pools) result_.held[pool.name].assign(kPlotPoints, 0);
  }

  SimulatedFleet Run() {
    for (Time now = kSimulationStart; now < end_;) {
      Observe(now);
      const Decision decision =
          planner_.Decide(now, {options_.training.max_workers}, fleet_.nodes());
      for (const Action& action : decision.actions) Act(now, action);
      Time next = std::min({end_, now + kLookAtLeast, decision.next_wake, cloud_.NextChange(),
                            NextOfMarket(now), NextDrained(now)});
      if (!decision.actions.empty()) {
        ++result_.figures.decisions;
        next = std::min(next, now + options_.tick);
        Observe(now);  // What has ended is not paid any more.
      }
      next = std::max(next, now + milliseconds(1));
      Account(now, std::min(next, end_));
      now = next;
    }
    result_.figures.hours = Hours(market_.length);
    result_.figures.wanted_hours =
        options_.training.UsefulOf(options_.training.max_workers) * result_.figures.hours;
    result_.figures.preemptions = cloud_.preemptions();
    return std::move(result_);
  }

 private:
  void Observe(Time now) {
    for (const std::string& id : cloud_.Advance(now))
      fleet_.Noticed(id, cloud_.nodes().at(id).ends_at);
    for (const auto& [pool, price] : cloud_.TakePrices()) planner_.PriceIs(pool, price);
    fleet_.Update(now, *cloud_.List());
    bool abrupt = false;
    std::vector<std::pair<Time, SimulatedTraining::Node>> up;
    for (const auto& [id, node] : cloud_.nodes()) {
      if (node.up_at > now) continue;
      fleet_.NodeUp(now, id);
      if (!draining_.contains(id))
        up.emplace_back(node.up_at, SimulatedTraining::Node{id, node.pool->workers_per_node});
    }
    for (const std::string& id : members_)
      abrupt = abrupt || (!cloud_.nodes().contains(id) && !draining_.contains(id));
    std::erase_if(draining_,
                  [&](const auto& entry) { return !cloud_.nodes().contains(entry.first); });
    std::stable_sort(up.begin(), up.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<SimulatedTraining::Node> nodes;
    for (auto& [since, node] : up) nodes.push_back(std::move(node));
    training_.Members(now, nodes, abrupt);
    members_.clear();
    for (const SimulatedTraining::Node& node : nodes) {
      const bool member = training_.IsMember(node.id);
      if (member) members_.insert(node.id);
      fleet_.SetIdle(now, node.id, !member);
    }
    for (const auto& [id, empty_at] : draining_) fleet_.SetIdle(now, id, empty_at <= now);
  }

  void Act(Time now, const Action& action) {
    if (const auto* launch = std::get_if<Launch>(&action.what)) {
      ++result_.figures.launches;
      const Result<std::string> made = cloud_.Launch(launch->token, launch->pool);
      if (made.ok()) return;
      ++result_.figures.failed_launches;
      planner_.LaunchFailed(now, launch->token, made.error().message,
                            LaunchIsRetriable(made.error().code));
    } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
      const auto node = cloud_.nodes().find(drain->node);
      if (node == cloud_.nodes().end()) return;
      result_.figures.drains += node->second.ends_at == Time::Never() ? 1 : 0;
      draining_.emplace(drain->node, now + options_.drain);
      fleet_.Draining(now, drain->node);
    } else {
      (void)cloud_.Terminate(std::get<Terminate>(action.what).node);
    }
  }

  [[nodiscard]] Time NextOfMarket(Time now) {
    while (next_change_ < changes_.size() && kSimulationStart + changes_[next_change_] <= now)
      ++next_change_;
    return next_change_ == changes_.size() ? Time::Never()
                                           : kSimulationStart + changes_[next_change_];
  }
  [[nodiscard]] Time NextDrained(Time now) const {
    Time next = Time::Never();
    for (const auto& [id, empty_at] : draining_) {
      if (empty_at > now) next = std::min(next, empty_at);
    }
    return next;
  }

  void Account(Time from, Time to) {
    FleetFigures& figures = result_.figures;
    const double price = cloud_.PricePerHour();
    figures.dollars += price * Hours(to - from);
    figures.most_dollars_per_hour = std::max(figures.most_dollars_per_hour, price);
    figures.most_nodes = std::max(figures.most_nodes, static_cast<int>(cloud_.nodes().size()));
    figures.useful_hours += training_.Useful(from, to) / 3600;
    if (training_.workers() < options_.training.min_workers)
      figures.hours_below_min += Hours(to - from);
    std::map<std::string, int> held;
    for (const auto& [id, node] : cloud_.nodes()) ++held[node.pool->name];
    for (const auto& [pool, nodes] : held) Plot(result_.held[pool], nodes, from, to);
  }

  // Adds its share to each part of the time.
  void Plot(std::vector<double>& parts, int nodes, Time from, Time to) const {
    const double part = ToSeconds(market_.length) / static_cast<double>(kPlotPoints);
    double at = ToSeconds(from - kSimulationStart) / part;
    const double end = ToSeconds(to - kSimulationStart) / part;
    while (at < end) {
      const auto index = std::min(static_cast<size_t>(at), kPlotPoints - 1);
      const double until = std::min(end, static_cast<double>(index + 1));
      if (until <= at) break;
      parts[index] += nodes * (until - at);
      at = until;
    }
  }

  Planner& planner_;
  const MarketHistory& market_;
  const SimulationOptions& options_;
  const Time end_;
  const std::vector<Duration> changes_;
  SimulatedCloud cloud_;
  SimulatedTraining training_;
  Fleet fleet_;
  SimulatedFleet result_;
  size_t next_change_ = 0;
  std::map<std::string, Time> draining_;  // When each is empty.
  std::set<std::string> members_;
};

}  // namespace

SimulatedFleet RunFleet(Planner& planner, const std::vector<PoolLimits>& pools,
                        const MarketHistory& market, const SimulationOptions& options) {
  return FleetRun(planner, pools, market, options).Run();
}

SimulatedFleet RunPolicy(const FleetLimits& limits, const MarketHistory& market,
                         const SimulationOptions& options) {
  PolicyPlanner planner(limits);
  SimulatedFleet fleet = RunFleet(planner, limits.pools, market, options);
  fleet.figures.name = "troupe";
  return fleet;
}

}  // namespace troupe::simulator
