// Places for several together: the bundles of a group, the members of a gang.
//
// Greedy, from the largest piece to the smallest. For equal pieces that is exact; an unequal set
// may be found not to fit although some cunning arrangement would hold it.
#include <algorithm>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

double ShareOfAll(const Need& need, const Need& all) {
  const auto part = [](int64_t a, int64_t b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : static_cast<double>(a);
  };
  double share =
      std::max({part(need.cpu, all.cpu), part(need.memory, all.memory), part(need.gpu, all.gpu)});
  for (const Amount& amount : need.custom) {
    share = std::max(share, part(amount.units, all.Custom(amount.name)));
  }
  return share;
}

}  // namespace

void Scheduler::Impl::SortLargestFirst(std::vector<Piece>& pieces) const {
  if (std::all_of(pieces.begin(), pieces.end(),
                  [&](const Piece& piece) { return piece.shape == pieces[0].shape; })) {
    return;
  }
  std::vector<std::pair<double, Piece>> sized;
  for (const Piece& piece : pieces) {
    sized.emplace_back(ShareOfAll(shapes_[piece.shape].need, cluster_.total), piece);
  }
  std::stable_sort(sized.begin(), sized.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = sized[i].second;
}

// How many were placed and booked: none, or at least `at_least`. `beside` are the nodes of those
// that were placed before.
size_t Scheduler::Impl::PlaceBatch(std::vector<Piece>& pieces, PlacementStrategy strategy,
                                   size_t at_least, std::vector<uint32_t> beside, Order order) {
  SortLargestFirst(pieces);
  const auto promise = promises_.find(order);
  if (promise != promises_.end()) {
    const size_t placed = PlacePlan(pieces, promise->second);
    if (placed >= at_least) return placed;
    Unbook(pieces);
  }
  if (strategy == PlacementStrategy::kStrictPack) {
    return PlaceTogether(pieces, beside, order) ? pieces.size() : 0;
  }
  if (strategy == PlacementStrategy::kPack && beside.empty() && pieces.size() > 1 &&
      PlaceTogether(pieces, beside, order)) {
    return pieces.size();
  }
  ++batch_;
  for (const uint32_t node : beside) cluster_.nodes[node].mark = batch_;
  size_t placed = 0;
  uint32_t failed = kNone;  // The shape that found no place; its like will not either.
  for (size_t i = 0; i < pieces.size() && placed + (pieces.size() - i) >= at_least; ++i) {
    Piece& piece = pieces[i];
    if (piece.shape == failed) continue;
    const uint32_t node = PlacePiece(piece, strategy, beside, order);
    if (node == kNone) {
      failed = piece.shape;
      continue;
    }
    Book(piece, node);
    if (cluster_.nodes[node].mark != batch_) beside.push_back(node);
    cluster_.nodes[node].mark = batch_;
    ++placed;
  }
  if (placed >= at_least) return placed;
  Unbook(pieces);
  return 0;
}

uint32_t Scheduler::Impl::PlacePiece(const Piece& piece, PlacementStrategy strategy,
                                     const std::vector<uint32_t>& beside, Order order) {
  Shape& shape = shapes_[piece.shape];
  const auto any = [](uint32_t) { return true; };
  if (strategy == PlacementStrategy::kHybrid) return Search(shape, order, ModeOf(shape), any);
  if (strategy == PlacementStrategy::kPack) {
    for (const uint32_t node : beside) {
      if (shape.Accepts(cluster_.nodes[node]) && Allows(cluster_.nodes[node], shape.need, order))
        return node;
    }
    return Search(shape, order, Mode::kLeastUsed, any);
  }
  const uint32_t apart = Search(shape, order, Mode::kLeastUsed,
                                [&](uint32_t node) { return cluster_.nodes[node].mark != batch_; });
  if (apart != kNone || strategy == PlacementStrategy::kStrictSpread) return apart;
  return Search(shape, order, Mode::kLeastUsed, any);
}

// All on one node: on that of `beside`, if there is one.
bool Scheduler::Impl::PlaceTogether(std::vector<Piece>& pieces, const std::vector<uint32_t>& beside,
                                    Order order) {
  if (pieces.empty()) return true;
  if (!beside.empty()) return TakeAll(pieces, beside[0], order);
  Shape all;
  all.accepted = {LabelSelector()};
  int64_t devices = 0;
  int64_t fraction = 0;
  bool alike = true;
  for (const Piece& piece : pieces) {
    const Shape& shape = shapes_[piece.shape];
    all.need.Add(shape.need);
    devices += shape.need.devices();
    fraction = std::max(fraction, shape.need.fraction());
    alike = alike && shape.accepted == shapes_[pieces[0].shape].accepted;
  }
  all.need.gpu = devices > 0 ? devices * kOne : fraction;
  for (const Amount& amount : all.need.custom) all.custom.push_back(amount.name);
  all.dims.resize(kFixedDims + all.custom.size());
  WriteDims(all.need, all.dims.data());
  all.dims[3] = fraction;
  const std::vector<LabelSelector> any = {LabelSelector()};
  for (const LabelSelector& labels : alike ? shapes_[pieces[0].shape].accepted : any) {
    all.alternatives.push_back(Alternative{labels, Cluster::PoolKey(labels, all.custom), kNone});
  }
  return Search(all, order, Mode::kFirst,
                [&](uint32_t node) { return TakeAll(pieces, node, order); }) != kNone;
}

bool Scheduler::Impl::TakeAll(std::vector<Piece>& pieces, uint32_t slot, Order order) {
  Node& node = cluster_.nodes[slot];
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Shape& shape = shapes_[pieces[i].shape];
    if (shape.Accepts(node) && Allows(node, shape.need, order)) {
      pieces[i].devices = node.capacity.Take(shape.need);
      continue;
    }
    while (i-- > 0) node.capacity.Give(shapes_[pieces[i].shape].need, pieces[i].devices);
    return false;
  }
  for (Piece& piece : pieces) piece.node = slot;
  cluster_.Changed(slot);
  return true;
}

