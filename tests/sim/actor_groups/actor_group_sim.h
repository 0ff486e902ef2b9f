// A group of actors through random lives of its members, requests, repeats and restarts of its
// head: what it promises (AG-1 to AG-5, AG-7) is looked at after every event.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::daemons::sim {

// `of_run`: it is that of the workers of a run. Empty: all was kept; else what was not.
[[nodiscard]] std::string RunActorGroupSim(uint64_t seed, bool of_run);

}  // namespace troupe::daemons::sim
