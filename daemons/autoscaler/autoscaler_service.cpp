#include "daemons/autoscaler/autoscaler_service.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "daemons/autoscaler/account_text.h"
#include "runtime/metrics.h"

namespace troupe::daemons {
namespace {

constexpr std::string_view kRebalance = "rebalance";  // A cloud's word for what may come.

std::string Seconds(Duration span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", ToMilliseconds(span) / 1000);
  return text;
}

// "for 1.899 s" passes with each step: a reason that differs in that alone is no other one.
std::string WithoutTimes(const std::string& reason) {
  std::string rest;
  for (size_t i = 0; i < reason.size();) {
    const size_t end = std::min(reason.find_first_not_of("0123456789.", i), reason.size());
    const bool time = end > i && reason.compare(end, 2, " s") == 0;
    if (end == i || !time) rest.append(reason, i, std::max(end, i + 1) - i);
    i = std::max(end, i + 1);
  }
  return rest;
}

std::string RunFigures(const ClusterState::Run& run) {
  return "{\"members\":" + std::to_string(run.members) +
         ",\"target\":" + std::to_string(run.target) + ",\"epoch\":" + std::to_string(run.epoch) +
         ",\"steps\":" + std::to_string(run.steps) + "}";
}

bool MayHaveBeenMade(const Error& error) {
  return error.code == ErrorCode::kDeadlineExceeded || error.code == ErrorCode::kCorrupt;
}

}  // namespace

AutoscalerService::AutoscalerService(const ClusterConfig& config, std::string token_prefix,
                                     AutoscalerCallbacks callbacks)
    : tick_(config.tick),
      callbacks_(std::move(callbacks)),
      policy_(config.limits, std::move(token_prefix)),
      accounts_(config.limits.pools),
      curve_(config.limits.min_marginal_efficiency, config.limits.min_workers) {}

Time AutoscalerService::Step(Time now) {
  (void)callbacks_.provider->Step(now);
  TakeFailures(now);
  if (callbacks_.provider->TakeNewRoom()) policy_.RoomAppeared();
  TakePrices();
  TakeNotices(now);
  Observe(now);
  const Decision decision = policy_.Decide(now, demand_, fleet_.nodes());
  if (std::string reason = WithoutTimes(decision.reason); reason != reason_) {
    reason_ = std::move(reason);
    Tell(decision.reason, {FleetNoteKind::kDecision, {}, {}, {}, decision.reason});
  }
  for (const Action& action : decision.actions) Act(now, action);
  // Nodes that were made just now are paid from now on.
  if (const auto listed = callbacks_.provider->List(); listed.ok()) fleet_.Update(now, *listed);
  Account(now);
  metrics::Set(metrics::Id::kAutoscalerWorkersWanted, demand_.workers);
  return std::min(decision.next_wake, now + tick_);
}

void AutoscalerService::Tell(const std::string& line, FleetNote note) {
  callbacks_.say(line);
  if (!callbacks_.note) return;
  if (const auto pool = pools_.find(note.node); note.pool.empty() && pool != pools_.end())
    note.pool = pool->second;
  callbacks_.note(note);
}

// Its members and its epoch, and why they changed. They are said by the training itself.
void AutoscalerService::NoteRuns(const ClusterState& cluster) {
  if (!callbacks_.note) return;
  std::map<std::string, std::string> noted;
  for (const ClusterState::Run& run : cluster.runs) {
    const auto found = runs_.find(run.id);
    const std::string what = run.state + ", " + std::to_string(run.members) + " of " +
                             std::to_string(run.target) + " members, epoch " +
                             std::to_string(run.epoch) +
                             (run.reason.empty() ? "" : ": " + run.reason);
    if (found == runs_.end() || found->second != what)
      callbacks_.note({FleetNoteKind::kGroup, {}, {}, run.name, what, RunFigures(run)});
    noted[run.id] = what;
  }
  runs_ = std::move(noted);
}

void AutoscalerService::TakeNotices(Time now) {
  for (const Notice& notice : callbacks_.notices->Poll(now)) {
    metrics::Add(metrics::Id::kPreemptionNotices, 1, "provider,preempt");
    const std::string what =
        "is taken back in " + Seconds(notice.deadline - now) + " (" + notice.source + ")";
    Tell("notice: node " + notice.node + " " + what,
         {FleetNoteKind::kNotice, notice.node, {}, {}, what});
    fleet_.Noticed(notice.node, notice.deadline);
    preempted_.insert(notice.node);
  }
}

void AutoscalerService::TakePrices() {
  const std::map<std::string, double> fresh = callbacks_.provider->TakePrices();
  for (const auto& [pool, per_hour] : fresh) prices_[pool] = per_hour;
  if (fresh.empty()) return;
  // One without a price cannot be compared with the others, and would draw the whole fleet.
  const std::vector<PoolLimits> pools = policy_.limits().pools;
  for (const PoolLimits& pool : pools) {
    if (pool.price_per_hour > 0 || prices_.contains(pool.name)) continue;
    if (!std::exchange(unpriced_, true))
      Tell("prices of the market are not used: pool " + pool.name + " has none; give it one",
           {FleetNoteKind::kPrice, {}, pool.name, {}, "none; those of the market are not used"});
    return;
  }
  for (const PoolLimits& pool : pools) {
    const auto told = prices_.find(pool.name);
    if (told == prices_.end() || told->second == pool.price_per_hour) continue;
    char text[96];
    std::snprintf(text, sizeof text, "$%.6g per node-hour, was $%.6g", told->second,
                  pool.price_per_hour);
    Tell("price of pool " + pool.name + ": " + text,
         {FleetNoteKind::kPrice, {}, pool.name, {}, text});
    policy_.PriceIs(pool.name, told->second);
    accounts_.PriceIs(pool.name, told->second);
  }
}

void AutoscalerService::Observe(Time now) {
  std::string trouble;
  if (const Result<std::vector<ProviderNode>> listed = callbacks_.provider->List(); listed.ok()) {
    fleet_.Update(now, *listed);
    for (const ProviderNode& node : *listed) {
      if (node.asked_for) continue;
      made_ = true;
      asked_.erase(node.token);
    }
  } else {
    trouble = "the provider does not list its nodes: " + listed.error().message;
  }
  if (const Result<ClusterState> cluster = callbacks_.cluster(); cluster.ok()) {
    demand_.workers = cluster->wanted_workers;
    // Of several runs it cannot be told who would get a further worker.
    if (cluster->runs.size() == 1) {
      const ClusterState::Run& run = cluster->runs.front();
      curve_.Observe(now, run.id, run.epoch, run.members, run.steps);
    }
    demand_.useful = cluster->runs.size() > 1 ? std::numeric_limits<int>::max() : curve_.useful();
    demand_.why = curve_.Why();
    if (cluster->running && !std::exchange(ran_, true)) callbacks_.notices->TrainingRuns(now);
    std::set<std::string> known;
    for (const ClusterState::Node& node : cluster->nodes) {
      known.insert(node.id);
      if (!node.alive) continue;
      fleet_.NodeUp(now, node.id);
      TakeOwnNotice(now, node);
      fleet_.SetIdle(now, node.id, node.idle);
      fleet_.SetAtRisk(node.id, node.warning_kind == kRebalance);
    }
    NoteRuns(*cluster);
    cluster_ = *cluster;
    for (const std::string& id : fleet_.Lost(now, known))
      Act(now, {Terminate{id}, "it has left the cluster, and its machine is still there"});
  } else {
    trouble = "the head does not answer: " + cluster.error().message;
  }
  if (trouble != trouble_ && !trouble.empty())
    Tell(trouble, {FleetNoteKind::kTrouble, {}, {}, {}, trouble});
  trouble_ = trouble;
  SayChanges();
}

// Of a node that its machine's cloud has told, or that an operator drains: its place is filled at
// once. What may only come is said.
void AutoscalerService::TakeOwnNotice(Time now, const ClusterState::Node& node) {
  const auto count = [](const std::string& source, const std::string& kind) {
    if (!source.empty()) metrics::Add(metrics::Id::kPreemptionNotices, 1, source + "," + kind);
  };
  const bool limited = node.drain_left != Duration::max();
  const Time deadline = limited ? now + node.drain_left : Time::Never();
  if (node.draining && fleet_.DrainsByItself(now, node.id, deadline)) {
    if (!node.source.empty()) preempted_.insert(node.id);
    count(node.source, node.kind);
    const std::string what =
        "drains" + (limited ? " within " + Seconds(node.drain_left) : "") + ": " + node.reason;
    Tell("notice: node " + node.id + " " + what, {FleetNoteKind::kNotice, node.id, {}, {}, what});
  }
  std::string& warned = warned_[node.id];
  if (warned == node.warning) return;
  if (!node.warning.empty()) {
    count(node.warning_source, node.warning_kind);
    const std::string what = "may be taken back: " + node.warning_kind + " (" +
                             node.warning_source + ": " + node.warning + ")";
    Tell("notice: node " + node.id + " " + what, {FleetNoteKind::kNotice, node.id, {}, {}, what});
  } else if (!node.draining) {
    const std::string what = "stays: what it was told before is over";
    Tell("notice: node " + node.id + " " + what, {FleetNoteKind::kNotice, node.id, {}, {}, what});
  }
  warned = node.warning;
}

void AutoscalerService::Account(Time now) {
  std::map<std::string, const ClusterState::Node*> known;
  for (const ClusterState::Node& node : cluster_.nodes) known[node.id] = &node;
  std::vector<FleetAccounts::Node> nodes;
  for (const FleetNode& node : fleet_.nodes()) {
    FleetAccounts::Node& now_there = nodes.emplace_back();
    now_there = {node.id, node.pool, node.phase, node.idle_since != Time::Never()};
    now_there.noticed = preempted_.contains(node.id);
    const auto found = known.find(node.id);
    if (found == known.end()) continue;
    now_there.workers = found->second->workers;
    now_there.members = found->second->members;
  }
  std::vector<FleetAccounts::Run> runs;
  for (const ClusterState::Run& run : cluster_.runs)
    runs.push_back(
        {run.id, run.steps, run.stood_s, run.redone_s, run.samples, run.samples_per_epoch});
  accounts_.Advance(now, nodes, runs);
  const FleetAccounts::Sums& sums = accounts_.total();
  for (size_t i = 0; i < kTimeUses; ++i) {
    const std::string use(TimeUseName(static_cast<TimeUse>(i)));
    const auto count = [&](metrics::Id id, double sum, double& counted) {
      if (sum > counted) metrics::Add(id, sum - std::exchange(counted, sum), use);
    };
    count(metrics::Id::kFleetWorkerSeconds, sums.worker_s[i], counted_[i]);
    count(metrics::Id::kFleetDollars, sums.dollars[i], counted_[kTimeUses + i]);
  }
  if (!callbacks_.note || now < account_at_) return;
  if (started_at_ == Time{}) started_at_ = now;
  account_at_ = now + std::clamp((now - started_at_) / 20, kAccountNotedMin, kAccountNoted);
  if (sums.PaidSeconds() > 0)
    callbacks_.note(
        {FleetNoteKind::kAccount, {}, {}, {}, AccountLine(accounts_), AccountJson(accounts_)});
}

void AutoscalerService::SayChanges() {
  static constexpr const char* kPhases[] = {"launching", "up", "draining", "terminating"};
  std::map<std::string, NodePhase> phases;
  std::map<std::string, double> counts;
  for (const char* phase : kPhases) counts[phase] = 0;
  for (const FleetNode& node : fleet_.nodes()) {
    phases[node.id] = node.phase;
    pools_[node.id] = node.pool;
    ++counts[kPhases[static_cast<size_t>(node.phase)]];
    const auto before = said_.find(node.id);
    const bool was_up = before != said_.end() && before->second >= NodePhase::kUp;
    if (node.phase == NodePhase::kUp && !was_up)
      Tell("node " + node.id + " is up", {FleetNoteKind::kUp, node.id});
  }
  for (const auto& [phase, count] : counts)
    metrics::Set(metrics::Id::kAutoscalerNodes, count, phase);
  for (const auto& [id, phase] : said_) {
    if (phases.contains(id)) continue;
    Tell("node " + id + " is gone", {FleetNoteKind::kGone, id});
    warned_.erase(id);
    pools_.erase(id);
    preempted_.erase(id);
    callbacks_.gone(id);
  }
  said_ = std::move(phases);
}

void AutoscalerService::Act(Time now, const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "launch");
    const Status may = callbacks_.may_launch ? callbacks_.may_launch() : Status::Ok();
    if (!may.ok()) return LaunchFailed(now, launch->token, launch->pool, "", may.error());
    const Result<std::string> id = callbacks_.provider->Launch(launch->token, launch->pool);
    if (id.ok()) {
      asked_[launch->token] = *id;
      return Tell("launch " + *id + ": " + action.reason,
                  {FleetNoteKind::kLaunch, *id, launch->pool, {}, action.reason});
    }
    made_ = made_ || MayHaveBeenMade(id.error());
    LaunchFailed(now, launch->token, launch->pool, "", id.error());
  } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "drain");
    const Status status = callbacks_.drain(drain->node, action.reason, drain->deadline - now);
    if (!status.ok()) return CannotEnd("drain", drain->node, status.error());
    fleet_.Draining(now, drain->node);
    Tell("drain " + drain->node + ": " + action.reason,
         {FleetNoteKind::kDrain, drain->node, {}, {}, action.reason});
  } else if (const auto* terminate = std::get_if<Terminate>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "terminate");
    const auto said = said_.find(terminate->node);
    if (said != said_.end() && said->second == NodePhase::kLaunching)
      callbacks_.provider->WantWords(terminate->node);
    const Status status = callbacks_.provider->Terminate(terminate->node);
    if (!status.ok()) return CannotEnd("terminate", terminate->node, status.error());
    fleet_.Terminating(now, terminate->node);
    Tell("terminate " + terminate->node + ": " + action.reason,
         {FleetNoteKind::kTerminate, terminate->node, {}, {}, action.reason});
  }
}

