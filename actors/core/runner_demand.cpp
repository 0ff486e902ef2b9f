#include "actors/core/runner_demand.h"

#include <algorithm>

namespace troupe::actors {

size_t MoreRunners(const RunnerDemand& demand) {
  const size_t alive = demand.runners - std::min(demand.runners, demand.coming);
  const size_t most = std::min(demand.waiting, std::clamp(alive, kRunnersFirst, kRunnersComing));
  const size_t room = kRunnersMax - std::min(kRunnersMax, demand.runners);
  size_t more = 0;
  while (more < room && demand.coming + demand.failed + more < most) {
    const auto there = static_cast<int64_t>(demand.moving + demand.coming + more);
    const bool counts = demand.known && demand.moving > 0;
    if (counts && demand.work / (there * (there + 1)) < kRunnerCost) break;
    ++more;
  }
  return more;
}

}  // namespace troupe::actors
