// What AutoscalerPolicy takes out of the fleet: on-demand nodes that spot ones replace, spot nodes
// that cheaper ones replace, and idle ones.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autoscaler/internal/policy_tally.h"
#include "autoscaler/policy.h"
#include "runtime/mutation.h"

namespace troupe {

using policy_text::Figure;
using policy_text::Seconds;

constexpr double kNoPrice = 1e300;

// Of a worker for an hour. What was learnt of pools says where to launch, but moves nobody: prices
// stay, so that nobody is moved back.
double PriceOf(const PoolLimits& pool) { return pool.price_per_hour / pool.workers_per_node; }

// So much more than what there is elsewhere that a move is worth it. Without a price nothing is.
bool IsDear(double price, double elsewhere) { return price > 0 && price >= kMoveSaves * elsewhere; }

bool AutoscalerPolicy::HasSpot() const {
  return std::any_of(limits_.pools.begin(), limits_.pools.end(),
                     [](const PoolLimits& pool) { return pool.market == Market::kSpot; });
}

int AutoscalerPolicy::OnDemandWanted(int target) const {
  const int above_base = std::max(0, target - limits_.on_demand_base);
  return std::min(target, limits_.on_demand_base) +
         above_base * limits_.on_demand_percent_above_base / 100;
}

// The on-demand nodes that the share can do without, the dearest first.
std::vector<const FleetNode*> AutoscalerPolicy::BeyondShare(int target,
                                                            const std::vector<FleetNode>& fleet,
                                                            const Tally& tally) const {
  std::vector<const FleetNode*> nodes;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool == nullptr || pool->market != Market::kOnDemand) continue;
    if (node.phase == NodePhase::kUp && Stays(node)) nodes.push_back(&node);
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](const FleetNode* a, const FleetNode* b) {
    return PriceOf(*PoolOf(a->pool)) > PriceOf(*PoolOf(b->pool));
  });
  int capacity = tally.on_demand_capacity;
  std::map<std::string, int> left;
  std::vector<const FleetNode*> beyond;
  for (const FleetNode* node : nodes) {
    const PoolLimits& pool = *PoolOf(node->pool);
    const int holds = pool.workers_per_node;
    int& of_pool = left.try_emplace(pool.name, tally.Of(pool).capacity).first->second;
    if (capacity - holds < OnDemandWanted(target) || of_pool - holds < pool.min_workers) continue;
    capacity -= holds;
    of_pool -= holds;
    beyond.push_back(node);
  }
  return beyond;
}

void AutoscalerPolicy::DrainSurplus(Time now, const FleetNode& node, const std::string& why,
                                    Tally& tally, Decision& decision) {
  const PoolLimits& pool = *PoolOf(node.pool);
  decision.actions.push_back({Drain{node.id, now + limits_.drain_timeout}, why});
  known_.erase(node.id);
  tally.AddCapacity(pool, -pool.workers_per_node);
  tally.up -= pool.workers_per_node;
}

bool AutoscalerPolicy::DrainOverBudget(Time now, const std::vector<FleetNode>& fleet, Tally& tally,
                                       Decision& decision) {
  if (limits_.budget_per_hour <= 0) return false;
  double cost = 0;
  std::vector<const FleetNode*> up;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool == nullptr || !Stays(node)) continue;
    cost += pool->price_per_hour;
    if (node.phase == NodePhase::kUp) up.push_back(&node);
  }
  const double budget = limits_.budget_per_hour * (1 + 1e-9);  // Sums of equal prices differ.
  std::stable_sort(up.begin(), up.end(), [&](const FleetNode* a, const FleetNode* b) {
    return PriceOf(*PoolOf(a->pool)) > PriceOf(*PoolOf(b->pool));
  });
  bool drained = false;
  for (const FleetNode* node : up) {
    const PoolLimits& pool = *PoolOf(node->pool);
    if (cost <= budget) break;
    if (pool.price_per_hour <= 0 || tally.up - pool.workers_per_node < limits_.min_workers)
      continue;
    DrainSurplus(now, *node,
                 "the fleet costs $" + Figure(cost) + " an hour, budget_per_hour is $" +
                     Figure(limits_.budget_per_hour),
                 tally, decision);
    cost -= pool.price_per_hour;
    drained = true;
  }
  if (cost > budget)
    decision.reason += "; it costs $" + Figure(cost) + " an hour, over budget_per_hour, with no " +
                       "more than min_workers";
  return drained;
}

