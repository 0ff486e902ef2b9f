// One place for one request.
#include <algorithm>
#include <tuple>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

constexpr double kHybridPackLimit = 0.5;  // As FitTree's rooms within half are written.

}  // namespace

bool Shape::Accepts(const Node& at) const {
  if (node_only && at.id != node) return false;
  return std::any_of(accepted.begin(), accepted.end(),
                     [&](const LabelSelector& selector) { return selector.Matches(at.labels); });
}

bool Scheduler::Impl::Allows(const Node& node, const Need& need, Order order) const {
  return node.usable() && node.hold.Allows(node.capacity, need, order);
}

Scheduler::Impl::Mode Scheduler::Impl::ModeOf(const Shape& shape) {
  // All nodes are alike to those that need nothing; the first would get them all.
  if (shape.need.empty()) return Mode::kLeastUsed;
  switch (shape.strategy) {
    case PlacementStrategy::kPack:
    case PlacementStrategy::kStrictPack:
      return Mode::kFirst;
    case PlacementStrategy::kSpread:
    case PlacementStrategy::kStrictSpread:
      return Mode::kLeastUsed;
    case PlacementStrategy::kHybrid:
      break;
  }
  return Mode::kHybrid;
}

uint32_t Scheduler::Impl::Search(Shape& shape, Order order, Mode mode, const Accept& accept) {
  const auto fits = [&](uint32_t slot) {
    const Node& node = cluster_.nodes[slot];
    return shape.Accepts(node) && Allows(node, shape.need, order) && accept(slot);
  };
  if (!shape.node.empty()) {
    const uint32_t slot = cluster_.nodes.Find(shape.node);
    if (slot != kNone && fits(slot)) return slot;
    if (shape.node_only) return kNone;
  }
  const auto own = promises_.find(order);
  if (own != promises_.end()) {
    for (const HeldPlace& place : own->second.places) {
      if (place.bundle.group == kNone && fits(place.node)) return place.node;
    }
  }
  const uint32_t found = SearchTrees(shape, mode, accept);
  if (found != kNone) return found;
  // The trees show what is free beside all promises; those to later ones do not bind this one.
  for (auto it = promises_.upper_bound(order); it != promises_.end(); ++it) {
    for (const HeldPlace& place : it->second.places) {
      if (place.bundle.group == kNone && fits(place.node)) return place.node;
    }
  }
  return kNone;
}

uint32_t Scheduler::Impl::SearchTrees(Shape& shape, Mode mode, const Accept& accept) {
  const int64_t* need = shape.dims.data();
  for (Alternative& alternative : shape.alternatives) {
    const Pool& pool =
        cluster_.FindPool(alternative.pool, alternative.labels, shape.custom, alternative.hint);
    for (const FitTree* tree : {&pool.plain, &pool.gpu}) {
      if (tree == &pool.plain && shape.need.gpu > 0) continue;
      uint32_t node = kNone;
      if (mode == Mode::kFirst) {
        node = tree->First(need, false, accept);
      } else {
        if (mode == Mode::kHybrid) node = tree->First(need, true, accept);
        if (node == kNone) node = tree->LeastUsed(need, accept);
      }
      if (node != kNone) return node;
    }
  }
  return kNone;
}

// The best of the nodes that have changed: the others were found to be without room before.
uint32_t Scheduler::Impl::SearchDirty(const Shape& shape, Order order) {
  using Score = std::tuple<int, size_t, bool, bool, double>;
  uint32_t best = kNone;
  Score best_score;
  const Mode mode = ModeOf(shape);
  for (const uint32_t slot : walked_) {
    const Node& node = cluster_.nodes[slot];
    if (!shape.Accepts(node) || !Allows(node, shape.need, order)) continue;
    const auto liked = std::find_if(
        shape.alternatives.begin(), shape.alternatives.end(),
        [&](const Alternative& alternative) { return alternative.labels.Matches(node.labels); });
    const double share = node.capacity.ShareWith(shape.need);
    const bool packs = mode == Mode::kFirst || (mode == Mode::kHybrid && share <= kHybridPackLimit);
    const Score score{
        node.id == shape.node ? 0 : 1, static_cast<size_t>(liked - shape.alternatives.begin()),
        shape.need.gpu == 0 && node.capacity.total().gpu > 0, !packs, packs ? -share : share};
    if (best != kNone && score >= best_score) continue;
    best = slot;
    best_score = score;
  }
  return best;
}

// The number of a bundle with room; kNone if there is none.
uint32_t Scheduler::Impl::SearchBundles(const Shape& shape, Order order) {
  Group& group = groups_[shape.group];
  const auto fits = [&](const Bundle& bundle) {
    return bundle.node != kNone && cluster_.nodes[bundle.node].usable() &&
           bundle.hold.Allows(bundle.capacity, shape.need, order);
  };
  if (shape.bundle != kAnyBundle) {
    const auto found = group.bundles.find(static_cast<uint32_t>(shape.bundle));
    return found != group.bundles.end() && fits(found->second) ? found->first : kNone;
  }
  auto it = group.bundles.begin();
  if (!shape.need.empty()) {  // Who needs nothing fits into a full one too.
    it = group.bundles.lower_bound(group.open);
    while (it != group.bundles.end() && it->second.node != kNone && it->second.capacity.IsFull()) {
      group.open = (++it) == group.bundles.end() ? group.next_bundle : it->first;
    }
  }
  for (; it != group.bundles.end(); ++it) {
    if (fits(it->second)) return it->first;
  }
  return kNone;
}

}  // namespace troupe
