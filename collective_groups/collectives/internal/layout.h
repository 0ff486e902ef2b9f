// How a team lies on hosts, and which way its operations therefore take.
//
// Members that share memory are one host. An operation of a team on several hosts with several
// members each has two levels: the members of a host combine what they have, then the owners of
// one part on all hosts combine that, over links between hosts.
// Thread: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "collective_groups/collectives/team.h"
#include "collective_groups/membership/view.h"

namespace troupe::groups {

enum class Way : uint8_t {
  kAlone,   // One member.
  kMemory,  // All on this host.
  kLinks,   // Each on its own host.
  kLevels,  // Both.
};

struct TeamLayout {
  Way way = Way::kAlone;
  std::vector<std::vector<int>> hosts;  // Positions in the team, by host, ascending.
  int host = 0;                         // This member's,
  int place = 0;                        // and its position among the members of its host.
  int owners = 1;                       // Parts of a result that are combined between hosts.
  Team peers;                           // Ranks with this member's place on all hosts.
};

// `team` contains this member.
[[nodiscard]] inline TeamLayout LayOut(const View& view, const Team& team) {
  TeamLayout layout;
  const auto memory = [&](int position) -> const std::string& {
    return view.members[team.ranks[position]].memory;
  };
  for (int i = 0; i < team.size(); ++i) {
    size_t host = 0;
    while (host < layout.hosts.size() &&
           (memory(i).empty() || memory(layout.hosts[host].front()) != memory(i))) {
      ++host;
    }
    if (host == layout.hosts.size()) layout.hosts.emplace_back();
    if (i == team.me) {
      layout.host = static_cast<int>(host);
      layout.place = static_cast<int>(layout.hosts[host].size());
    }
    layout.hosts[host].push_back(i);
  }
  size_t smallest = layout.hosts.front().size();
  size_t largest = smallest;
  for (const auto& host : layout.hosts) {
    smallest = std::min(smallest, host.size());
    largest = std::max(largest, host.size());
  }
  layout.owners = static_cast<int>(smallest);
  if (team.size() == 1) {
    layout.way = Way::kAlone;
  } else if (layout.hosts.size() == 1) {
    layout.way = Way::kMemory;
  } else {
    layout.way = largest == 1 ? Way::kLinks : Way::kLevels;
  }
  layout.peers.id = team.id;
  layout.peers.me = layout.host;
  if (layout.place < layout.owners) {
    for (const auto& host : layout.hosts) {
      layout.peers.ranks.push_back(team.ranks[host[layout.place]]);
    }
  }
  return layout;
}

}  // namespace troupe::groups
