#include "collective_groups/torch/elastic_sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "runtime/assert.h"

namespace troupe::elastic {

ElasticSampler::ElasticSampler(uint64_t samples, uint64_t batch_size, uint64_t seed)
    : batch_size_(batch_size), seed_(seed), ledger_(samples) {
  TROUPE_ASSERT(samples > 0 && batch_size > 0, "a sampler needs samples and a batch size");
  BeginEpoch(0);
}

void ElasticSampler::BeginEpoch(uint64_t data_epoch) {
  ledger_.BeginEpoch(data_epoch);
  leased_ = false;
}

// Not std::shuffle and its distribution: those may differ between standard libraries, and members
// with another permutation would count other samples.
void ElasticSampler::Permute() {
  if (!order_.empty() && order_epoch_ == ledger_.data_epoch()) return;
  order_epoch_ = ledger_.data_epoch();
  order_.resize(ledger_.samples());
  std::iota(order_.begin(), order_.end(), int64_t{0});
  std::mt19937_64 random(seed_ + order_epoch_);
  for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random() % (i + 1)]);
}

// How many samples each rank takes of the next step.
std::vector<uint64_t> ElasticSampler::NextSizes() const {
  const uint64_t left = ledger_.remaining();
  const auto takers = static_cast<uint64_t>(std::count(takes_.begin(), takes_.end(), true));
  const bool full = left / takers >= batch_size_;
  std::vector<uint64_t> sizes(takes_.size(), 0);
  uint64_t place = 0;
  for (size_t rank = 0; rank < takes_.size(); ++rank) {
    if (!takes_[rank]) continue;
    sizes[rank] = full ? batch_size_ : left / takers + (place < left % takers ? 1 : 0);
    ++place;
  }
  return sizes;
}

Result<Batch> ElasticSampler::Next() {
  if (ledger_.remaining() == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "data epoch " + std::to_string(data_epoch()) + " is exhausted; call BeginEpoch"};
  }
  const std::vector<uint64_t> sizes = NextSizes();
  const auto shares = ledger_.Lease(ledger_.next_step(), sizes);
  if (!shares.ok()) return shares.error();
  leased_ = true;
  Permute();
  Batch batch;
  batch.counted = sizes[rank_];
  batch.step_size = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  const auto at = [this](uint64_t position) {
    return order_.begin() + static_cast<std::ptrdiff_t>(position);
  };
  for (const auto& [begin, end] : (*shares)[rank_]) {
    batch.indices.insert(batch.indices.end(), at(begin), at(end));
  }
  if (batch.counted == 0) {
    const uint64_t ghosts = takes_[rank_] ? 1 : std::min<uint64_t>(2, order_.size());
    batch.indices.assign(order_.begin(), at(ghosts));
  }
  return batch;
}

void ElasticSampler::Enter(int rank, int size, const std::vector<int>& followers) {
  rank_ = static_cast<uint64_t>(rank);
  takes_.assign(static_cast<size_t>(size), true);
  for (const int follower : followers) takes_.at(static_cast<size_t>(follower)) = false;
  TROUPE_ASSERT(followers.size() < takes_.size(), "somebody must have a share of a step");
  ledger_.Void(ledger_.next_step());
  leased_ = false;
}

Status ElasticSampler::Commit() {
  takes_.assign(takes_.size(), true);
  if (!leased_) return Status::Ok();
  leased_ = false;
  return ledger_.Commit(ledger_.next_step());
}

Status ElasticSampler::Load(const std::string& bytes) {
  groups::SampleLedger incoming;
  if (Status s = incoming.Load(bytes); !s.ok()) return s;
  if (incoming.samples() != ledger_.samples()) {
    return Error{ErrorCode::kMismatch,
                 "the group's sampler has " + std::to_string(incoming.samples()) +
                     " samples, this member's has " + std::to_string(ledger_.samples()) +
                     "; all must read the same data set"};
  }
  ledger_ = std::move(incoming);
  leased_ = false;
  return Status::Ok();
}

}  // namespace troupe::elastic