// What spot nodes cost an hour that have come to take a place, the dearest first: those that idle,
// or, where more than max_workers work, any.
std::vector<double> AutoscalerPolicy::Arrived(const std::vector<FleetNode>& fleet,
                                              const Tally& tally) const {
  std::vector<double> idle;
  std::vector<double> all;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    const bool counts = pool != nullptr && pool->market == Market::kSpot &&
                        node.phase == NodePhase::kUp && Stays(node);
    if (!counts || IsAtRisk(node)) continue;
    all.push_back(PriceOf(*pool));
    if (node.idle_since != Time::Never()) idle.push_back(all.back());
  }
  std::vector<double>& prices = idle.empty() && tally.up > limits_.max_workers ? all : idle;
  std::sort(prices.begin(), prices.end(), std::greater<>());
  return prices;
}

// Spot nodes that cost enough more than those of a spot pool that can take nodes now, the dearest
// first; of a fleet that is whole.
std::vector<const FleetNode*> AutoscalerPolicy::DearSpot(Time now,
                                                         const std::vector<FleetNode>& fleet,
                                                         const Tally& tally,
                                                         Decision& decision) const {
  if (tally.capacity < tally.target) return {};
  double least = kNoPrice;
  for (const PoolLimits& pool : limits_.pools) {
    if (pool.market == Market::kSpot) least = std::min(least, PriceOf(pool));
  }
  std::vector<std::pair<double, const FleetNode*>> dear;
  std::map<std::string, int> left;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool == nullptr || pool->market != Market::kSpot) continue;
    if (node.phase != NodePhase::kUp || !Stays(node) || !IsDear(PriceOf(*pool), least)) continue;
    if (node.idle_since != Time::Never()) continue;  // Nobody to move.
    int& of_pool = left.try_emplace(pool->name, tally.Of(*pool).capacity).first->second;
    if (of_pool - pool->workers_per_node < pool->min_workers) continue;
    of_pool -= pool->workers_per_node;
    dear.emplace_back(PriceOf(*pool), &node);
  }
  if (dear.empty()) return {};
  Tally room = tally;
  room.moving = true;
  room.AddCapacity(*PoolOf(dear[0].second->pool), -PoolOf(dear[0].second->pool)->workers_per_node);
  // What can take a place: a node to be launched, or one that has come to do so.
  const PoolLimits* open = SpotToReturnTo(now, room, decision);
  double serves = open == nullptr ? kNoPrice : PriceOf(*open);
  for (const double price : Arrived(fleet, tally)) serves = std::min(serves, price);
  std::erase_if(dear, [&](const auto& entry) { return !IsDear(entry.first, serves); });
  std::stable_sort(dear.begin(), dear.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<const FleetNode*> nodes;
  for (const auto& [price, node] : dear) nodes.push_back(node);
  return nodes;
}

