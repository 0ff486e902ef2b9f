// How much a training gets done with the nodes that it has: nothing with fewer than min_workers,
// nothing while its group is rebuilt after a change of members, and otherwise as much as its
// workers scale.
//
// Thread: one. A pure core: the caller hands in the time.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe::simulator {

struct TrainingModel {
  int min_workers = 1;
  int max_workers = 1;
  Duration rebuild = seconds(5);     // All members stand still after a change.
  Duration lost = Duration::zero();  // Done again after a member is lost without notice.
  double scaling_loss = 0;           // n workers do the work of n / (1 + scaling_loss * (n - 1)).

  // In workers.
  [[nodiscard]] double UsefulOf(int workers) const;
};

class SimulatedTraining {
 public:
  struct Node {
    std::string id;
    int workers = 1;
  };

  explicit SimulatedTraining(const TrainingModel& model) : model_(model) {}

  // The nodes that are up and not draining, in the order in which they came; those beyond
  // max_workers stay idle. `abrupt`: a member was taken away without notice.
  void Members(Time now, const std::vector<Node>& nodes, bool abrupt);
  [[nodiscard]] bool IsMember(const std::string& id) const { return members_.contains(id); }
  [[nodiscard]] int workers() const { return workers_; }
  // Worker-seconds of useful work in that time, without a change of members in between.
  [[nodiscard]] double Useful(Time from, Time to) const;

 private:
  const TrainingModel model_;
  std::set<std::string> members_;
  int workers_ = 0;
  Time stands_until_;
};

}  // namespace troupe::simulator