void AutoscalerService::CannotEnd(const std::string& verb, const std::string& node,
                                  const Error& error) {
  Tell(verb + " " + node + ": " + error.message,
       {FleetNoteKind::kFailure, node, {}, {}, verb + ": " + error.message});
}

void AutoscalerService::LaunchFailed(Time now, const std::string& token, const std::string& pool,
                                     const std::string& node, const Error& error) {
  metrics::Add(metrics::Id::kAutoscalerLaunchFailures, 1, pool);
  policy_.LaunchFailed(now, token, error.message, LaunchIsRetriable(error.code));
  Tell("launch in pool " + pool + " failed: " + error.message,
       {FleetNoteKind::kFailure, node, pool, {}, "launch failed: " + error.message});
}

void AutoscalerService::TakeFailures(Time now) {
  using Kind = ProviderFailure::Kind;
  for (const ProviderFailure& failure : callbacks_.provider->TakeFailures()) {
    const auto said = said_.find(failure.node);
    const bool was_up = said != said_.end() && said->second >= NodePhase::kUp;
    if (failure.kind == Kind::kWords) {
      const std::string what = "its machine had printed: " + failure.error.message;
      Tell("node " + failure.node + " never came up; " + what,
           {FleetNoteKind::kFailure, failure.node, failure.pool, {}, what});
    } else if (failure.kind == Kind::kTerminate) {
      CannotEnd("terminate", failure.node, failure.error);
    } else if (failure.kind == Kind::kEnded && was_up) {
      Tell("node " + failure.node + " has ended: " + failure.error.message,
           {FleetNoteKind::kFailure,
            failure.node,
            failure.pool,
            {},
            "ended: " + failure.error.message});
    } else {
      if (failure.kind == Kind::kLaunch) NotMade(failure);
      LaunchFailed(now, failure.token, failure.pool, failure.node, failure.error);
    }
  }
}

