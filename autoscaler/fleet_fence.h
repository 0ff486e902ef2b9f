// FleetFence: of two autoscalers that hold a cluster of one name, one gives way, wherever they run.
//
//   wait: others' nodes are there, launch nothing --they are gone--> go
//     +---they stay longer than nodes of a cluster that is gone can---> yield
//
// Nodes of a life that is over are waited for, too: they have what the new ones want. Those that do
// not end are no reason to give way.
// Invariants: FF-1 nobody launches before a list has shown no node of another life that may be
// held, nor one of a life that is over and can be ended. FF-2 of two that have launched, the one
// that began later launches no more, and gives way if the nodes of the other one stay. FF-3 nodes
// of a life that is known to be over are ended, others' never.
// Pure. Thread: one.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/fleet_census.h"
#include "runtime/clock.h"

namespace troupe {

struct FenceOptions {
  std::string life;            // Ours.
  std::set<std::string> over;  // Those whose process is known to have ended.
  bool take_over = false;      // All others are over: the user says so.
  // As long as nodes can live after their cluster is gone.
  Duration patience = seconds(360);
};

enum class FenceVerdict { kWait, kGo, kYield };

class FleetFence {
 public:
  explicit FleetFence(FenceOptions options) : options_(std::move(options)) {}

  // Takes what a census has listed.
  void Take(Time now, const std::vector<CensusNode>& listed);
  [[nodiscard]] FenceVerdict verdict(Time now) const;
  // To be ended, as of the last list.
  [[nodiscard]] const std::vector<CensusNode>& to_end() const { return to_end_; }
  // Of others, who may hold them.
  [[nodiscard]] const std::vector<CensusNode>& held() const { return held_; }
  // When those that are waited for are waited for no longer.
  [[nodiscard]] Time until() const { return since_.value_or(Time{}) + options_.patience; }

 private:
  const FenceOptions options_;
  bool listed_ = false;
  bool went_ = false;          // A list has let us go before.
  std::optional<Time> since_;  // Others' nodes have been there.
  std::vector<CensusNode> held_;
  std::vector<CensusNode> to_end_;
};

}  // namespace troupe
