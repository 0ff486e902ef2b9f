#include "collective_groups/membership/pair_faults.h"

#include <algorithm>

namespace troupe::groups {

void PairFaults::Connected(const View& view) {
  std::erase_if(faults_, [&](const auto& entry) {
    return RankOf(view, entry.first.first) >= 0 && RankOf(view, entry.first.second) >= 0;
  });
}

void PairFaults::Forget(const MemberId& id) {
  std::erase_if(faults_, [&](const auto& entry) {
    return entry.first.first == id || entry.first.second == id;
  });
}

bool PairFaults::Faulty(const MemberId& a, const MemberId& b, int limit) const {
  const auto it = faults_.find(Key(a, b));
  return it != faults_.end() && it->second >= limit;
}

std::vector<MemberId> PairFaults::FaultyWith(const MemberId& id,
                                             const std::vector<MemberId>& members) const {
  std::vector<MemberId> faulty;
  for (const MemberId& other : members) {
    if (Faulty(id, other, 1)) faulty.push_back(other);
  }
  return faulty;
}

// Veterans are judged among themselves first: a joiner says nothing about one of them.
std::vector<MemberId> PairFaults::LeftOut(std::vector<Candidate> members, int limit) const {
  std::stable_sort(members.begin(), members.end(), [](const Candidate& a, const Candidate& b) {
    const auto key = [](const Candidate& c) { return c.veteran ? 0 : c.newest ? 1 : 2; };
    return key(a) < key(b);
  });
  const auto joiners =
      std::find_if(members.begin(), members.end(), [](const Candidate& c) { return !c.veteran; });
  std::vector<Candidate> kept(members.begin(), joiners);
  std::vector<MemberId> out;
  for (;;) {
    const auto holders =
        std::count_if(kept.begin(), kept.end(), [](const Candidate& c) { return c.newest; });
    auto worst = kept.end();
    size_t most = 1;
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      size_t faulty = 0;
      for (const Candidate& other : kept) {
        // One that fails by itself is at fault in all its pairs.
        if (Faulty(it->id, other.id, limit)) faulty += it->id == other.id ? kept.size() : 1;
      }
      const bool last_holder = it->newest && holders == 1;
      if (faulty < most || last_holder) continue;
      most = faulty;
      worst = it;  // Of equals the youngest.
    }
    if (worst == kept.end()) break;
    out.push_back(worst->id);
    kept.erase(worst);
  }
  // Each joiner then, as far as it can reach all that stay.
  for (auto it = joiners; it != members.end(); ++it) {
    const bool reaches = std::none_of(kept.begin(), kept.end(), [&](const Candidate& other) {
      return Faulty(it->id, other.id, limit);
    });
    if (reaches && !Faulty(it->id, it->id, limit)) {
      kept.push_back(*it);
    } else {
      out.push_back(it->id);
    }
  }
  return out;
}

}  // namespace troupe::groups
