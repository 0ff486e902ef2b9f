// Progress: where a member is in the sequence of collectives of its epoch.
//
// A member that has run out of data has joined: it stands at a place of the sequence without an
// operation of its own. When another member is seen there, the coordinator tells it what the
// operation is, and it takes part without a share: zeros, no rows, nobody's root. When all members
// that still train have joined at one place, all are told, and go on.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::groups {

struct Progress {
  uint64_t sequence = 0;   // Of the last collective it began; 1 is the epoch's first, 0: none yet.
  uint64_t signature = 0;  // Hash of what every rank must agree on; 0: unknown, never compared.
  std::string operation;   // For people: all-reduce "grad.3" float32[1024] sum.
  bool partial = false;    // Only some ranks take part in `operation`; it comes after `sequence`.
  bool joined = false;
  // For a member that has joined: what it needs to take part (see AssistedOperation). Empty: this
  // operation cannot be done without everybody's share.
  std::string recipe = {};
  bool compares = false;  // The ranks tell each other what they call before they begin it.

  template <class A>
  void Fields(A& a) {
    a(sequence, signature, operation, partial, joined, recipe, compares);
  }
};

// The recipe of kAssist when everybody has joined: this, and the rank that came last.
inline constexpr const char* kAllJoined = "all joined";

}  // namespace troupe::groups
