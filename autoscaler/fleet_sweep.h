// FleetSweep: ends all nodes of a cluster, whoever has made them, and says when none is left.
//
// Invariants: FS-1 it is done only after two lists one after the other, `confirm` apart, in which
// there is none: what was made a moment ago may be listed late. FS-2 a node that stays is asked to
// end again, not more often than every `again`.
// Thread: one; the census is not waited for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/fleet_census.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

struct SweepOptions {
  Duration interval = seconds(1);  // Between two lists.
  Duration confirm = seconds(3);
  Duration again = seconds(10);
  std::function<void(const std::string& line)> say;
};

class FleetSweep {
 public:
  FleetSweep(FleetCensus* census, SweepOptions options)
      : census_(census), options_(std::move(options)) {}

  // Whoever owns the census steps it.
  void Step(Time now);
  [[nodiscard]] bool done() const { return done_; }
  // Of all lists.
  [[nodiscard]] size_t ended() const { return asked_.size() - left_.size(); }
  // What stands in the way of being done, for people.
  [[nodiscard]] std::string Left() const;

 private:
  void Listed(Time asked, const Result<std::vector<CensusNode>>& listed);

  FleetCensus* const census_;
  const SweepOptions options_;
  Time now_{};
  Time list_at_{};
  bool listing_ = false;
  std::optional<Time> none_since_;     // The first of the lists without any.
  std::map<std::string, Time> asked_;  // When to end, by id: the last time.
  std::vector<CensusNode> left_;
  std::string trouble_;
  bool swept_ = false;  // Nodes were ended before.
  bool done_ = false;
};

}  // namespace troupe
