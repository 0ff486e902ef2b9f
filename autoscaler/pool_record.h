// What has been learnt about a pool from what happened there: how often its nodes are taken back,
// whether launches succeed, how long nodes need to come up, how long it stays without capacity.
//
// Counts fade with half-lives of hours, so that old times matter less. A pool that refuses is left
// alone for `cooldown`, then twice that, up to `cooldown_max`, and not for longer than a part of
// its usual outage, once that is known: else most of the time after an outage would be missed.
// Launches that fail together count once.
// Thread: one. A pure core: the caller hands in the time.
#pragma once

#include <optional>
#include <string>

#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kHazardHalfLife = seconds(24 * 3600);
// Before anything happened: one preemption in so many hours of a node.
inline constexpr double kHazardPriorHours = 10;
// How often a pool without capacity is asked in an outage of its usual length, at least.
inline constexpr int kProbesPerOutage = 128;

class PoolRecord {
 public:
  // A launch failed, or its node never came up. `retriable` false: the longest cool-down.
  void Failed(Time now, const std::string& why, bool retriable, Duration cooldown,
              Duration cooldown_max);
  // A launch has made a node.
  void Granted(Time now, Duration cooldown);
  // It may be asked again at once.
  void RoomAppeared();
  // A node is up, since then; it took `boot`.
  void Serves(Time since);
  void Booted(Duration boot);
  void Preempted(Time now, int nodes);
  // Some of its nodes may be taken back. The pool is left alone as after a preemption, which is not
  // counted.
  void AtRisk(Time now) { preempted_at_ = now; }
  // So many nodes are held from here on.
  void Held(Time now, int nodes);

  [[nodiscard]] Time cool_until() const { return cool_until_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  // Launches have failed, and none succeeded since.
  [[nodiscard]] bool failing() const { return failing_; }
  // It has given a node since it last refused.
  [[nodiscard]] bool proven() const { return proven_; }
  [[nodiscard]] std::optional<Time> preempted_at() const { return preempted_at_; }
  // Preemptions per node and hour.
  [[nodiscard]] double Hazard() const {
    return (preemptions_ + 1) / (node_hours_ + kHazardPriorHours);
  }
  // Of launches, by the last ones; those that fail together count once.
  [[nodiscard]] double SuccessRate() const { return success_rate_; }
  [[nodiscard]] Duration BootTime() const { return boot_; }

 private:
  void Fade(Time now);

  Time cool_until_;
  Duration last_cooldown_ = Duration::zero();
  std::string failure_;
  bool failing_ = false;
  bool proven_ = false;
  std::optional<Time> out_since_;
  Duration usual_outage_ = Duration::zero();  // Zero: not known.
  std::optional<Time> preempted_at_;
  double preemptions_ = 0;  // Faded.
  double node_hours_ = 0;   // Faded.
  Time faded_at_;
  int held_ = 0;
  double success_rate_ = 1;
  Duration boot_ = seconds(60);
};

}  // namespace troupe
