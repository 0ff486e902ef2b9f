// The autoscaler's policy: how many nodes, from which pools, when; and why.
//
// A pure core: Decide() compares what is wanted with what is there and says what to do next. It is
// called on every tick and after every change, and asks for nothing twice: a launch carries a
// token, and a token that was handed out counts as capacity until it is listed, reported as failed,
// or overdue. A restarted policy adopts what the provider lists; its tokens start with a new
// prefix.
//
// Order of work: end what is overdue -> drain what has notice -> return from a fallback -> fill up
// to the target -> drain what is idle. Fill order: pool minima, on-demand base and share, then the
// cheapest pool by what a useful hour costs there (autoscaler/pool_record.h; recently preempted
// ones last; costs within kSameCost are the same, and then regions and zones that hold least come
// first). A pool that has refused is asked for one node before it is asked for more. If no spot
// pool can serve for `fallback_after`, on-demand serves instead. When spot can serve again, nodes
// are launched there beside on-demand ones beyond their share, beside spot ones that are
// kMoveSaves times as dear, and, from another pool, beside spot ones that may be taken back; those
// are drained as their replacements come up. Where `max_nodes` or
// the budget leave no room for both, an on-demand node goes first, unless that would leave fewer
// than `min_workers` up. What is missing above `min_workers` waits for company where joins are dear
// (autoscaler/join_window.h).
// Thread: one.
// Invariants: AP-1 pending, launching, up and draining nodes together never exceed `max_nodes` or
// the budget, and those that count as capacity, but for nodes that are being replaced, never hold
// more than `max_workers`, by a launch of this policy. AP-2 a pool whose launch failed gets no
// launch before its cool-down is over. AP-3 only a node that is idle for `idle_timeout`, has a
// notice, is overdue, stands for a price that has risen over the budget, or, while the fleet is
// whole, is on-demand beyond its share or has a spot node beside it that is cheaper, or safer if it
// may be taken back, and idles or is beyond `max_workers`, is drained or ended. AP-4 no token is
// used twice. AP-5 by a launch of this policy no zone holds more spot workers than its share, but
// for those that are being replaced, unless fewer than `min_workers` are there. AP-6 a fleet that
// is whole on its share of markets is left alone while nothing changes. AP-7 a node that does not
// come up, or has drained, is ended.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "autoscaler/join_window.h"
#include "autoscaler/plan.h"
#include "autoscaler/pool_record.h"

namespace troupe {

inline constexpr double kSameCost = 1.02;
inline constexpr double kMoveSaves = 1.1;  // So many times as dear a spot node is moved.
// Of the target: so many workers of nodes that may be taken back are replaced at a time.
inline constexpr double kBesideAtRisk = 0.25;

class AutoscalerPolicy {
 public:
  AutoscalerPolicy(FleetLimits limits, std::string token_prefix);

  // `fleet` is everything that exists or is being made, whoever made it.
  Decision Decide(Time now, const Demand& demand, const std::vector<FleetNode>& fleet);
  // Who supplies has room again: no pool is left alone any longer.
  void RoomAppeared();
  // A node of that pool costs so many dollars an hour from now on.
  void PriceIs(const std::string& pool, double per_hour);
  // The provider refused the launch, or its node has ended before it was up; `retriable` false (bad
  // configuration, no permission) means the longest cool-down.
  void LaunchFailed(Time now, const std::string& token, const std::string& why, bool retriable);
  [[nodiscard]] const FleetLimits& limits() const { return limits_; }

 private:
  struct Pending {
    std::string pool;
    Time since;
  };
  struct Known {
    std::string pool;
    std::string token;
    bool launching = false;
    Time since;
  };
  struct Tally;  // autoscaler/internal/policy_tally.h
  using PoolRank = std::tuple<bool, bool, bool, long, int, int, double, double, int>;

