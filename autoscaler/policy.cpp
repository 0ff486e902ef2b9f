#include "autoscaler/policy.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "runtime/assert.h"

namespace troupe {

// The fleet in numbers, kept up to date while actions are added.
struct AutoscalerPolicy::Tally {
  struct PoolCount {
    int nodes = 0;     // Billed.
    int capacity = 0;  // Workers that stay.
  };
  std::map<std::string, PoolCount> pools;
  int nodes = 0;
  int capacity = 0;
  int on_demand_capacity = 0;
  int launching = 0;
  double price_per_hour = 0;

  void Add(const PoolLimits& pool, bool stays) {
    ++pools[pool.name].nodes;
    ++nodes;
    price_per_hour += pool.price_per_hour;
    if (stays) AddCapacity(pool, pool.workers_per_node);
  }
  void AddCapacity(const PoolLimits& pool, int workers) {
    pools[pool.name].capacity += workers;
    capacity += workers;
    if (pool.market == Market::kOnDemand) on_demand_capacity += workers;
  }
};

namespace {

std::string Seconds(Duration duration) {
  std::ostringstream out;
  out.precision(4);
  out << ToSeconds(duration) << " s";
  return out.str();
}

std::string Workers(int count) {
  return std::to_string(count) + (count == 1 ? " worker" : " workers");
}

bool Stays(const FleetNode& node) {
  return (node.phase == NodePhase::kLaunching || node.phase == NodePhase::kUp) &&
         node.notice_deadline == Time::Never();
}

}  // namespace

std::string_view MarketName(Market market) {
  return market == Market::kSpot ? "spot" : "on_demand";
}

AutoscalerPolicy::AutoscalerPolicy(FleetLimits limits, std::string token_prefix)
    : limits_(std::move(limits)), token_prefix_(std::move(token_prefix)) {
  TROUPE_ASSERT(limits_.min_workers <= limits_.max_workers, "min_workers is over max_workers");
  for (const PoolLimits& pool : limits_.pools) {
    TROUPE_ASSERT(pool.workers_per_node > 0, "a node of a pool holds no worker");
    pools_[pool.name] = PoolState{};
  }
}

const PoolLimits* AutoscalerPolicy::PoolOf(const std::string& name) const {
  for (const PoolLimits& pool : limits_.pools) {
    if (pool.name == name) return &pool;
  }
  return nullptr;
}

void AutoscalerPolicy::CoolDown(Time now, const std::string& pool, const std::string& why,
                                bool retriable) {
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return;
  PoolState& state = found->second;
  Duration next = std::max(limits_.cooldown, 2 * state.last_cooldown);
  if (!retriable) next = limits_.cooldown_max;
  state.last_cooldown = std::min(next, limits_.cooldown_max);
  state.cool_until = now + state.last_cooldown;
  state.failure = why;
}

void AutoscalerPolicy::LaunchFailed(Time now, const std::string& token, const std::string& why,
                                    bool retriable) {
  if (const auto found = pending_.find(token); found != pending_.end()) {
    CoolDown(now, found->second.pool, why, retriable);
    pending_.erase(found);
    return;
  }
  // It was listed while it was asked for.
  const auto shown = std::find_if(known_.begin(), known_.end(), [&](const auto& entry) {
    return entry.second.launching && entry.second.token == token;
  });
  if (shown == known_.end()) return;  // Already given up.
  CoolDown(now, shown->second.pool, why, retriable);
  known_.erase(shown);
}

void AutoscalerPolicy::RoomAppeared() {
  for (auto& [name, state] : pools_) {
    state.cool_until = Time{};
    state.last_cooldown = Duration::zero();
  }
}

// What changed since the last decision: launches that arrived or got lost, nodes that were taken
// away.
void AutoscalerPolicy::Observe(Time now, const std::vector<FleetNode>& fleet) {
  std::set<std::string> present;
  for (const FleetNode& node : fleet) {
    present.insert(node.id);
    pending_.erase(node.token);
    const auto pool = pools_.find(node.pool);
    if (pool == pools_.end()) continue;
    if (node.phase == NodePhase::kUp && node.since >= pool->second.cool_until) {
      pool->second.last_cooldown = Duration::zero();  // It serves again.
    }
    const bool noticed = node.notice_deadline != Time::Never();
    if (noticed && known_.contains(node.id)) {
      pool->second.preempted = true;
      pool->second.preempted_at = now;
      known_.erase(node.id);
    } else if (!noticed && node.phase <= NodePhase::kUp) {
      known_[node.id] = Known{node.pool, node.token, node.phase == NodePhase::kLaunching};
    } else {
      known_.erase(node.id);
    }
  }
  for (auto it = known_.begin(); it != known_.end();) {
    if (present.contains(it->first)) {
      ++it;
      continue;
    }
    // One that ended before it came up would most likely end again; one that worked was taken away.
    if (it->second.launching) {
      CoolDown(now, it->second.pool, "a node ended before it came up", true);
    } else {
      pools_[it->second.pool].preempted = true;
      pools_[it->second.pool].preempted_at = now;
    }
    it = known_.erase(it);
  }
  std::erase_if(ended_, [&](const std::string& id) { return !present.contains(id); });
  for (auto it = pending_.begin(); it != pending_.end();) {
    if (now - it->second.since < limits_.launch_timeout) {
      ++it;
      continue;
    }
    CoolDown(now, it->second.pool,
             "a launch did not show up within " + Seconds(limits_.launch_timeout), true);
    it = pending_.erase(it);
  }
}

AutoscalerPolicy::Tally AutoscalerPolicy::TallyOf(const std::vector<FleetNode>& fleet) const {
  Tally tally;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    // A node of a pool that is no longer configured is billed but is not planned with.
    if (pool == nullptr) {
      ++tally.nodes;
      continue;
    }
    tally.Add(*pool, Stays(node));
    tally.launching += node.phase == NodePhase::kLaunching ? 1 : 0;
  }
  for (const auto& [token, pending] : pending_) {
    tally.Add(*PoolOf(pending.pool), true);
    ++tally.launching;
  }
  return tally;
}

