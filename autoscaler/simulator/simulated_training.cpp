#include "autoscaler/simulator/simulated_training.h"

#include <algorithm>
#include <utility>

namespace troupe::simulator {

double TrainingModel::UsefulOf(int workers) const {
  return workers / (1 + scaling_loss * std::max(0, workers - 1));
}

void SimulatedTraining::Members(Time now, const std::vector<Node>& nodes, bool abrupt) {
  std::set<std::string> members;
  int workers = 0;
  for (const Node& node : nodes) {
    if (workers + node.workers > model_.max_workers) continue;
    workers += node.workers;
    members.insert(node.id);
  }
  if (members == members_) return;
  members_ = std::move(members);
  workers_ = workers;
  stands_until_ =
      std::max(stands_until_, now + model_.rebuild) + (abrupt ? model_.lost : Duration::zero());
}

double SimulatedTraining::Useful(Time from, Time to) const {
  if (workers_ < model_.min_workers) return 0;
  const Time begin = std::max(from, stands_until_);
  return begin < to ? model_.UsefulOf(workers_) * ToSeconds(to - begin) : 0;
}

}  // namespace troupe::simulator
