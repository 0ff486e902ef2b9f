// A scripted spot market: when capacity arrives, when nodes get notice, when they are killed
// without one.
//
// A pool that an `add` event names offers nothing at first and as much as was added afterwards;
// each node that is taken by a notice or a kill takes its place in the offer with it. Pools that no
// `add` names are not limited by the script.
// Thread: one. A pure core: the caller hands in the time since the start.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe {

struct SpotEvent {
  enum class Kind : uint8_t { kAdd, kNotice, kKill };

  Duration at = Duration::zero();  // Since the start of the cluster,
  bool after_running = false;      // or since the training first ran.
  Kind kind = Kind::kAdd;
  std::string pool;  // Of the capacity, or of the node.
  int count = 0;     // kAdd: nodes.
  std::string node;  // kNotice, kKill: "spot-2" is the second node launched in pool "spot".
  Duration lead = Duration::zero();  // kNotice: from the notice to the end of the node.
};

class SpotSchedule {
 public:
  explicit SpotSchedule(std::vector<SpotEvent> events = {});

  // The training runs, for the first time: events that count from there have a time now.
  void TrainingRuns(Duration since_start);
  // The events due by now that were not returned before, in the order of time, then of the list.
  std::vector<SpotEvent> TakeDue(Duration since_start);
  // When the next event is due; nullopt when none is left, or only such as wait for the training.
  [[nodiscard]] std::optional<Duration> next() const;
  // How many nodes the pool offers in all, by the events taken so far; nullopt: no limit.
  [[nodiscard]] std::optional<int> OfferOf(const std::string& pool) const;

 private:
  void Sort();

  std::vector<SpotEvent> events_;   // By time; the first `taken_` are over.
  std::vector<SpotEvent> waiting_;  // For the training to run.
  size_t taken_ = 0;
  std::map<std::string, int> offers_;
};

}  // namespace troupe
