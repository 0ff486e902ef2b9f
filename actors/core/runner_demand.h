// Demand for runners: how many more processes are worth their start, for the tasks that wait.
// Thread: any; pure.
#pragma once

#include <cstddef>

#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr size_t kRunnersMax = 256;
inline constexpr size_t kRunnersComing = 16;
inline constexpr size_t kRunnersFirst = 2;
inline constexpr Duration kRunnerCost = milliseconds(15);  // Of CPU, to start one.

struct RunnerDemand {
  size_t waiting = 0;  // Tasks.
  Duration work{};     // What those take together, by what tasks of their codes took.
  bool known = true;   // Of all of them that is known.
  size_t runners = 0;  // All there are, those included that are coming.
  size_t moving = 0;   // That are alive, and free, or busy for no longer than is typical.
  size_t coming = 0;   // That have been asked for and are not there.
  size_t failed = 0;   // That could not be started, for which none is asked for again yet.
};

// How many more to ask for. While nothing is known of the tasks, or no runner moves, one for each
// task; else as many as let what waits be done sooner by more than kRunnerCost each. At once no
// more than live already, but for kRunnersFirst, and kRunnersComing at most: by the time that they
// are there, more is known.
[[nodiscard]] size_t MoreRunners(const RunnerDemand& demand);

}  // namespace troupe::actors