void AutoscalerPolicy::EndOverdue(Time now, const std::vector<FleetNode>& fleet, Tally& tally,
                                  Decision& decision) {
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    std::string why;
    Time due = Time::Never();
    if (node.phase == NodePhase::kLaunching) {
      due = node.since + limits_.launch_timeout;
      why = "it did not come up within " + Seconds(limits_.launch_timeout);
    } else if (node.phase == NodePhase::kDraining) {
      const bool empty = node.idle_since != Time::Never();
      due = empty ? now : std::min(node.notice_deadline, node.since + limits_.drain_timeout);
      why = empty ? "it is drained" : "its drain is overdue";
    }
    if (due > now) {
      decision.next_wake = std::min(decision.next_wake, due);
      continue;
    }
    decision.actions.push_back({Terminate{node.id}, why});
    known_.erase(node.id);
    if (node.phase != NodePhase::kLaunching) continue;
    if (ended_.insert(node.id).second) CoolDown(now, node.pool, "a node did not come up", true);
    if (pool != nullptr && Stays(node)) tally.AddCapacity(*pool, -pool->workers_per_node);
  }
}

void AutoscalerPolicy::DrainNoticed(Time now, const std::vector<FleetNode>& fleet,
                                    Decision& decision) {
  for (const FleetNode& node : fleet) {
    if (node.phase > NodePhase::kUp || node.notice_deadline == Time::Never()) continue;
    decision.actions.push_back(
        {Drain{node.id, node.notice_deadline},
         "its provider takes it back in " +
             Seconds(std::max(node.notice_deadline - now, Duration::zero()))});
  }
}

// Why `pool` cannot take another node now.
std::optional<std::string> AutoscalerPolicy::ObstacleOf(Time now, const PoolLimits& pool,
                                                        const Tally& tally,
                                                        Decision& decision) const {
  const PoolState& state = pools_.at(pool.name);
  if (state.cool_until > now) {
    decision.next_wake = std::min(decision.next_wake, state.cool_until);
    return pool.name + " cools down for " + Seconds(state.cool_until - now) + " (" + state.failure +
           ")";
  }
  const auto found = tally.pools.find(pool.name);
  const int capacity = found == tally.pools.end() ? 0 : found->second.capacity;
  if (capacity + pool.workers_per_node > pool.max_workers) {
    return pool.name + " is at its maximum of " + Workers(pool.max_workers);
  }
  if (tally.capacity + pool.workers_per_node > limits_.max_workers) {
    return "a node of " + pool.name + " would exceed max_workers";
  }
  if (limits_.budget_per_hour > 0 &&
      tally.price_per_hour + pool.price_per_hour > limits_.budget_per_hour) {
    return "a node of " + pool.name + " would exceed budget_per_hour";
  }
  return std::nullopt;
}

