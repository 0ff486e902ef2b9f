#include "autoscaler/simulator/references.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace troupe::simulator {
namespace {

constexpr Duration kGreedySettle = seconds(1);

double PerWorker(const PoolLimits& pool, double price) { return price / pool.workers_per_node; }

int NodesFor(const PoolLimits& pool, int workers) {
  return (workers + pool.workers_per_node - 1) / pool.workers_per_node;
}

FleetFigures FiguresOf(const std::string& name, const MarketHistory& market,
                       const SimulationOptions& options) {
  FleetFigures figures;
  figures.name = name;
  figures.hours = ToSeconds(market.length) / 3600;
  figures.wanted_hours = options.training.UsefulOf(options.training.max_workers) * figures.hours;
  return figures;
}

// Calls `visit(from, to)` for each span of time in which the market stays as it is.
template <class Visit>
void EachSpan(const MarketHistory& market, const Visit& visit) {
  std::vector<Duration> changes = market.Changes();
  if (changes.empty() || changes.front() > Duration::zero())
    changes.insert(changes.begin(), Duration::zero());
  changes.push_back(market.length);
  for (size_t i = 0; i + 1 < changes.size(); ++i) visit(changes[i], changes[i + 1]);
}

FleetFigures WholeGroupIn(const PoolLimits& pool, const MarketHistory& market,
                          const SimulationOptions& options, Duration restart) {
  FleetFigures figures = FiguresOf("one zone", market, options);
  const OfferHistory& history = market.pools.at(pool.name);
  const int nodes = NodesFor(pool, options.training.max_workers);
  const double useful = options.training.UsefulOf(options.training.max_workers);
  Duration works_from = Duration::zero();
  bool up = false;
  EachSpan(market, [&](Duration from, Duration to) {
    const Offer offer = OfferAt(history, from);
    const bool can = offer.nodes >= nodes;
    if (can && !up) {
      works_from = from + options.boot + restart;
      figures.launches += nodes;
      ++figures.decisions;
    } else if (!can && up) {
      figures.preemptions += nodes - std::min(nodes, offer.nodes);
    }
    up = can;
    if (up) {
      figures.dollars += nodes * offer.price_per_hour * ToSeconds(to - from) / 3600;
      figures.most_nodes = nodes;
    }
    const Duration begin = std::max(from, works_from);
    const double works = up && begin < to ? ToSeconds(to - begin) / 3600 : 0;
    figures.useful_hours += useful * works;
    figures.hours_below_min += ToSeconds(to - from) / 3600 - works;
  });
  return figures;
}

// Whatever is missing, from the cheapest pool on; a pool that has refused is asked again after
// kGreedyRetry.
class GreedyPlanner final : public Planner {
 public:
  explicit GreedyPlanner(const FleetLimits& limits) {  // They outlive it.
    for (const PoolLimits& pool : limits.pools) {
      if (pool.market == Market::kSpot) pools_.push_back(&pool);
    }
    std::stable_sort(pools_.begin(), pools_.end(), [](const PoolLimits* a, const PoolLimits* b) {
      return PerWorker(*a, a->price_per_hour) < PerWorker(*b, b->price_per_hour);
    });
  }

  Decision Decide(Time now, const Demand& demand, const std::vector<FleetNode>& fleet) override {
    Decision decision;
    std::map<std::string, int> held;
    int capacity = 0;
    for (const FleetNode& node : fleet) {
      const bool stays = node.phase <= NodePhase::kUp && node.notice_deadline == Time::Never();
      const auto pool = std::find_if(pools_.begin(), pools_.end(), [&](const PoolLimits* known) {
        return known->name == node.pool;
      });
      if (stays && pool != pools_.end()) {
        capacity += (*pool)->workers_per_node;
        held[node.pool] += (*pool)->workers_per_node;
      }
      if (node.phase == NodePhase::kDraining || !stays)
        decision.next_wake = std::min(decision.next_wake, node.notice_deadline);
    }
    for (const PoolLimits* pool : pools_) {
      if (const auto retry = retry_.find(pool->name);
          retry != retry_.end() && now < retry->second) {
        decision.next_wake = std::min(decision.next_wake, retry->second);
        continue;
      }
      while (capacity + pool->workers_per_node <= demand.workers &&
             held[pool->name] + pool->workers_per_node <= pool->max_workers) {
        std::string token = "greedy-" + std::to_string(++last_);
        asked_[token] = pool->name;
        decision.actions.push_back({Launch{std::move(token), pool->name}, "something is missing"});
        capacity += pool->workers_per_node;
        held[pool->name] += pool->workers_per_node;
      }
    }
    if (!decision.actions.empty())
      decision.next_wake = std::min(decision.next_wake, now + kGreedySettle);
    return decision;
  }
  void LaunchFailed(Time now, const std::string& token, const std::string& /*why*/,
                    bool /*retriable*/) override {
    retry_[asked_[token]] = now + kGreedyRetry;
  }

