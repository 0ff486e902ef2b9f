// Team: the ranks of a view that take part in a collective; by default all of them.
//
// A member takes part in one operation at a time, and all members of a team issue its operations in
// the same order. A team keeps its identity over epochs while its ranks follow its members.
// Thread: plain values.
// Limits: kTeamsMax - 1 teams in a group, the whole view (team 0) included.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::groups {

inline constexpr uint32_t kTeamsMax = 32;

struct Team {
  uint32_t id = 0;
  std::vector<int> ranks;  // Of the view, ascending.
  int me = -1;             // Position of this member in `ranks`; -1: not in the team.

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
};

}  // namespace troupe::groups