// The pool that the next node comes from, or null with what stands in the way.
const PoolLimits* AutoscalerPolicy::Choose(Time now, int target, const Tally& tally,
                                           std::string& why, std::vector<std::string>& obstacles,
                                           Decision& decision) const {
  const bool needs_on_demand = tally.on_demand_capacity < OnDemandWanted(target);
  using Rank = std::tuple<int, int, int, double, int>;
  const PoolLimits* best = nullptr;
  const PoolLimits* fallback = nullptr;
  Rank best_rank;
  Rank fallback_rank;
  for (const PoolLimits& pool : limits_.pools) {
    if (auto obstacle = ObstacleOf(now, pool, tally, decision)) {
      obstacles.push_back(std::move(*obstacle));
      continue;
    }
    const PoolState& state = pools_.at(pool.name);
    const auto found = tally.pools.find(pool.name);
    const int capacity = found == tally.pools.end() ? 0 : found->second.capacity;
    const int nodes = found == tally.pools.end() ? 0 : found->second.nodes;
    const bool below_min = capacity < pool.min_workers;
    const bool recently = state.preempted && now - state.preempted_at < limits_.cooldown;
    const bool on_demand = pool.market == Market::kOnDemand;
    const Rank rank{!below_min, on_demand != needs_on_demand, recently,
                    pool.price_per_hour / pool.workers_per_node, nodes};
    const bool wanted = below_min || on_demand == needs_on_demand;
    const PoolLimits*& slot = wanted ? best : fallback;
    Rank& slot_rank = wanted ? best_rank : fallback_rank;
    if (slot == nullptr || rank < slot_rank) {
      slot = &pool;
      slot_rank = rank;
    }
  }
  if (best != nullptr) {
    why = needs_on_demand && best->market == Market::kOnDemand ? "on-demand share"
                                                               : "cheapest that can serve";
    return best;
  }
  if (fallback == nullptr) return nullptr;
  // A cluster that has no spot pool at all need not wait for one; nor does one that lacks on-demand
  // capacity.
  const bool has_spot =
      std::any_of(limits_.pools.begin(), limits_.pools.end(),
                  [](const PoolLimits& pool) { return pool.market == Market::kSpot; });
  const Time due = short_since_.value_or(now) + limits_.fallback_after;
  if (fallback->market == Market::kOnDemand && has_spot && now < due) {
    decision.next_wake = std::min(decision.next_wake, due);
    obstacles.push_back(fallback->name + " is the fallback in " + Seconds(due - now));
    return nullptr;
  }
  why = "fallback: no other pool can serve";
  return fallback;
}

void AutoscalerPolicy::StartLaunch(Time now, const PoolLimits& pool, const std::string& why,
                                   Tally& tally, Decision& decision) {
  const std::string token = token_prefix_ + "-" + std::to_string(next_token_++);
  pending_[token] = Pending{pool.name, now};
  decision.next_wake = std::min(decision.next_wake, now + limits_.launch_timeout);
  tally.Add(pool, true);
  ++tally.launching;
  decision.actions.push_back({Launch{token, pool.name}, why});
}

int AutoscalerPolicy::OnDemandWanted(int target) const {
  const int above_base = std::max(0, target - limits_.on_demand_base);
  return std::min(target, limits_.on_demand_base) +
         above_base * limits_.on_demand_percent_above_base / 100;
}

// The dearest on-demand node that the share can do without, or null.
const FleetNode* AutoscalerPolicy::BeyondShare(int target, const std::vector<FleetNode>& fleet,
                                               const Tally& tally) const {
  const FleetNode* dearest = nullptr;
  double highest = -1;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool == nullptr || pool->market != Market::kOnDemand) continue;
    if (node.phase != NodePhase::kUp || !Stays(node)) continue;
    const int holds = pool->workers_per_node;
    if (tally.on_demand_capacity - holds < OnDemandWanted(target)) continue;
    if (tally.pools.at(pool->name).capacity - holds < pool->min_workers) continue;
    const double cost = pool->price_per_hour / holds;
    if (cost <= highest) continue;
    highest = cost;
    dearest = &node;
  }
  return dearest;
}

