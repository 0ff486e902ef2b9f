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
// cheapest pool (recently preempted ones last, ties by fewest nodes). If no spot pool can serve for
// `fallback_after`, on-demand serves instead. When spot can serve again, one node at a time is
// launched there and then an on-demand node beyond its share is drained; where `max_workers` or the
// budget leave no room for both, the drain comes first, unless that would leave fewer than
// `min_workers` up.
// Thread: one.
// Invariants: AP-1 pending, launching, up and draining nodes together never exceed `max_nodes`, and
// those that count as capacity never hold more than `max_workers`, by a launch of this policy. AP-2
// a pool whose launch failed gets no launch before its cool-down is over. AP-3 only a node that is
// idle for `idle_timeout`, has a notice, is overdue, or is on-demand beyond its share while the
// fleet is whole is drained or ended. AP-4 no token is used twice.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/plan.h"

namespace troupe {

class AutoscalerPolicy {
 public:
  AutoscalerPolicy(FleetLimits limits, std::string token_prefix);

  // `fleet` is everything that exists or is being made, whoever made it.
  Decision Decide(Time now, const Demand& demand, const std::vector<FleetNode>& fleet);
  // The provider refused the launch; `retriable` false (bad configuration, no permission) means the
  // longest cool-down.
  // Who supplies has room again: no pool is left alone any longer.
  void RoomAppeared();
  void LaunchFailed(Time now, const std::string& token, const std::string& why, bool retriable);
  [[nodiscard]] const FleetLimits& limits() const { return limits_; }

 private:
  struct Pending {
    std::string pool;
    Time since;
  };
  struct PoolState {
    Time cool_until;  // No launch before.
    Duration last_cooldown = Duration::zero();
    std::string failure;
    Time preempted_at;
    bool preempted = false;
  };
  struct Known {
    std::string pool;
    std::string token;
    bool launching = false;
  };
  struct Tally;

  void Observe(Time now, const std::vector<FleetNode>& fleet);
  void CoolDown(Time now, const std::string& pool, const std::string& why, bool retriable);
  void EndOverdue(Time now, const std::vector<FleetNode>& fleet, Tally& tally, Decision& decision);
  void DrainNoticed(Time now, const std::vector<FleetNode>& fleet, Decision& decision);
  // True while a spot node is launched ahead of the on-demand node that it will replace.
  bool ReturnToSpot(Time now, int target, const std::vector<FleetNode>& fleet, Tally& tally,
                    Decision& decision);
  void StartLaunch(Time now, const PoolLimits& pool, const std::string& why, Tally& tally,
                   Decision& decision);
  [[nodiscard]] int OnDemandWanted(int target) const;
  [[nodiscard]] const FleetNode* BeyondShare(int target, const std::vector<FleetNode>& fleet,
                                             const Tally& tally) const;
  void Fill(Time now, int target, Tally& tally, Decision& decision);
  void DrainIdle(Time now, int target, const std::vector<FleetNode>& fleet, Tally& tally,
                 Decision& decision);
  const PoolLimits* Choose(Time now, int target, const Tally& tally, std::string& why,
                           std::vector<std::string>& obstacles, Decision& decision) const;
  std::optional<std::string> ObstacleOf(Time now, const PoolLimits& pool, const Tally& tally,
                                        Decision& decision) const;
  [[nodiscard]] const PoolLimits* PoolOf(const std::string& name) const;
  [[nodiscard]] Tally TallyOf(const std::vector<FleetNode>& fleet) const;

  const FleetLimits limits_;
  const std::string token_prefix_;
  uint64_t next_token_ = 1;
  std::map<std::string, Pending> pending_;  // By token.
  std::map<std::string, PoolState> pools_;
  std::map<std::string, Known> known_;  // By id: seen last, staying, and not ended by us.
  std::set<std::string> ended_;         // Launching nodes that were given up and are still listed.
  std::optional<Time> short_since_;     // Since when no spot pool could serve.
};

}  // namespace troupe
