// PairFaults: which members cannot reach each other, and who is left out for it.
//
// Every attempt to connect two members that fails counts against the pair, until both are in an
// active epoch together. A pair that has failed often enough cannot be in one epoch: one of the two
// is left out. Among those that were members before, the one with the most faulty pairs goes, the
// youngest of equals; a joiner goes before any of them. The last holder of the newest state stays.
// Thread: owner only. Pure: same calls, same answers.
// Limits: two members per entry; entries of members that are gone are forgotten by their owner.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/membership/view.h"

namespace troupe::groups {

class PairFaults {
 public:
  struct Candidate {
    MemberId id;
    bool veteran = false;  // It was in the epoch before.
    bool newest = false;   // It holds the newest state.
  };

  // One attempt to connect the two has failed; a == b: a member that failed by itself.
  void Failed(const MemberId& a, const MemberId& b) { ++faults_[Key(a, b)]; }
  // These are in one active epoch: all pairs of them work.
  void Connected(const View& view);
  void Forget(const MemberId& id);

  // Who must stay out so that no pair of the others has failed `limit` times or more. `members`
  // are ordered from the oldest to the youngest.
  [[nodiscard]] std::vector<MemberId> LeftOut(std::vector<Candidate> members, int limit) const;
  // Whom of `members` this one has failed to reach.
  [[nodiscard]] std::vector<MemberId> FaultyWith(const MemberId& id,
                                                 const std::vector<MemberId>& members) const;

 private:
  using Pair = std::pair<MemberId, MemberId>;  // The smaller first.
  static Pair Key(const MemberId& a, const MemberId& b) { return a < b ? Pair{a, b} : Pair{b, a}; }
  [[nodiscard]] bool Faulty(const MemberId& a, const MemberId& b, int limit) const;

  std::map<Pair, int> faults_;
};

}  // namespace troupe::groups