void AutoscalerService::NotMade(const ProviderFailure& failure) {
  said_.erase(failure.node);  // It never was one.
  asked_.erase(failure.token);
  made_ = made_ || MayHaveBeenMade(failure.error);
}

bool AutoscalerService::End(Time now) {
  (void)callbacks_.provider->Step(now);
  for (const ProviderFailure& failure : callbacks_.provider->TakeFailures()) {
    if (failure.kind == ProviderFailure::Kind::kLaunch) NotMade(failure);
  }
  const Result<std::vector<ProviderNode>> listed = callbacks_.provider->List();
  if (!listed.ok()) {  // Nodes may be there, and cost money.
    for (const auto& [id, phase] : said_) (void)callbacks_.provider->Terminate(id);
    for (const auto& [token, id] : asked_) (void)callbacks_.provider->Terminate(id);
    return !made_ && asked_.empty();
  }
  for (const ProviderNode& node : *listed) {
    (void)callbacks_.provider->Terminate(node.id);
    fleet_.Terminating(now, node.id);
  }
  fleet_.Update(now, *listed);
  Account(now);
  std::erase_if(said_, [&](const auto& node) {
    const bool gone = std::ranges::none_of(
        *listed, [&](const ProviderNode& left) { return left.id == node.first; });
    if (gone && callbacks_.note) callbacks_.note({FleetNoteKind::kGone, node.first});
    return gone;
  });
  return listed->empty();
}

}  // namespace troupe::daemons
