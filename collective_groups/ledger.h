// SampleLedger: which samples of a data epoch are done, which are being worked on. A pure state
// machine.
//
// Samples are positions of a seeded permutation. A step leases consecutive ranges, one per rank,
// right after the committed prefix; committing the step moves the prefix over them, voiding it
// gives them back. The ledger is part of the replicated state, so after any membership change
// everybody continues exactly after the committed samples.
// Thread: owner only.
// Invariants: GM-9: per data epoch every sample is counted in exactly one committed step.
// Limits: one outstanding lease (steps of data-parallel training are sequential).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/result.h"

namespace troupe::groups {

class SampleLedger {
 public:
  using Range = std::pair<uint64_t, uint64_t>;  // [begin, end) positions of the permutation.

  explicit SampleLedger(uint64_t samples = 0) : samples_(samples) {}

  // Starts a data epoch: nothing committed, nothing leased.
  void BeginEpoch(uint64_t data_epoch);
  // Ranges for ranks 0.. of the given sizes. A new lease of the same or a later step replaces the
  // old one. kInvalidArgument if more is asked for than remains, or `step` is older than the last
  // committed one.
  Result<std::vector<Range>> Lease(uint64_t step, const std::vector<uint64_t>& sizes);
  // kInvalidArgument if `step` is not the leased one.
  Status Commit(uint64_t step);
  // Gives the lease of `step` back; voiding a step that is not leased does nothing.
  void Void(uint64_t step);

  [[nodiscard]] uint64_t data_epoch() const { return data_epoch_; }
  [[nodiscard]] uint64_t samples() const { return samples_; }
  [[nodiscard]] uint64_t committed() const { return committed_; }
  [[nodiscard]] uint64_t remaining() const { return samples_ - committed_; }

  // The committed part (a lease belongs to a step in progress and is not state).
  [[nodiscard]] std::string Save() const;
  // kCorrupt if the bytes are not a ledger's or disagree with themselves.
  Status Load(const std::string& bytes);

 private:
  struct LeaseState {
    uint64_t step = 0;
    uint64_t end = 0;
  };
  uint64_t samples_ = 0;
  uint64_t data_epoch_ = 0;
  uint64_t committed_ = 0;
  std::optional<uint64_t> last_step_;
  std::optional<LeaseState> lease_;
};

}  // namespace troupe::groups