// Spot nodes that may be taken back, as many as may be replaced at once, first those that somebody
// was launched ahead of: they go also if the word is taken back, for there is no room for both.
std::vector<const FleetNode*> AutoscalerPolicy::AtRisk(const std::vector<FleetNode>& fleet,
                                                       const Tally& tally) const {
  if (tally.capacity < tally.target) return {};
  int beside = std::max(1, static_cast<int>(kBesideAtRisk * tally.target));
  std::vector<const FleetNode*> nodes;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    const bool risky = node.phase == NodePhase::kUp && Stays(node) && IsAtRisk(node);
    if (pool == nullptr || pool->market != Market::kSpot || !risky) continue;
    const bool held = tally.Of(*pool).capacity - pool->workers_per_node < pool->min_workers;
    if (held || (!nodes.empty() && pool->workers_per_node > beside)) continue;
    beside -= pool->workers_per_node;
    nodes.push_back(&node);
  }
  std::stable_partition(nodes.begin(), nodes.end(),
                        [this](const FleetNode* node) { return leaving_.contains(node->id); });
  return nodes;
}

bool AutoscalerPolicy::IsAtRisk(const FleetNode& node) const {
  return node.at_risk || leaving_.contains(node.id);
}

// Drains what other spot nodes have taken the place of. Those that wait are left in `nodes`.
void AutoscalerPolicy::DrainReplaced(Time now, const std::vector<FleetNode>& fleet,
                                     std::vector<const FleetNode*>& nodes, Tally& tally,
                                     Decision& decision) {
  std::vector<double> arrived = Arrived(fleet, tally);
  std::erase_if(nodes, [&](const FleetNode* node) {
    const PoolLimits& pool = *PoolOf(node->pool);
    const bool room = tally.up - pool.workers_per_node >= tally.target;
    if (!room && !TROUPE_MUTATED("AP-3 leaves too early")) return false;
    if (pool.market == Market::kSpot) {
      if (arrived.empty()) return false;
      if (!IsAtRisk(*node) && !IsDear(PriceOf(pool), arrived.back())) return false;
      arrived.pop_back();
    }
    const std::string why = IsAtRisk(*node)                ? "may be taken back; another one serves"
                            : pool.market == Market::kSpot ? "cheaper spot serves"
                                                           : "spot serves";
    DrainSurplus(now, *node, why + " in its place", tally, decision);
    return true;
  });
}

bool AutoscalerPolicy::ReturnToSpot(Time now, const std::vector<FleetNode>& fleet, Tally& tally,
                                    Decision& decision) {
  if (!HasSpot()) return false;
  std::vector<const FleetNode*> surplus = BeyondShare(tally.target, fleet, tally);
  const std::vector<const FleetNode*> risky = AtRisk(fleet, tally);
  surplus.insert(surplus.begin(), risky.begin(), risky.end());
  for (const FleetNode* node : DearSpot(now, fleet, tally, decision)) {
    if (!IsAtRisk(*node)) surplus.push_back(node);
  }
  DrainReplaced(now, fleet, surplus, tally, decision);
  if (surplus.empty()) return false;
  Tally beside = tally;  // As if what is to be replaced held nobody.
  beside.moving = true;
  for (const FleetNode* node : surplus)
    beside.AddCapacity(*PoolOf(node->pool), -PoolOf(node->pool)->workers_per_node);
  // Launch before drain: as many as are to be replaced, the dearest first.
  bool launched = false;
  for (const FleetNode* node : surplus) {
    if (beside.capacity >= tally.target || tally.nodes >= limits_.max_nodes ||
        tally.launching >= limits_.max_concurrent_launches)
      break;
    const PoolLimits& from = *PoolOf(node->pool);
    const PoolLimits* pool = SpotToReturnTo(now, beside, decision);
    if (pool == nullptr) break;
    const bool spot = from.market == Market::kSpot;
    const bool ahead = spot && IsAtRisk(*node);
    if (spot && !ahead && !IsDear(PriceOf(from), PriceOf(*pool))) break;
    if (ahead) leaving_.insert(node->id);
    const std::string why = ahead
                                ? "ahead of the end of " + node->id + ", which may be taken back: "
                            : spot ? "to leave a dearer spot pool: "
                                   : "to return from the fallback to spot: ";
    StartLaunch(now, *pool, why + FiguresOf(*pool), tally, decision);
    beside.Add(*pool, 1, 1);
    ++beside.pools[pool->name].pending;
    launched = true;
  }
  if (launched || tally.launching > 0) return true;
  MakeRoom(now, *surplus.front(), beside, tally, decision);
  return false;
}

