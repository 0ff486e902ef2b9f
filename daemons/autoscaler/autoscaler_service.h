// AutoscalerService: the shell around the autoscaler's pure parts. Every step plays the notices,
// compares the nodes that the provider lists with those that the head knows, asks the policy, and
// carries out what it says.
//
// Thread: one; a step blocks as long as `cluster` and `drain` do.
// Invariant: one line is said per event, and the policy's reason only when more than the time in it
// has changed.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "autoscaler/cluster_config.h"
#include "autoscaler/fleet.h"
#include "autoscaler/fleet_accounts.h"
#include "autoscaler/fleet_note.h"
#include "autoscaler/node_provider.h"
#include "autoscaler/policy.h"
#include "autoscaler/scaling_curve.h"
#include "daemons/protocol/cluster_state.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

// How often accounts are noted: in the beginning more often than after a while.
inline constexpr Duration kAccountNotedMin = seconds(5);
inline constexpr Duration kAccountNoted = seconds(60);

struct AutoscalerCallbacks {
  NodeProvider* provider = nullptr;
  NoticeSource* notices = nullptr;
  // What the head knows; an error means "not now", and the step goes on with what was known.
  std::function<Result<ClusterState>()> cluster;
  // Makes the node drain: its workers move, and it is gone after `left`.
  std::function<Status(const std::string& node, const std::string& reason, Duration left)> drain;
  // The node is gone; whatever belonged to it can go.
  std::function<void(const std::string& node)> gone;
  std::function<void(const std::string& line)> say;
  // Whether a node may be launched now; null: always.
  std::function<Status()> may_launch = nullptr;
  // What is done or seen, and why; null: nobody keeps it.
  std::function<void(const FleetNote&)> note = nullptr;
};

class AutoscalerService {
 public:
  AutoscalerService(const ClusterConfig& config, std::string token_prefix,
                    AutoscalerCallbacks callbacks);

  // One turn. Returns when the next one is due at the latest.
  Time Step(Time now);
  // Ends all nodes; true when none is listed any more, or none was ever made. Call until then.
  bool End(Time now);
  // What was paid until the last step, and for what.
  [[nodiscard]] const FleetAccounts& accounts() const { return accounts_; }

 private:
  void TakePrices();
  void TakeNotices(Time now);
  void Observe(Time now);
  void TakeFailures(Time now);
  void TakeOwnNotice(Time now, const ClusterState::Node& node);
  void Act(Time now, const Action& action);
  void CannotEnd(const std::string& verb, const std::string& node, const Error& error);
  // `node`: empty if it never had a name.
  void LaunchFailed(Time now, const std::string& token, const std::string& pool,
                    const std::string& node, const Error& error);
  void NotMade(const ProviderFailure& failure);
  void SayChanges();
  void NoteRuns(const ClusterState& cluster);
  void Account(Time now);
  // Says the line, and notes what it says.
  void Tell(const std::string& line, FleetNote note);

  const Duration tick_;
  AutoscalerCallbacks callbacks_;
  AutoscalerPolicy policy_;
  Fleet fleet_;
  FleetAccounts accounts_;
  ScalingCurve curve_;
  ClusterState cluster_;                         // As the head knew it last.
  std::set<std::string> preempted_;              // Nodes that are taken back.
  std::array<double, 2 * kTimeUses> counted_{};  // Of the accounts, by the metrics.
  Time account_at_{};                            // When they are noted next.
  Time started_at_{};                            // When they were asked for first.
  Demand demand_;
  std::map<std::string, NodePhase> said_;      // What was said of each node last.
  std::map<std::string, std::string> warned_;  // And of what may come to it.
  std::map<std::string, std::string> runs_;    // And of each run, by its id.
  std::map<std::string, std::string> pools_;   // Of nodes that are listed.
  std::string reason_;                         // Said last, without the times in it.
  std::map<std::string, double> prices_;       // Of pools, as their provider told.
  bool unpriced_ = false;                      // That one has none was told.
  bool ran_ = false;                           // The training was seen to run.
  bool made_ = false;                          // A node was made, or may have been.
  // Launches of which nothing was heard yet: nodes, by token.
  std::map<std::string, std::string> asked_;
  std::string trouble_;
};

}  // namespace troupe::daemons
