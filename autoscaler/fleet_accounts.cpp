#include "autoscaler/fleet_accounts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace troupe {
namespace {

constexpr double kHour_s = 3600;

}  // namespace

std::string_view TimeUseName(TimeUse use) {
  static constexpr std::string_view kNames[] = {"useful",   "redone", "recovering", "waiting",
                                                "starting", "idle",   "draining"};
  return kNames[static_cast<size_t>(use)];
}

double FleetAccounts::Sums::PaidSeconds() const {
  return std::accumulate(worker_s.begin(), worker_s.end(), 0.0);
}

double FleetAccounts::Sums::Dollars() const {
  return std::accumulate(dollars.begin(), dollars.end(), 0.0);
}

FleetAccounts::FleetAccounts(std::vector<PoolLimits> pools) {
  for (PoolLimits& pool : pools) limits_.emplace(pool.name, std::move(pool));
  Compare();
  if (on_demand_price_) total_.on_demand_dollars = 0;
}

void FleetAccounts::Compare() {
  on_demand_price_.reset();
  for (const auto& [name, pool] : limits_) {
    const double price = pool.price_per_hour / pool.workers_per_node;
    if (pool.market == Market::kOnDemand && price > 0)
      on_demand_price_ = std::min(price, on_demand_price_.value_or(price));
  }
}

void FleetAccounts::PriceIs(const std::string& pool, double per_hour) {
  const auto found = limits_.find(pool);
  if (found == limits_.end()) return;
  found->second.price_per_hour = per_hour;
  Compare();
}

int FleetAccounts::RoomOf(const std::string& pool) const {
  const auto found = limits_.find(pool);
  return found == limits_.end() ? 1 : found->second.workers_per_node;
}

void FleetAccounts::Add(const Known& known, TimeUse use, double worker_s) {
  const auto pool = limits_.find(known.node.pool);
  const double hours = worker_s / kHour_s;
  const bool priced = pool != limits_.end();
  const double dollars =
      priced ? hours * pool->second.price_per_hour / pool->second.workers_per_node : 0;
  const bool lost = use == TimeUse::kRedone || use == TimeUse::kRecovering ||
                    (use == TimeUse::kStarting && known.replaces);
  for (Sums* sums : {&total_, &of_pool_[known.node.pool]}) {
    sums->worker_s[static_cast<size_t>(use)] += worker_s;
    sums->dollars[static_cast<size_t>(use)] += dollars;
    if (priced && pool->second.market == Market::kSpot) sums->spot_worker_s += worker_s;
    if (on_demand_price_)
      sums->on_demand_dollars = sums->on_demand_dollars.value_or(0) + hours * *on_demand_price_;
    if (lost) sums->lost_dollars += dollars;
  }
}

// Worker-seconds in which somebody works there.
double FleetAccounts::UsefulOf(const Node& node, double span_s) const {
  const bool works = node.phase == NodePhase::kUp || node.phase == NodePhase::kDraining;
  if (!works || node.idle) return 0;
  const int room = RoomOf(node.pool);
  return span_s * (node.workers == 0 ? room : std::min(room, node.members));
}

// `lost`: of the useful time, what members lost; `redone_share`: of that, for steps computed again.
void FleetAccounts::BillNode(const Known& known, double span_s, double lost, double redone_share) {
  const Node& node = known.node;
  const int room = RoomOf(node.pool);
  const double useful = UsefulOf(node, span_s);
  if (node.phase == NodePhase::kLaunching) return Add(known, TimeUse::kStarting, span_s * room);
  double rest = span_s * room - useful;
  if (!node.idle && node.phase != NodePhase::kTerminating) {
    const int starting = std::max(0, std::min(room, node.workers) - std::min(room, node.members));
    const double waiting = std::min(rest, span_s * starting);
    Add(known, TimeUse::kWaiting, waiting);
    rest -= waiting;
  }
  Add(known, node.phase == NodePhase::kUp ? TimeUse::kIdle : TimeUse::kDraining, rest);
  Add(known, TimeUse::kRedone, lost * redone_share);
  Add(known, TimeUse::kRecovering, lost * (1 - redone_share));
  Add(known, TimeUse::kUseful, useful - lost);
}

void FleetAccounts::Bill(double span_s) {
  double useful = 0;
  for (const auto& [id, known] : nodes_) useful += UsefulOf(known.node, span_s);
  const double owed = owed_stood_s_ + owed_redone_s_;
  const double lost = std::min(owed, useful);
  const double redone_share = owed > 0 ? owed_redone_s_ / owed : 0;
  for (const auto& [id, known] : nodes_) {
    const double part = useful > 0 ? lost * UsefulOf(known.node, span_s) / useful : 0;
    BillNode(known, span_s, part, redone_share);
  }
  owed_redone_s_ -= lost * redone_share;
  owed_stood_s_ -= lost * (1 - redone_share);
}

void FleetAccounts::TakeRuns(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    Run& known = runs_[run.id];
    // A head that was restarted counts from zero.
    const auto grown = [](auto now, auto before) { return now >= before ? now - before : now; };
    owed_stood_s_ += grown(run.stood_s, known.stood_s);
    owed_redone_s_ += grown(run.redone_s, known.redone_s);
    if (run.steps > known.steps) total_.steps += run.steps - known.steps;
    if (run.samples > known.samples) {
      const uint64_t samples = run.samples - known.samples;
      total_.samples += samples;
      if (run.samples_per_epoch > 0)
        total_.epochs += static_cast<double>(samples) / static_cast<double>(run.samples_per_epoch);
    }
    const uint64_t steps = std::max(run.steps, known.steps);
    const uint64_t samples = std::max(run.samples, known.samples);
    known = run;
    known.steps = steps;
    known.samples = samples;
  }
}

void FleetAccounts::TakeNodes(const std::vector<Node>& nodes) {
  std::set<std::string> present;
  for (const Node& node : nodes) present.insert(node.id);
  const auto taken = [this](const std::string& pool) {
    ++total_.preemptions;
    ++of_pool_[pool].preemptions;
    ++to_replace_;
  };
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const Node& node = it->second.node;
    if (present.contains(it->first)) {
      ++it;
      continue;
    }
    if (node.phase == NodePhase::kUp && !node.noticed) taken(node.pool);
    it = nodes_.erase(it);
  }
  for (const Node& node : nodes) {
    const auto [it, is_new] = nodes_.try_emplace(node.id);
    Known& known = it->second;
    if (is_new && to_replace_ > 0 && node.phase == NodePhase::kLaunching) {
      known.replaces = true;
      --to_replace_;
    }
    if (node.noticed && !known.node.noticed) taken(node.pool);
    known.node = node;
  }
}

void FleetAccounts::Advance(Time now, const std::vector<Node>& nodes,
                            const std::vector<Run>& runs) {
  TakeRuns(runs);
  if (last_ != Time::Never() && now > last_) Bill(ToSeconds(now - last_));
  last_ = now;
  TakeNodes(nodes);
}

}  // namespace troupe