void Scheduler::Impl::Book(Piece& piece, uint32_t node) {
  piece.node = node;
  piece.devices = cluster_.nodes[node].capacity.Take(shapes_[piece.shape].need);
  cluster_.Changed(node);
}

void Scheduler::Impl::Unbook(std::vector<Piece>& pieces) {
  for (Piece& piece : pieces) {
    if (piece.node == kNone) continue;
    cluster_.nodes[piece.node].capacity.Give(shapes_[piece.shape].need, piece.devices);
    cluster_.Changed(piece.node);
    piece.node = kNone;
  }
}

// As it was planned when the promise was made, as far as the plan still is of these pieces.
size_t Scheduler::Impl::PlacePlan(std::vector<Piece>& pieces, const Promise& promise) {
  size_t placed = 0;
  for (const Piece& planned : promise.plan) {
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& p) {
      return p.item == planned.item && p.shape == planned.shape;
    });
    if (piece == pieces.end()) return 0;
    const Node& node = cluster_.nodes[planned.node];
    if (!Allows(node, shapes_[piece->shape].need, promise.owner.order)) return 0;
    Book(*piece, planned.node);
    ++placed;
  }
  return placed;
}

// Whether a node that has changed has room for any of them: if not, they fit no better than before.
bool Scheduler::Impl::MayHelp(const std::vector<Piece>& pieces, Order order) const {
  uint32_t last = kNone;
  for (const Piece& piece : pieces) {
    if (piece.shape == last) continue;
    last = piece.shape;
    const Shape& shape = shapes_[piece.shape];
    for (const uint32_t slot : walked_) {
      const Node& node = cluster_.nodes[slot];
      if (shape.Accepts(node) && Allows(node, shape.need, order)) return true;
    }
  }
  return false;
}

}  // namespace troupe
