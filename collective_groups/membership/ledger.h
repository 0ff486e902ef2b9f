// SampleLedger: which samples of a data epoch are done, which are being worked on. A pure state
// machine.
//
// Samples are positions of a seeded permutation. A step leases from the pool of those that are not
// committed, in order, a share per rank; committing the step takes them out of the pool, voiding it
// leaves them there. A step whose result lacks some ranks' samples, because they died in it, gives
// those back as it commits: they are holes in the committed prefix, and leased before all others.
// The ledger is part of the replicated state, so after any membership change everybody continues
// with the same pool.
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
  using Share = std::vector<Range>;             // Ascending; one range unless there are holes.

  explicit SampleLedger(uint64_t samples = 0) : samples_(samples) {}

  // Starts a data epoch: nothing committed, nothing leased.
  void BeginEpoch(uint64_t data_epoch);
  // Shares for ranks 0.. of the given sizes. A new lease of the same or a later step replaces the
  // old one. kInvalidArgument if more is asked for than remains, or `step` is older than the last
  // committed one.
  Result<std::vector<Share>> Lease(uint64_t step, const std::vector<uint64_t>& sizes);
  // Commits what was leased but for `returned`, ranges of the lease that do not overlap.
  // kInvalidArgument, and nothing is committed, if `step` is not the leased one or a range is not
  // part of it.
  Status Commit(uint64_t step, Share returned = {});
  // Gives the lease of `step` back; voiding a step that is not leased does nothing.
  void Void(uint64_t step);

  [[nodiscard]] uint64_t data_epoch() const { return data_epoch_; }
  [[nodiscard]] uint64_t samples() const { return samples_; }
  [[nodiscard]] uint64_t committed() const { return samples_ - remaining(); }  // How many.
  [[nodiscard]] uint64_t remaining() const;
  // What is not committed, in the order in which it will be leased.
  [[nodiscard]] Share Pool() const;
  // The first step that may still be leased.
  [[nodiscard]] uint64_t next_step() const { return last_step_ ? *last_step_ + 1 : 0; }

  // The committed part (a lease belongs to a step in progress and is not state).
  [[nodiscard]] std::string Save() const;
  // kCorrupt if the bytes are not a ledger's or disagree with themselves.
  Status Load(const std::string& bytes);

 private:
  struct LeaseState {
    uint64_t step = 0;
    uint64_t size = 0;  // Samples, from the front of the pool.
  };
  uint64_t samples_ = 0;
  uint64_t data_epoch_ = 0;
  uint64_t frontier_ = 0;  // Everything from here on is in the pool,
  Share holes_;            // and these ranges before it: ascending, apart from each other.
  std::optional<uint64_t> last_step_;
  std::optional<LeaseState> lease_;
};

}  // namespace troupe::groups
