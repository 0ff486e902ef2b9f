// The page that members and the driver of the recovery benchmark share: when each rank of each
// epoch had its first all-reduces, and whether any sum was ever wrong.
#pragma once

#include <atomic>
#include <cstdint>

namespace troupe::benchmarks {

inline constexpr int kEpochsKept = 8192;
inline constexpr int kRanksMax = 64;

struct EpochMarks {
  std::atomic<int64_t> first_ns[kRanksMax];  // First all-reduce, one float; CLOCK_MONOTONIC.
  std::atomic<int64_t> whole_ns[kRanksMax];  // First all-reduce of the full size; 0: not yet.
  std::atomic<int64_t> pause_ns[kRanksMax];  // How long the member stood still for this epoch.
  std::atomic<int> size;
};
struct Page {
  std::atomic<uint64_t> wrong_sums;
  std::atomic<uint64_t> newest_epoch;
  std::atomic<bool> stop;
  EpochMarks epochs[kEpochsKept];
};

// Body of a member process: all-reduces `floats` floats in a loop until `page->stop`.
int RunMember();

}  // namespace troupe::benchmarks
