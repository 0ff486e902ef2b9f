#include "scheduler/internal/fit_tree.h"

namespace troupe::sched::internal {

uint32_t FitTree::Add(uint32_t node) {
  if (free_.empty()) Grow();
  const uint32_t position = free_.back();
  free_.pop_back();
  nodes_[position] = node;
  return position;
}

void FitTree::Remove(uint32_t position) {
  Close(position);
  nodes_[position] = kNone;
  free_.push_back(position);
}

void FitTree::Set(uint32_t position, const int64_t* room, const int64_t* half, int64_t key) {
  int64_t* leaf = data_.data() + (size_ + position) * stride_;
  std::copy_n(room, dims_, leaf);
  std::copy_n(half, dims_, leaf + dims_);
  leaf[2 * dims_] = key;
  Update(size_ + position);
}

void FitTree::Close(uint32_t position) {
  int64_t* leaf = data_.data() + (size_ + position) * stride_;
  std::fill_n(leaf, 2 * dims_, std::numeric_limits<int64_t>::min());
  leaf[2 * dims_] = std::numeric_limits<int64_t>::max();
  Update(size_ + position);
}

// Up from a leaf, as far as anything changes.
void FitTree::Update(size_t leaf) {
  for (size_t v = leaf / 2; v >= 1; v /= 2) {
    int64_t* here = data_.data() + v * stride_;
    const int64_t* left = At(2 * v);
    const int64_t* right = At(2 * v + 1);
    bool changed = false;
    for (size_t i = 0; i < 2 * dims_; ++i) {
      const int64_t most = std::max(left[i], right[i]);
      changed |= here[i] != most;
      here[i] = most;
    }
    const int64_t key = std::min(left[2 * dims_], right[2 * dims_]);
    changed |= here[2 * dims_] != key;
    here[2 * dims_] = key;
    if (!changed) return;
  }
}

void FitTree::Grow() {
  const size_t old = size_;
  size_ = old == 0 ? 4 : 2 * old;
  std::vector<int64_t> data(2 * size_ * stride_, std::numeric_limits<int64_t>::min());
  for (size_t v = 0; v < 2 * size_; ++v) {
    data[v * stride_ + 2 * dims_] = std::numeric_limits<int64_t>::max();
  }
  if (old > 0) {
    std::copy_n(data_.data() + old * stride_, old * stride_, data.data() + size_ * stride_);
  }
  data_ = std::move(data);
  nodes_.resize(size_, kNone);
  for (size_t i = size_; i > old; --i) free_.push_back(static_cast<uint32_t>(i - 1));
  // From the bottom up, so that every vertex is whole.
  for (size_t v = size_ - 1; v >= 1; --v) {
    int64_t* here = data_.data() + v * stride_;
    for (size_t i = 0; i < 2 * dims_; ++i) here[i] = std::max(At(2 * v)[i], At(2 * v + 1)[i]);
    here[2 * dims_] = std::min(KeyOf(2 * v), KeyOf(2 * v + 1));
  }
}

}  // namespace troupe::sched::internal
