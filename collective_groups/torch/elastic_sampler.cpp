#include "collective_groups/torch/elastic_sampler.h"

#include <numeric>
#include <random>

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

Result<Batch> ElasticSampler::Next() {
  const uint64_t left = ledger_.remaining();
  if (left == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "data epoch " + std::to_string(data_epoch()) + " is exhausted; call BeginEpoch"};
  }
  std::vector<uint64_t> sizes(size_, batch_size_);
  if (left / size_ < batch_size_) {
    for (uint64_t rank = 0; rank < size_; ++rank)
      sizes[rank] = left / size_ + (rank < left % size_ ? 1 : 0);
  }
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
  if (batch.indices.empty()) batch.indices.push_back(order_.front());
  return batch;
}

void ElasticSampler::Enter(int rank, int size) {
  rank_ = static_cast<uint64_t>(rank);
  size_ = static_cast<uint64_t>(size);
  ledger_.Void(ledger_.next_step());
  leased_ = false;
}

Status ElasticSampler::Commit() {
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
  ledger_ = incoming;
  leased_ = false;
  return Status::Ok();
}

}  // namespace troupe::elastic
