// ElasticSampler: shares a data set among the present members of a group, exactly.
//
// A data epoch is a seeded permutation of all samples. Each step leases the next range of it, one
// share per rank; ElasticState::Commit makes the lease part of the committed prefix. When members
// come or go the next step starts right after that prefix, whatever was in flight. Ranks whose
// state is still on its way (followers) have no share up to the next commit.
// Thread: the training thread.
// Invariants: GM-9: per data epoch every sample is counted in exactly one committed step.
// Limits: one step in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective_groups/membership/ledger.h"

namespace troupe::elastic {

// One rank's share of a step. Every rank makes the same number of steps: one without a share of the
// last step gets a ghost, a sample that is computed and counted as none; a follower gets two, since
// batch norms cannot compute one.
struct Batch {
  std::vector<int64_t> indices;  // Of the data set.
  uint64_t counted = 0;          // Samples that count: indices.size(), or 0 for a ghost.
  uint64_t step_size = 0;        // Samples of all ranks together.
};

class ElasticSampler {
 public:
  // `batch_size`: samples per rank and step. Both numbers must be positive.
  ElasticSampler(uint64_t samples, uint64_t batch_size, uint64_t seed);

  // Begins a data epoch with nothing counted.
  void BeginEpoch(uint64_t data_epoch);
  // Leases the next step; a lease that was not committed is given back. The last steps of a data
  // epoch share what is left evenly. kInvalidArgument if nothing is left.
  Result<Batch> Next();

  [[nodiscard]] uint64_t data_epoch() const { return ledger_.data_epoch(); }
  [[nodiscard]] uint64_t remaining() const { return ledger_.remaining(); }  // Not committed.

  // ---- for ElasticState ----
  // This member's place in the present view; gives a lease back. `followers` are ranks without a
  // share of the next step, alike on all members, and not all of them.
  void Enter(int rank, int size, const std::vector<int>& followers = {});
  // Counts the leased step, if there is one. Nobody follows any more.
  Status Commit();
  [[nodiscard]] std::string Save() const { return ledger_.Save(); }
  // kMismatch if the bytes are of a data set of another size.
  Status Load(const std::string& bytes);

 private:
  void Permute();
  [[nodiscard]] std::vector<uint64_t> NextSizes() const;

  const uint64_t batch_size_;
  const uint64_t seed_;
  groups::SampleLedger ledger_;
  std::vector<int64_t> order_;  // The permutation of `order_epoch_`.
  uint64_t order_epoch_ = 0;
  bool leased_ = false;
  uint64_t rank_ = 0;
  std::vector<bool> takes_ = {true};  // By rank: whether it has a share of the next step.
};

}  // namespace troupe::elastic
