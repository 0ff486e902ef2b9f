#include "collective_groups/membership/view.h"

#include <algorithm>
#include <charconv>

namespace troupe::groups {

std::optional<MemberId> MemberId::Parse(const std::string& text) {
  const size_t mark = text.rfind('#');
  if (mark == std::string::npos || mark == 0) return std::nullopt;
  MemberId id{text.substr(0, mark), 0};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + mark + 1, end, id.incarnation);
  if (error != std::errc() || stop != end) return std::nullopt;
  return id;
}

int RankOf(const View& view, const MemberId& id) {
  for (size_t i = 0; i < view.members.size(); ++i) {
    if (view.members[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

int SourceRank(const View& view) {
  int best = -1;
  for (size_t i = 0; i < view.members.size(); ++i) {
    const ViewMember& m = view.members[i];
    if (m.has_state && (best < 0 || m.version > view.members[best].version))
      best = static_cast<int>(i);
  }
  return std::max(best, 0);
}

std::vector<int> RanksWithoutState(const View& view) {
  std::vector<int> ranks;
  const int source = SourceRank(view);
  for (size_t i = 0; i < view.members.size(); ++i) {
    const ViewMember& m = view.members[i];
    const bool newest = m.has_state && m.version == view.members[source].version;
    if (static_cast<int>(i) != source && !newest) ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

Topology TopologyOf(const View& view, const MemberId& id) {
  Topology t;
  t.rank = RankOf(view, id);
  t.size = static_cast<int>(view.members.size());
  if (t.rank < 0) return t;
  const std::string& host = view.members[t.rank].host;
  std::vector<std::string> hosts;
  for (int i = 0; i < t.size; ++i) {
    const std::string& other = view.members[i].host;
    if (other == host) {
      if (i < t.rank) ++t.local_rank;
      ++t.local_size;
    }
    if (std::find(hosts.begin(), hosts.end(), other) == hosts.end()) hosts.push_back(other);
  }
  for (const std::string& other : hosts) {
    const auto on_host = std::count_if(view.members.begin(), view.members.end(),
                                       [&](const ViewMember& m) { return m.host == other; });
    if (on_host <= t.local_rank) continue;
    if (other == host) t.cross_rank = t.cross_size;
    ++t.cross_size;
  }
  return t;
}

}  // namespace troupe::groups
