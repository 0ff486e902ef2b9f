#include "autoscaler/policy.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "autoscaler/internal/policy_tally.h"
#include "runtime/assert.h"
#include "runtime/mutation.h"

namespace troupe {

using policy_text::Figure;
using policy_text::Seconds;
using policy_text::Workers;

std::string_view MarketName(Market market) {
  return market == Market::kSpot ? "spot" : "on_demand";
}

std::string RegionOf(const std::string& zone) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t size = zone.size();
  if (size < 3 || zone[size - 1] < 'a' || zone[size - 1] > 'z') return zone;
  if (digit(zone[size - 2])) return zone.substr(0, size - 1);
  return zone[size - 2] == '-' && digit(zone[size - 3]) ? zone.substr(0, size - 2) : zone;
}

AutoscalerPolicy::AutoscalerPolicy(FleetLimits limits, std::string token_prefix)
    : limits_(std::move(limits)), token_prefix_(std::move(token_prefix)) {
  TROUPE_ASSERT(limits_.min_workers <= limits_.max_workers, "min_workers is over max_workers");
  for (const PoolLimits& pool : limits_.pools) {
    TROUPE_ASSERT(pool.workers_per_node > 0, "a node of a pool holds no worker");
    pools_[pool.name] = PoolRecord{};
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
  found->second.Failed(now, why, retriable, limits_.cooldown, limits_.cooldown_max);
}

void AutoscalerPolicy::LaunchFailed(Time now, const std::string& token, const std::string& why,
                                    bool retriable) {
  if (const auto found = pending_.find(token); found != pending_.end()) {
    CoolDown(now, found->second.pool, why, retriable);
    pending_.erase(found);
    return;
  }
  const auto shown = std::find_if(known_.begin(), known_.end(), [&](const auto& entry) {
    return entry.second.launching && entry.second.token == token;
  });
  if (shown == known_.end()) return;  // Already given up.
  CoolDown(now, shown->second.pool, why, retriable);
  known_.erase(shown);
}

void AutoscalerPolicy::RoomAppeared() {
  for (auto& [name, record] : pools_) record.RoomAppeared();
}

// What changed since the last decision: launches that arrived or got lost, nodes that were taken
// away.
void AutoscalerPolicy::Observe(Time now, const std::vector<FleetNode>& fleet) {
  std::set<std::string> present;
  std::map<std::string, int> taken;
  std::map<std::string, int> held;
  for (const FleetNode& node : fleet) {
    present.insert(node.id);
    const bool arrived = pending_.erase(node.token) > 0;
    const auto pool = pools_.find(node.pool);
    if (pool == pools_.end()) continue;
    if (arrived) pool->second.Granted(now, limits_.cooldown);
    if (node.at_risk && node.phase <= NodePhase::kUp) pool->second.AtRisk(now);
    const bool noticed = node.notice_deadline != Time::Never();
    const auto known = known_.find(node.id);
    if (node.phase == NodePhase::kUp) {
      ++held[node.pool];
      const bool was_launching = known != known_.end() && known->second.launching;
      if (was_launching) pool->second.Booted(node.since - known->second.since);
      pool->second.Serves(node.since);
    }
    if (noticed && known != known_.end()) {
      ++taken[node.pool];
      known_.erase(known);
    } else if (!noticed && node.phase <= NodePhase::kUp) {
      known_[node.id] =
          Known{node.pool, node.token, node.phase == NodePhase::kLaunching, node.since};
    } else if (known != known_.end()) {
      known_.erase(known);
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
      ++taken[it->second.pool];
    }
    it = known_.erase(it);
  }
  int losses = 0;
  for (const auto& [pool, nodes] : taken) {
    pools_[pool].Preempted(now, nodes);
    losses += nodes;
  }
  joins_.Lost(now, losses);
  for (auto& [pool, record] : pools_) {
    const auto found = held.find(pool);
    record.Held(now, found == held.end() ? 0 : found->second);
  }
  std::erase_if(leaving_, [&](const std::string& id) { return !present.contains(id); });
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

AutoscalerPolicy::Tally AutoscalerPolicy::TallyOf(int target,
                                                  const std::vector<FleetNode>& fleet) const {
  struct Count {
    int billed = 0;
    int staying = 0;
  };
  Tally tally;
  tally.target = target;
  std::map<std::string_view, Count> counts;
  for (const FleetNode& node : fleet) {
    Count& count = counts[node.pool];
    ++count.billed;
    count.staying += Stays(node) ? 1 : 0;
    const PoolLimits* pool = PoolOf(node.pool);
    if (pool == nullptr) continue;
    tally.launching += node.phase == NodePhase::kLaunching ? 1 : 0;
    if (node.phase == NodePhase::kUp && Stays(node)) tally.up += pool->workers_per_node;
  }
  for (const auto& [name, count] : counts) {
    const PoolLimits* pool = PoolOf(std::string(name));
    // A node of a pool that is no longer configured is billed but is not planned with.
    if (pool == nullptr) {
      tally.nodes += count.billed;
    } else {
      tally.Add(*pool, count.billed, count.staying);
    }
  }
  for (const auto& [token, pending] : pending_) {
    tally.Add(*PoolOf(pending.pool), 1, 1);
    ++tally.pools[pending.pool].pending;
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
    if (due > now || TROUPE_MUTATED("AP-7 the overdue stay")) {
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
  const PoolRecord& record = pools_.at(pool.name);
  if (record.cool_until() > now) {
    decision.next_wake = std::min(decision.next_wake, record.cool_until());
    return pool.name + " cools down for " + Seconds(record.cool_until() - now) + " (" +
           record.failure() + ")";
  }
  const Tally::PoolCount count = tally.Of(pool);
  if (record.failing() && count.pending > 0)
    return pool.name + " is asked for one node first (" + record.failure() + ")";
  if (count.capacity + pool.workers_per_node > pool.max_workers) {
    return pool.name + " is at its maximum of " + Workers(pool.max_workers);
  }
  if (tally.capacity + pool.workers_per_node > limits_.max_workers &&
      !TROUPE_MUTATED("AP-1 no max_workers")) {
    return "a node of " + pool.name + " would exceed max_workers";
  }
  if (limits_.budget_per_hour > 0 && !TROUPE_MUTATED("AP-1 no budget") &&
      tally.price_per_hour + pool.price_per_hour > limits_.budget_per_hour) {
    return "a node of " + pool.name + " would exceed budget_per_hour";
  }
  // The floor goes before the hedge: where one zone is all there is, it holds min_workers.
  const bool above_floor =
      tally.moving || tally.capacity >= limits_.min_workers || TROUPE_MUTATED("AP-5 no floor");
  const int cap = ZoneCap(tally.target);
  if (pool.market == Market::kSpot && above_floor && !TROUPE_MUTATED("AP-5 no cap") &&
      tally.InZone(pool) + pool.workers_per_node > cap) {
    return "zone " + Tally::ZoneOf(pool) + " holds its share of " + Workers(cap);
  }
  return std::nullopt;
}

int AutoscalerPolicy::ZoneCap(int target) const {
  const double cap = limits_.max_fraction_per_zone * target;
  return std::max(1, static_cast<int>(std::ceil(cap - 1e-9)));
}

// What a worker of the pool costs per useful hour: its price, and what is paid while replacements
// for lost nodes boot and the group is rebuilt.
double AutoscalerPolicy::CostOf(const PoolLimits& pool) const {
  const double price = pool.price_per_hour / pool.workers_per_node;
  if (pool.market == Market::kOnDemand) return price;
  const PoolRecord& record = pools_.at(pool.name);
  return price * (1 + record.Hazard() * ToSeconds(record.BootTime() + limits_.rebuild_time) / 3600);
}

std::string AutoscalerPolicy::FiguresOf(const PoolLimits& pool) const {
  const PoolRecord& record = pools_.at(pool.name);
  std::string text = "$" + Figure(pool.price_per_hour / pool.workers_per_node) + " per worker-hour";
  if (pool.market == Market::kSpot)
    text += ", $" + Figure(CostOf(pool)) + " with " + Figure(record.Hazard()) +
            " preemptions per node-hour and " + Seconds(record.BootTime()) + " to boot";
  return text;
}

// The pool that the next node comes from, or null with what stands in the way.
const PoolLimits* AutoscalerPolicy::Choose(Time now, int target, const Tally& tally,
                                           std::string& why, std::vector<std::string>& obstacles,
                                           Decision& decision) const {
  const bool needs_on_demand = tally.on_demand_capacity < OnDemandWanted(target);
  const PoolLimits* best = nullptr;
  const PoolLimits* fallback = nullptr;
  PoolRank best_rank;
  PoolRank fallback_rank;
  for (const PoolLimits& pool : limits_.pools) {
    if (auto obstacle = ObstacleOf(now, pool, tally, decision)) {
      obstacles.push_back(std::move(*obstacle));
      continue;
    }
    const bool below_min = tally.Of(pool).capacity < pool.min_workers;
    const bool on_demand = pool.market == Market::kOnDemand;
    const PoolRank rank = RankOf(now, pool, tally, needs_on_demand);
    const bool wanted = below_min || on_demand == needs_on_demand;
    const PoolLimits*& slot = wanted ? best : fallback;
    PoolRank& slot_rank = wanted ? best_rank : fallback_rank;
    if (slot == nullptr || rank < slot_rank) {
      slot = &pool;
      slot_rank = rank;
    }
  }
  if (best != nullptr) {
    why = (needs_on_demand && best->market == Market::kOnDemand ? "on-demand share: "
                                                                : "cheapest that can serve: ") +
          FiguresOf(*best);
    return best;
  }
  if (fallback == nullptr) return nullptr;
  // A cluster that has no spot pool at all need not wait for one; nor does one that lacks on-demand
  // capacity.
  const Time due = short_since_.value_or(now) + limits_.fallback_after;
  if (fallback->market == Market::kOnDemand && HasSpot() && now < due) {
    decision.next_wake = std::min(decision.next_wake, due);
    obstacles.push_back(fallback->name + " is the fallback in " + Seconds(due - now));
    return nullptr;
  }
  why = "fallback: no other pool can serve; " + FiguresOf(*fallback);
  return fallback;
}

AutoscalerPolicy::PoolRank AutoscalerPolicy::RankOf(Time now, const PoolLimits& pool,
                                                    const Tally& tally,
                                                    bool needs_on_demand) const {
  const PoolRecord& record = pools_.at(pool.name);
  const bool below_min = tally.Of(pool).capacity < pool.min_workers;
  const bool recently = record.preempted_at() && now - *record.preempted_at() < limits_.cooldown;
  const bool on_demand = pool.market == Market::kOnDemand;
  // Costs that differ by less are the same, so that fleets are spread.
  const double cost = CostOf(pool);
  const auto step = cost > 0 ? std::lround(std::log(cost) / std::log(kSameCost)) : -1'000'000;
  return {!below_min,
          on_demand != needs_on_demand,
          recently,
          step,
          on_demand ? 0 : tally.InRegion(pool),
          on_demand ? 0 : tally.InZone(pool),
          -record.SuccessRate(),
          cost,
          tally.Of(pool).nodes};
}

void AutoscalerPolicy::StartLaunch(Time now, const PoolLimits& pool, const std::string& why,
                                   Tally& tally, Decision& decision) {
  const std::string token = token_prefix_ + "-" + std::to_string(next_token_);
  if (!TROUPE_MUTATED("AP-4 a token again")) ++next_token_;
  pending_[token] = Pending{pool.name, now};
  decision.next_wake = std::min(decision.next_wake, now + limits_.launch_timeout);
  tally.Add(pool, 1, 1);
  ++tally.pools[pool.name].pending;
  ++tally.launching;
  decision.actions.push_back({Launch{token, pool.name}, why});
}

void AutoscalerPolicy::Fill(Time now, int target, Tally& tally, Decision& decision) {
  std::vector<std::string> obstacles;
  bool short_of_pools = false;
  if (const Time due = joins_.Due(now, limits_, tally.up, target - tally.capacity); due > now) {
    decision.reason += "; what is missing is launched together in " + Seconds(due - now) +
                       ", since each join is a rebuild";
    decision.next_wake = std::min(decision.next_wake, due);
    return;
  }
  for (;;) {
    const bool pool_below_min = std::any_of(
        limits_.pools.begin(), limits_.pools.end(),
        [&](const PoolLimits& pool) { return tally.pools[pool.name].capacity < pool.min_workers; });
    if (tally.capacity >= target && !pool_below_min) break;
    if (tally.nodes >= limits_.max_nodes && !TROUPE_MUTATED("AP-1 no max_nodes")) {
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
  // A launch in a pool that has refused may be refused again: the lack goes on until it is not.
  int unsure = 0;
  for (const PoolLimits& pool : limits_.pools) {
    if (pools_.at(pool.name).failing()) unsure += tally.Of(pool).pending * pool.workers_per_node;
  }
  if (tally.capacity - unsure >= target) {
    short_since_.reset();
  } else if ((short_of_pools || unsure > 0) && !short_since_) {
    short_since_ = now;
  }
  for (const std::string& obstacle : obstacles) decision.reason += "; " + obstacle;
}

void AutoscalerPolicy::PriceIs(const std::string& pool, double per_hour) {
  for (PoolLimits& limits : limits_.pools) {
    if (limits.name == pool) limits.price_per_hour = per_hour;
  }
}

Decision AutoscalerPolicy::Decide(Time now, const Demand& demand,
                                  const std::vector<FleetNode>& fleet) {
  Decision decision;
  Observe(now, fleet);
  for (const auto& [token, pending] : pending_) {
    decision.next_wake = std::min(decision.next_wake, pending.since + limits_.launch_timeout);
  }
  const int most = std::clamp(demand.useful, limits_.min_workers, limits_.max_workers);
  const int target = std::clamp(demand.workers, limits_.min_workers, most);
  Tally tally = TallyOf(target, fleet);
  decision.reason = "want " + Workers(target) + " (demand " + std::to_string(demand.workers) +
                    ", limits " + std::to_string(limits_.min_workers) + " to " +
                    std::to_string(limits_.max_workers) + "), have " +
                    std::to_string(tally.capacity) + " with " + std::to_string(tally.launching) +
                    " nodes still starting";
  if (most < std::min(demand.workers, limits_.max_workers)) decision.reason += "; " + demand.why;
  EndOverdue(now, fleet, tally, decision);
  DrainNoticed(now, fleet, decision);
  if (DrainOverBudget(now, fleet, tally, decision)) return decision;
  const bool returning = ReturnToSpot(now, fleet, tally, decision);
  Fill(now, target, tally, decision);
  // A node that is launched ahead is no reason to let another one go.
  if (!returning) DrainIdle(now, target, fleet, tally, decision);
  return decision;
}

}  // namespace troupe