// Where there is no room for both an on-demand node and its replacement, it goes first, unless too
// few would be left.
void AutoscalerPolicy::MakeRoom(Time now, const FleetNode& node, const Tally& beside, Tally& tally,
                                Decision& decision) {
  const PoolLimits& from = *PoolOf(node.pool);
  if (from.market != Market::kOnDemand || tally.up < tally.target) return;
  if (tally.up - from.workers_per_node < limits_.min_workers) return;
  Tally without = beside;
  without.price_per_hour -= from.price_per_hour;
  --without.nodes;
  if (SpotToReturnTo(now, without, decision) != nullptr)
    DrainSurplus(now, node, "makes room to return from the fallback to spot", tally, decision);
}

// The best spot pool that can take a node now. One that has not given any since it last refused
// is asked for one first.
const PoolLimits* AutoscalerPolicy::SpotToReturnTo(Time now, const Tally& tally,
                                                   Decision& decision) const {
  const PoolLimits* best = nullptr;
  PoolRank best_rank;
  for (const PoolLimits& pool : limits_.pools) {
    if (pool.market != Market::kSpot || tally.nodes >= limits_.max_nodes) continue;
    const PoolRecord& record = pools_.at(pool.name);
    if (!record.proven() && tally.Of(pool).pending > 0) continue;
    if (const auto lost = record.preempted_at(); lost && now - *lost < limits_.cooldown) {
      decision.next_wake = std::min(decision.next_wake, *lost + limits_.cooldown);
      continue;
    }
    if (ObstacleOf(now, pool, tally, decision)) continue;
    const PoolRank rank = RankOf(now, pool, tally, false);
    if (best != nullptr && !(rank < best_rank)) continue;
    best = &pool;
    best_rank = rank;
  }
  return best;
}

void AutoscalerPolicy::DrainIdle(Time now, int target, const std::vector<FleetNode>& fleet,
                                 Tally& tally, Decision& decision) {
  std::vector<const FleetNode*> idle;
  for (const FleetNode& node : fleet) {
    if (node.phase == NodePhase::kUp && Stays(node) && node.idle_since != Time::Never()) {
      idle.push_back(&node);
    }
  }
  // The dearest first, then the one that is idle longest.
  const auto cost = [&](const FleetNode* node) {
    const PoolLimits* pool = PoolOf(node->pool);
    return pool == nullptr ? 1e300 : pool->price_per_hour / pool->workers_per_node;
  };
  std::sort(idle.begin(), idle.end(), [&](const FleetNode* a, const FleetNode* b) {
    return std::make_tuple(-cost(a), a->idle_since, a->id) <
           std::make_tuple(-cost(b), b->idle_since, b->id);
  });
  for (const FleetNode* node : idle) {
    const PoolLimits* pool = PoolOf(node->pool);
    const int holds = pool == nullptr ? 0 : pool->workers_per_node;
    // What is still starting may be refused, or not come up.
    const int sure = TROUPE_MUTATED("AP-6 trusts what is starting") ? tally.capacity : tally.up;
    if (sure - holds < target) continue;
    if (pool != nullptr && tally.pools[pool->name].capacity - holds < pool->min_workers) continue;
    const Time due = std::max(node->idle_since, node->since) + limits_.idle_timeout;
    if (due > now) {
      decision.next_wake = std::min(decision.next_wake, due);
      continue;
    }
    decision.actions.push_back({Drain{node->id, now + limits_.drain_timeout},
                                "idle for " + Seconds(now - node->idle_since)});
    known_.erase(node->id);
    tally.up -= holds;
    if (pool != nullptr) tally.AddCapacity(*pool, -holds);
  }
}

}  // namespace troupe
