#include "collective_groups/membership/ledger.h"

#include <algorithm>

#include "collective_groups/membership/internal/saved_ledger.h"
#include "runtime/wire.h"

namespace troupe::groups {
namespace {

uint64_t Size(const SampleLedger::Share& share) {
  uint64_t size = 0;
  for (const auto& [begin, end] : share) size += end - begin;
  return size;
}

// Takes `size` samples off the front of `pool`, which holds as many.
SampleLedger::Share TakeFront(SampleLedger::Share& pool, uint64_t size) {
  SampleLedger::Share taken;
  size_t used = 0;
  while (size > 0) {
    auto& [begin, end] = pool[used];
    const uint64_t part = std::min(size, end - begin);
    taken.emplace_back(begin, begin + part);
    begin += part;
    size -= part;
    if (begin == end) ++used;
  }
  pool.erase(pool.begin(), pool.begin() + static_cast<ptrdiff_t>(used));
  return taken;
}

// Sorts, and joins ranges that touch.
void Normalize(SampleLedger::Share& share) {
  std::sort(share.begin(), share.end());
  SampleLedger::Share joined;
  for (const auto& range : share) {
    if (!joined.empty() && joined.back().second == range.first) {
      joined.back().second = range.second;
    } else {
      joined.push_back(range);
    }
  }
  share = std::move(joined);
}

// Whether all of `parts`, ascending, lie in `whole` without overlapping.
bool Within(const SampleLedger::Share& parts, const SampleLedger::Share& whole) {
  uint64_t free_from = 0;
  for (const auto& [begin, end] : parts) {
    if (begin >= end || begin < free_from) return false;
    if (std::none_of(whole.begin(), whole.end(), [b = begin, e = end](const auto& range) {
          return range.first <= b && e <= range.second;
        })) {
      return false;
    }
    free_from = end;
  }
  return true;
}

}  // namespace

void SampleLedger::BeginEpoch(uint64_t data_epoch) {
  data_epoch_ = data_epoch;
  frontier_ = 0;
  holes_.clear();
  last_step_.reset();
  lease_.reset();
}

uint64_t SampleLedger::remaining() const { return samples_ - frontier_ + Size(holes_); }

SampleLedger::Share SampleLedger::Pool() const {
  Share pool = holes_;
  if (frontier_ < samples_) pool.emplace_back(frontier_, samples_);
  return pool;
}

Result<std::vector<SampleLedger::Share>> SampleLedger::Lease(uint64_t step,
                                                             const std::vector<uint64_t>& sizes) {
  if (last_step_ && step <= *last_step_) {
    return Error{ErrorCode::kInvalidArgument,
                 "step " + std::to_string(step) + " was already committed"};
  }
  std::vector<Share> shares;
  Share pool = Pool();
  uint64_t left = remaining();
  for (const uint64_t size : sizes) {
    if (size > left) {
      return Error{ErrorCode::kInvalidArgument,
                   "step " + std::to_string(step) + " leases more than the " +
                       std::to_string(remaining()) + " remaining samples"};
    }
    shares.push_back(TakeFront(pool, size));
    left -= size;
  }
  lease_ = LeaseState{step, remaining() - left};
  return shares;
}

Status SampleLedger::Commit(uint64_t step, Share returned) {
  if (!lease_ || lease_->step != step) {
    return Error{ErrorCode::kInvalidArgument, "step " + std::to_string(step) + " was not leased"};
  }
  Share pool = Pool();
  Share leased = TakeFront(pool, lease_->size);
  Normalize(returned);
  Normalize(leased);
  if (!Within(returned, leased)) {
    return Error{ErrorCode::kInvalidArgument,
                 "step " + std::to_string(step) + " cannot give back what it has not leased"};
  }
  pool.insert(pool.end(), returned.begin(), returned.end());
  Normalize(pool);
  frontier_ = samples_;
  if (!pool.empty() && pool.back().second == samples_) {
    frontier_ = pool.back().first;
    pool.pop_back();
  }
  holes_ = std::move(pool);
  last_step_ = step;
  lease_.reset();
  return Status::Ok();
}

void SampleLedger::Void(uint64_t step) {
  if (lease_ && lease_->step == step) lease_.reset();
}

std::string SampleLedger::Save() const {
  SavedLedger saved{
      samples_, data_epoch_, frontier_, last_step_.has_value(), last_step_.value_or(0), {}};
  for (const auto& [begin, end] : holes_) {
    saved.holes.push_back(begin);
    saved.holes.push_back(end);
  }
  return wire::Encode(kLedgerType, saved);
}

Status SampleLedger::Load(const std::string& bytes) {
  Result<SavedLedger> saved = wire::Decode<SavedLedger>(kLedgerType, bytes);
  if (!saved.ok()) return saved.error().WithContext("sample ledger");
  if (saved->frontier > saved->samples)
    return Error{ErrorCode::kCorrupt, "sample ledger: more committed than there is"};
  if (saved->holes.size() % 2 != 0 || !std::is_sorted(saved->holes.begin(), saved->holes.end()) ||
      std::adjacent_find(saved->holes.begin(), saved->holes.end()) != saved->holes.end() ||
      (!saved->holes.empty() && saved->holes.back() >= saved->frontier)) {
    return Error{ErrorCode::kCorrupt, "sample ledger: its holes overlap or lie outside"};
  }
  samples_ = saved->samples;
  data_epoch_ = saved->data_epoch;
  frontier_ = saved->frontier;
  holes_.clear();
  for (size_t i = 0; i < saved->holes.size(); i += 2) {
    holes_.emplace_back(saved->holes[i], saved->holes[i + 1]);
  }
  last_step_.reset();
  if (saved->has_step) last_step_ = saved->last_step;
  lease_.reset();
  return Status::Ok();
}

}  // namespace troupe::groups
