// The training side of the C++ digits example: what one member of the group does.
#pragma once

#include <atomic>
#include <string>

#include "collective_groups/membership/group_agent.h"
#include "runtime/result.h"

namespace cpp_digits {

struct Plan {
  std::string data;     // The file that scripts/export_digits.py writes.
  int64_t epochs = 20;  // Data epochs, at least.
  // Goes on until this file exists; "-": does not wait for one.
  std::string finish_file = "-";

  template <class A>
  void Fields(A& a) {
    a(data, epochs, finish_file);
  }
};

// How far it is, for other threads.
struct Progress {
  std::atomic<int64_t> epochs = 0;  // Data epochs done.
  std::atomic<int> size = 0;        // Members of the group.
  std::atomic<int> rank = -1;
};

// Trains in the group. The value is a line for the driver:
//   accuracy=0.97 steps=980 epochs=20 missing=0 doubled=0 parameters=1a2b...
// `missing` and `doubled` are samples that were not counted exactly once in every data epoch.
// kDrained: this member was asked to leave.
troupe::Result<std::string> Train(troupe::groups::GroupAgent& group, const Plan& plan,
                                  Progress& progress);

}  // namespace cpp_digits
