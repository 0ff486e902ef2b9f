// Finds a node with room among thousands without looking at each: a tournament tree over nodes.
//
// A leaf holds what one node has free in every dimension, what it has free below half of it, and a
// key (the less, the less it is used); an inner vertex the greatest of the amounts and the least
// key below it. A subtree whose greatest amounts do not cover the need is passed over. That is
// exact for one dimension; for several it can visit a subtree in vain, never miss a node.
// Thread: one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "scheduler/internal/slot_table.h"

namespace troupe::sched::internal {

class FitTree {
 public:
  explicit FitTree(size_t dims) : dims_(dims), stride_(2 * dims + 1) {}

  // A place for a node, without any room yet.
  uint32_t Add(uint32_t node);
  void Remove(uint32_t position);
  void Set(uint32_t position, const int64_t* room, const int64_t* half, int64_t key);
  // No room, not even for nothing.
  void Close(uint32_t position);

  // The first node, in the order of places, that has room and is accepted. kNone: there is none.
  template <class Accept>
  uint32_t First(const int64_t* need, bool within_half, const Accept& accept) const {
    const size_t offset = within_half ? dims_ : 0;
    size_t v = 1;
    while (v != 0) {
      if (Covers(v, offset, need)) {
        if (v < size_) {
          v = 2 * v;
          continue;
        }
        const uint32_t node = nodes_[v - size_];
        if (node != kNone && accept(node)) return node;
      }
      while ((v & 1) != 0 && v > 1) v /= 2;  // Up until there is a right neighbour.
      v = v == 1 ? 0 : v + 1;
    }
    return kNone;
  }

  // The node with the least key among those; among equals the first. It looks at kLeavesMax leaves
  // and then takes the best so far, if there is one.
  template <class Accept>
  uint32_t LeastUsed(const int64_t* need, const Accept& accept) const {
    Best best;
    Descend(1, need, accept, best);
    return best.node;
  }

 private:
  static constexpr int kLeavesMax = 64;
  struct Best {
    uint32_t node = kNone;
    int64_t key = std::numeric_limits<int64_t>::max();
    int visited = 0;
  };

  [[nodiscard]] const int64_t* At(size_t vertex) const { return data_.data() + vertex * stride_; }
  [[nodiscard]] int64_t KeyOf(size_t vertex) const { return At(vertex)[2 * dims_]; }
  [[nodiscard]] bool Covers(size_t vertex, size_t offset, const int64_t* need) const {
    if (size_ == 0) return false;
    const int64_t* have = At(vertex) + offset;
    for (size_t i = 0; i < dims_; ++i) {
      if (have[i] < need[i]) return false;
    }
    return true;
  }

  template <class Accept>
  void Descend(size_t v, const int64_t* need, const Accept& accept, Best& best) const {
    if (!Covers(v, 0, need) || KeyOf(v) >= best.key) return;
    if (best.node != kNone && best.visited >= kLeavesMax) return;
    if (v >= size_) {
      ++best.visited;
      const uint32_t node = nodes_[v - size_];
      if (node == kNone || !accept(node)) return;
      best.node = node;
      best.key = KeyOf(v);
      return;
    }
    const size_t first = KeyOf(2 * v) <= KeyOf(2 * v + 1) ? 2 * v : 2 * v + 1;
    Descend(first, need, accept, best);
    Descend(first ^ 1, need, accept, best);
  }

  void Grow();
  void Update(size_t leaf);

  const size_t dims_;
  const size_t stride_;
  size_t size_ = 0;            // Leaves: a power of two, or none.
  std::vector<int64_t> data_;  // By vertex; 1 is the root, leaf i is size_ + i.
  std::vector<uint32_t> nodes_;
  std::vector<uint32_t> free_;  // Places.
};

}  // namespace troupe::sched::internal
