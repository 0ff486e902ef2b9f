#include "daemons/autoscaler/autoscaler_service.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "runtime/metrics.h"

namespace troupe::daemons {
namespace {

std::string Seconds(Duration span) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", ToMilliseconds(span) / 1000);
  return text;
}

}  // namespace

AutoscalerService::AutoscalerService(const ClusterConfig& config, std::string token_prefix,
                                     AutoscalerCallbacks callbacks)
    : tick_(config.tick),
      callbacks_(std::move(callbacks)),
      policy_(config.limits, std::move(token_prefix)) {}

Time AutoscalerService::Step(Time now) {
  (void)callbacks_.provider->Step(now);
  TakeFailures(now);
  if (callbacks_.provider->TakeNewRoom()) policy_.RoomAppeared();
  TakeNotices(now);
  Observe(now);
  const Decision decision = policy_.Decide(now, demand_, fleet_.nodes());
  if (decision.reason != reason_) {
    reason_ = decision.reason;
    callbacks_.say(reason_);
  }
  for (const Action& action : decision.actions) Act(now, action);
  metrics::Set(metrics::Id::kAutoscalerWorkersWanted, demand_.workers);
  return std::min(decision.next_wake, now + tick_);
}

void AutoscalerService::TakeNotices(Time now) {
  for (const Notice& notice : callbacks_.notices->Poll(now)) {
    metrics::Add(metrics::Id::kPreemptionNotices, 1, "provider,preempt");
    callbacks_.say("notice: node " + notice.node + " is taken back in " +
                   Seconds(notice.deadline - now) + " (" + notice.source + ")");
    fleet_.Noticed(notice.node, notice.deadline);
  }
}

void AutoscalerService::Observe(Time now) {
  std::string trouble;
  if (const Result<std::vector<ProviderNode>> listed = callbacks_.provider->List(); listed.ok()) {
    fleet_.Update(now, *listed);
  } else {
    trouble = "the provider does not list its nodes: " + listed.error().message;
  }
  if (const Result<ClusterState> cluster = callbacks_.cluster(); cluster.ok()) {
    demand_.workers = cluster->wanted_workers;
    if (cluster->running && !std::exchange(ran_, true)) callbacks_.notices->TrainingRuns(now);
    std::set<std::string> known;
    for (const ClusterState::Node& node : cluster->nodes) {
      known.insert(node.id);
      if (!node.alive) continue;
      fleet_.NodeUp(now, node.id);
      TakeOwnNotice(now, node);
      fleet_.SetIdle(now, node.id, node.idle);
    }
    for (const std::string& id : fleet_.Lost(now, known))
      Act(now, {Terminate{id}, "it has left the cluster, and its machine is still there"});
  } else {
    trouble = "the head does not answer: " + cluster.error().message;
  }
  if (trouble != trouble_ && !trouble.empty()) callbacks_.say(trouble);
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
    count(node.source, node.kind);
    callbacks_.say("notice: node " + node.id + " drains" +
                   (limited ? " within " + Seconds(node.drain_left) : "") + ": " + node.reason);
  }
  std::string& warned = warned_[node.id];
  if (warned == node.warning) return;
  if (!node.warning.empty()) {
    count(node.warning_source, node.warning_kind);
    callbacks_.say("notice: node " + node.id + " may be taken back: " + node.warning_kind + " (" +
                   node.warning_source + ": " + node.warning + ")");
  } else if (!node.draining) {
    callbacks_.say("notice: node " + node.id + " stays: what it was told before is over");
  }
  warned = node.warning;
}

void AutoscalerService::SayChanges() {
  static constexpr const char* kPhases[] = {"launching", "up", "draining", "terminating"};
  std::map<std::string, NodePhase> phases;
  std::map<std::string, double> counts;
  for (const char* phase : kPhases) counts[phase] = 0;
  for (const FleetNode& node : fleet_.nodes()) {
    phases[node.id] = node.phase;
    ++counts[kPhases[static_cast<size_t>(node.phase)]];
    const auto before = said_.find(node.id);
    const bool was_up = before != said_.end() && before->second >= NodePhase::kUp;
    if (node.phase == NodePhase::kUp && !was_up) callbacks_.say("node " + node.id + " is up");
  }
  for (const auto& [phase, count] : counts)
    metrics::Set(metrics::Id::kAutoscalerNodes, count, phase);
  for (const auto& [id, phase] : said_) {
    if (phases.contains(id)) continue;
    callbacks_.say("node " + id + " is gone");
    warned_.erase(id);
    callbacks_.gone(id);
  }
  said_ = std::move(phases);
}

void AutoscalerService::Act(Time now, const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "launch");
    const Result<std::string> id = callbacks_.provider->Launch(launch->token, launch->pool);
    launched_ = launched_ || id.ok() || id.error().code == ErrorCode::kDeadlineExceeded ||
                id.error().code == ErrorCode::kCorrupt;
    if (id.ok()) return callbacks_.say("launch " + *id + ": " + action.reason);
    LaunchFailed(now, launch->token, launch->pool, id.error());
  } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "drain");
    const Status status = callbacks_.drain(drain->node, action.reason, drain->deadline - now);
    if (!status.ok()) return callbacks_.say("drain " + drain->node + ": " + status.error().message);
    fleet_.Draining(now, drain->node);
    callbacks_.say("drain " + drain->node + ": " + action.reason);
  } else if (const auto* terminate = std::get_if<Terminate>(&action.what)) {
    metrics::Add(metrics::Id::kAutoscalerActions, 1, "terminate");
    const Status status = callbacks_.provider->Terminate(terminate->node);
    if (!status.ok())
      return callbacks_.say("terminate " + terminate->node + ": " + status.error().message);
    fleet_.Terminating(now, terminate->node);
    callbacks_.say("terminate " + terminate->node + ": " + action.reason);
  }
}

void AutoscalerService::LaunchFailed(Time now, const std::string& token, const std::string& pool,
                                     const Error& error) {
  metrics::Add(metrics::Id::kAutoscalerLaunchFailures, 1, pool);
  policy_.LaunchFailed(now, token, error.message, LaunchIsRetriable(error.code));
  callbacks_.say("launch in pool " + pool + " failed: " + error.message);
}

void AutoscalerService::TakeFailures(Time now) {
  using Kind = ProviderFailure::Kind;
  for (const ProviderFailure& failure : callbacks_.provider->TakeFailures()) {
    const auto said = said_.find(failure.node);
    const bool was_up = said != said_.end() && said->second >= NodePhase::kUp;
    if (failure.kind == Kind::kTerminate) {
      callbacks_.say("terminate " + failure.node + ": " + failure.error.message);
    } else if (failure.kind == Kind::kEnded && was_up) {
      callbacks_.say("node " + failure.node + " has ended: " + failure.error.message);
    } else {
      if (failure.kind == Kind::kLaunch) said_.erase(failure.node);  // It never was one.
      LaunchFailed(now, failure.token, failure.pool, failure.error);
    }
  }
}

bool AutoscalerService::End(Time now) {
  (void)callbacks_.provider->Step(now);
  const Result<std::vector<ProviderNode>> listed = callbacks_.provider->List();
  if (!listed.ok()) return !launched_;  // Nodes may be there, and cost money.
  for (const ProviderNode& node : *listed) (void)callbacks_.provider->Terminate(node.id);
  return listed->empty();
}

}  // namespace troupe::daemons