 private:
  std::vector<const PoolLimits*> pools_;
  std::map<std::string, std::string> asked_;
  std::map<std::string, Time> retry_;
  int last_ = 0;
};

}  // namespace

std::optional<FleetFigures> OnDemandFleet(const std::vector<PoolLimits>& pools,
                                          const MarketHistory& market,
                                          const SimulationOptions& options) {
  const PoolLimits* cheapest = nullptr;
  for (const PoolLimits& pool : pools) {
    const bool fits = pool.market == Market::kOnDemand && !market.pools.contains(pool.name);
    if (!fits || pool.max_workers < options.training.max_workers) continue;
    if (cheapest == nullptr ||
        PerWorker(pool, pool.price_per_hour) < PerWorker(*cheapest, cheapest->price_per_hour))
      cheapest = &pool;
  }
  if (cheapest == nullptr) return std::nullopt;
  FleetFigures figures = FiguresOf("on-demand", market, options);
  figures.most_nodes = NodesFor(*cheapest, options.training.max_workers);
  figures.launches = figures.most_nodes;
  figures.most_dollars_per_hour = figures.most_nodes * cheapest->price_per_hour;
  figures.dollars = figures.most_dollars_per_hour * figures.hours;
  figures.useful_hours = figures.wanted_hours;
  return figures;
}

std::optional<FleetFigures> OneZoneFleet(const std::vector<PoolLimits>& pools,
                                         const MarketHistory& market,
                                         const SimulationOptions& options, Duration restart) {
  std::optional<FleetFigures> best;
  for (const PoolLimits& pool : pools) {
    if (pool.market != Market::kSpot || !market.pools.contains(pool.name)) continue;
    FleetFigures figures = WholeGroupIn(pool, market, options, restart);
    if (!best || figures.useful_hours > best->useful_hours) best = std::move(figures);
  }
  return best;
}

FleetFigures GreedyFleet(const FleetLimits& limits, const MarketHistory& market,
                         const SimulationOptions& options) {
  GreedyPlanner planner(limits);
  FleetFigures figures = RunFleet(planner, limits.pools, market, options).figures;
  figures.name = "greedy";
  return figures;
}

FleetFigures OmniscientFleet(const std::vector<PoolLimits>& pools, const MarketHistory& market,
                             const SimulationOptions& options) {
  FleetFigures figures = FiguresOf("omniscient", market, options);
  EachSpan(market, [&](Duration from, Duration to) {
    struct Kind {
      double price = 0;
      int nodes = 0;
      int workers = 1;
    };
    std::vector<Kind> kinds;
    for (const PoolLimits& pool : pools) {
      const auto found = market.pools.find(pool.name);
      Offer offer{from, std::numeric_limits<int>::max(), pool.price_per_hour};
      if (found != market.pools.end()) offer = OfferAt(found->second, from);
      kinds.push_back({offer.price_per_hour,
                       std::min(offer.nodes, pool.max_workers / pool.workers_per_node),
                       pool.workers_per_node});
    }
    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
      return a.price / a.workers < b.price / b.workers;
    });
    int workers = 0;
    int nodes = 0;
    double price = 0;
    for (const Kind& kind : kinds) {
      for (int i = 0; i < kind.nodes && workers + kind.workers <= options.training.max_workers;
           ++i) {
        workers += kind.workers;
        price += kind.price;
        ++nodes;
      }
    }
    const double hours = ToSeconds(to - from) / 3600;
    if (workers < options.training.min_workers) {
      figures.hours_below_min += hours;
      return;
    }
    figures.dollars += price * hours;
    figures.useful_hours += options.training.UsefulOf(workers) * hours;
    figures.most_nodes = std::max(figures.most_nodes, nodes);
    figures.most_dollars_per_hour = std::max(figures.most_dollars_per_hour, price);
  });
  return figures;
}

}  // namespace troupe::simulator
