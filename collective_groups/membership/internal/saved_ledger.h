// What a SampleLedger is saved as.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe::groups {

inline constexpr uint8_t kLedgerType = 20;

struct SavedLedger {
  uint64_t samples = 0;
  uint64_t data_epoch = 0;
  uint64_t frontier = 0;
  bool has_step = false;
  uint64_t last_step = 0;
  std::vector<uint64_t> holes;  // Begin, end, begin, end, ...

  template <class A>
  void Fields(A& a) {
    a(samples, data_epoch, frontier, has_step, last_step, holes);
  }
};

}  // namespace troupe::groups
