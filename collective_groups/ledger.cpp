#include "collective_groups/ledger.h"

#include "runtime/wire.h"

namespace troupe::groups {
namespace {

constexpr uint8_t kLedgerType = 20;

struct SavedLedger {
  uint64_t samples = 0;
  uint64_t data_epoch = 0;
  uint64_t committed = 0;
  bool has_step = false;
  uint64_t last_step = 0;

  template <class A>
  void Fields(A& a) {
    a(samples, data_epoch, committed, has_step, last_step);
  }
};

}  // namespace

void SampleLedger::BeginEpoch(uint64_t data_epoch) {
  data_epoch_ = data_epoch;
  committed_ = 0;
  last_step_.reset();
  lease_.reset();
}

Result<std::vector<SampleLedger::Range>> SampleLedger::Lease(uint64_t step,
                                                             const std::vector<uint64_t>& sizes) {
  if (last_step_ && step <= *last_step_) {
    return Error{ErrorCode::kInvalidArgument,
                 "step " + std::to_string(step) + " was already committed"};
  }
  std::vector<Range> ranges;
  uint64_t position = committed_;
  for (const uint64_t size : sizes) {
    if (size > samples_ - position) {
      return Error{ErrorCode::kInvalidArgument,
                   "step " + std::to_string(step) + " leases more than the " +
                       std::to_string(remaining()) + " remaining samples"};
    }
    ranges.emplace_back(position, position + size);
    position += size;
  }
  lease_ = LeaseState{step, position};
  return ranges;
}

Status SampleLedger::Commit(uint64_t step) {
  if (!lease_ || lease_->step != step) {
    return Error{ErrorCode::kInvalidArgument, "step " + std::to_string(step) + " was not leased"};
  }
  committed_ = lease_->end;
  last_step_ = step;
  lease_.reset();
  return Status::Ok();
}

void SampleLedger::Void(uint64_t step) {
  if (lease_ && lease_->step == step) lease_.reset();
}

std::string SampleLedger::Save() const {
  return wire::Encode(kLedgerType, SavedLedger{samples_, data_epoch_, committed_,
                                               last_step_.has_value(), last_step_.value_or(0)});
}

Status SampleLedger::Load(const std::string& bytes) {
  Result<SavedLedger> saved = wire::Decode<SavedLedger>(kLedgerType, bytes);
  if (!saved.ok()) return saved.error().WithContext("sample ledger");
  if (saved->committed > saved->samples)
    return Error{ErrorCode::kCorrupt, "sample ledger: more committed than there is"};
  samples_ = saved->samples;
  data_epoch_ = saved->data_epoch;
  committed_ = saved->committed;
  last_step_.reset();
  if (saved->has_step) last_step_ = saved->last_step;
  lease_.reset();
  return Status::Ok();
}

}  // namespace troupe::groups