bool AutoscalerPolicy::ReturnToSpot(Time now, int target, const std::vector<FleetNode>& fleet,
                                    Tally& tally, Decision& decision) {
  const FleetNode* surplus = BeyondShare(target, fleet, tally);
  if (surplus == nullptr) return false;
  int up = 0;
  for (const FleetNode& node : fleet) {
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool != nullptr && node.phase == NodePhase::kUp && Stays(node))
      up += pool->workers_per_node;
  }
  const PoolLimits& from = *PoolOf(surplus->pool);
  const auto drain = [&](const std::string& why) {
    decision.actions.push_back({Drain{surplus->id, now + limits_.drain_timeout}, why});
    known_.erase(surplus->id);
    tally.AddCapacity(from, -from.workers_per_node);
  };
  const bool has_spot =
      std::any_of(limits_.pools.begin(), limits_.pools.end(),
                  [](const PoolLimits& pool) { return pool.market == Market::kSpot; });
  if (!has_spot || up < target) return false;  // A fleet that is not whole has other cares.
  if (up - from.workers_per_node >= target) {
    drain("spot serves in its place");
    return false;
  }
  if (tally.launching > 0) return true;
  Tally without = tally;
  without.AddCapacity(from, -from.workers_per_node);
  without.price_per_hour -= from.price_per_hour;
  const PoolLimits* beside = nullptr;  // Can take a node now...
  bool instead = false;                // ...or when the surplus node is gone.
  for (const PoolLimits& pool : limits_.pools) {
    const PoolState& state = pools_.at(pool.name);
    if (pool.market != Market::kSpot) continue;
    if (state.preempted && now - state.preempted_at < limits_.cooldown) {
      decision.next_wake = std::min(decision.next_wake, state.preempted_at + limits_.cooldown);
      continue;
    }
    const bool fits = tally.nodes < limits_.max_nodes && !ObstacleOf(now, pool, tally, decision);
    const auto cost = [](const PoolLimits& p) { return p.price_per_hour / p.workers_per_node; };
    if (fits && (beside == nullptr || cost(pool) < cost(*beside))) beside = &pool;
    instead = instead || !ObstacleOf(now, pool, without, decision);
  }
  if (beside != nullptr) {
    StartLaunch(now, *beside, "to return from the fallback to spot", tally, decision);
  } else if (instead && up - from.workers_per_node >= limits_.min_workers) {
    drain("makes room to return from the fallback to spot");
  }
  return beside != nullptr;
}

void AutoscalerPolicy::Fill(Time now, int target, Tally& tally, Decision& decision) {
  std::vector<std::string> obstacles;
  bool short_of_pools = false;
  for (;;) {
    const bool pool_below_min = std::any_of(
        limits_.pools.begin(), limits_.pools.end(),
        [&](const PoolLimits& pool) { return tally.pools[pool.name].capacity < pool.min_workers; });
    if (tally.capacity >= target && !pool_below_min) break;
    if (tally.nodes >= limits_.max_nodes) {
      obstacles.push_back("there are " + std::to_string(tally.nodes) + " nodes, max_nodes");
      break;
    }
    if (tally.launching >= limits_.max_concurrent_launches) {
      obstacles.push_back(std::to_string(tally.launching) +
                          " launches are under way, max_concurrent_launches");
      break;
    }
    std::string why;
    const PoolLimits* pool = Choose(now, target, tally, why, obstacles, decision);
    // A pool minimum that cannot be filled must not draw nodes into other pools beyond the target.
    const bool helps = pool != nullptr && (tally.capacity < target ||
                                           tally.pools[pool->name].capacity < pool->min_workers);
    if (!helps) {
      short_of_pools = pool == nullptr && tally.capacity < target;
      break;
    }
    obstacles.clear();
    StartLaunch(now, *pool, why, tally, decision);
  }
  if (!short_of_pools) {
    short_since_.reset();
  } else if (!short_since_) {
    short_since_ = now;
  }
  for (const std::string& obstacle : obstacles) decision.reason += "; " + obstacle;
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
    if (tally.capacity - holds < target) continue;
    if (pool != nullptr && tally.pools[pool->name].capacity - holds < pool->min_workers) continue;
    const Time due = std::max(node->idle_since, node->since) + limits_.idle_timeout;
    if (due > now) {
      decision.next_wake = std::min(decision.next_wake, due);
      continue;
    }
    decision.actions.push_back({Drain{node->id, now + limits_.drain_timeout},
                                "idle for " + Seconds(now - node->idle_since)});
    known_.erase(node->id);
    if (pool != nullptr) tally.AddCapacity(*pool, -holds);
  }
}

Decision AutoscalerPolicy::Decide(Time now, const Demand& demand,
                                  const std::vector<FleetNode>& fleet) {
  Decision decision;
  Observe(now, fleet);
  Tally tally = TallyOf(fleet);
  for (const auto& [token, pending] : pending_) {
    decision.next_wake = std::min(decision.next_wake, pending.since + limits_.launch_timeout);
  }
  const int target = std::clamp(demand.workers, limits_.min_workers, limits_.max_workers);
  decision.reason = "want " + Workers(target) + " (demand " + std::to_string(demand.workers) +
                    ", limits " + std::to_string(limits_.min_workers) + " to " +
                    std::to_string(limits_.max_workers) + "), have " +
                    std::to_string(tally.capacity) + " with " + std::to_string(tally.launching) +
                    " nodes still starting";
  EndOverdue(now, fleet, tally, decision);
  DrainNoticed(now, fleet, decision);
  const bool returning = ReturnToSpot(now, target, fleet, tally, decision);
  Fill(now, target, tally, decision);
  // A node that is launched ahead is no reason to let another one go.
  if (!returning) DrainIdle(now, target, fleet, tally, decision);
  return decision;
}

}  // namespace troupe