  void Observe(Time now, const std::vector<FleetNode>& fleet);
  void CoolDown(Time now, const std::string& pool, const std::string& why, bool retriable);
  void EndOverdue(Time now, const std::vector<FleetNode>& fleet, Tally& tally, Decision& decision);
  void DrainNoticed(Time now, const std::vector<FleetNode>& fleet, Decision& decision);
  // Where prices have risen: the dearest nodes, until what stays costs no more than the budget, or
  // is down to `min_workers`. True if any: what to do with the rest can be told when they are gone.
  bool DrainOverBudget(Time now, const std::vector<FleetNode>& fleet, Tally& tally,
                       Decision& decision);
  // True while spot nodes are launched ahead of the on-demand nodes that they will replace.
  bool ReturnToSpot(Time now, const std::vector<FleetNode>& fleet, Tally& tally,
                    Decision& decision);
  const PoolLimits* SpotToReturnTo(Time now, const Tally& tally, Decision& decision) const;
  [[nodiscard]] std::vector<double> Arrived(const std::vector<FleetNode>& fleet,
                                            const Tally& tally) const;
  [[nodiscard]] std::vector<const FleetNode*> DearSpot(Time now,
                                                       const std::vector<FleetNode>& fleet,
                                                       const Tally& tally,
                                                       Decision& decision) const;
  [[nodiscard]] bool IsAtRisk(const FleetNode& node) const;
  [[nodiscard]] std::vector<const FleetNode*> AtRisk(const std::vector<FleetNode>& fleet,
                                                     const Tally& tally) const;
  void DrainReplaced(Time now, const std::vector<FleetNode>& fleet,
                     std::vector<const FleetNode*>& nodes, Tally& tally, Decision& decision);
  void MakeRoom(Time now, const FleetNode& node, const Tally& beside, Tally& tally,
                Decision& decision);
  void DrainSurplus(Time now, const FleetNode& node, const std::string& why, Tally& tally,
                    Decision& decision);
  void StartLaunch(Time now, const PoolLimits& pool, const std::string& why, Tally& tally,
                   Decision& decision);
  [[nodiscard]] int OnDemandWanted(int target) const;
  [[nodiscard]] std::vector<const FleetNode*> BeyondShare(int target,
                                                          const std::vector<FleetNode>& fleet,
                                                          const Tally& tally) const;
  [[nodiscard]] bool HasSpot() const;
  [[nodiscard]] int ZoneCap(int target) const;
  [[nodiscard]] double CostOf(const PoolLimits& pool) const;
  [[nodiscard]] std::string FiguresOf(const PoolLimits& pool) const;
  [[nodiscard]] PoolRank RankOf(Time now, const PoolLimits& pool, const Tally& tally,
                                bool needs_on_demand) const;
  void Fill(Time now, int target, Tally& tally, Decision& decision);
  void DrainIdle(Time now, int target, const std::vector<FleetNode>& fleet, Tally& tally,
                 Decision& decision);
  const PoolLimits* Choose(Time now, int target, const Tally& tally, std::string& why,
                           std::vector<std::string>& obstacles, Decision& decision) const;
  std::optional<std::string> ObstacleOf(Time now, const PoolLimits& pool, const Tally& tally,
                                        Decision& decision) const;
  [[nodiscard]] const PoolLimits* PoolOf(const std::string& name) const;
  [[nodiscard]] Tally TallyOf(int target, const std::vector<FleetNode>& fleet) const;

  FleetLimits limits_;
  const std::string token_prefix_;
  uint64_t next_token_ = 1;
  std::map<std::string, Pending> pending_;  // By token.
  std::map<std::string, PoolRecord> pools_;
  std::map<std::string, Known> known_;  // By id: seen last, staying, and not ended by us.
  std::set<std::string> leaving_;       // Nodes at risk that somebody was launched ahead of.
  std::set<std::string> ended_;         // Launching nodes that were given up and are still listed.
  JoinWindow joins_;
  std::optional<Time> short_since_;  // Since when no spot pool could serve.
};

}  // namespace troupe
