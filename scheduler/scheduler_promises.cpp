// Room for who has waited long.
//
// The first of each priority that is possible at all is promised the place that is nearest to
// fitting: what it needs there is kept from those behind it, so that what is released adds up. A
// promise is looked at again after a while, for another place may be nearer by then.
#include <algorithm>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

constexpr int kPromiseLasts = 4;  // Times `starvation_after`.

// A node as it would be if nothing ran there.
Capacity Idle(const Capacity& capacity) {
  uint64_t devices = 0;
  for (const Capacity::Device& device : capacity.devices()) devices |= uint64_t{1} << device.index;
  return Capacity(capacity.total(), devices);
}

}  // namespace

Time Scheduler::Impl::SinceOf(const Waiter& waiter) const {
  switch (waiter.kind) {
    case WaiterKind::kShape:
      return leases_[shapes_[waiter.id].waiting.begin()->second].since;
    case WaiterKind::kGang:
      return gangs_.at(waiter.id).since;
    case WaiterKind::kGroup:
      break;
  }
  return groups_[waiter.id].since;
}

PlacementStrategy Scheduler::Impl::StrategyOf(const Waiter& waiter) const {
  return waiter.kind == WaiterKind::kGang ? gangs_.at(waiter.id).strategy
                                          : groups_[waiter.id].strategy;
}

size_t Scheduler::Impl::AtLeastOf(const Waiter& waiter, size_t pieces) const {
  if (waiter.kind != WaiterKind::kGang) return pieces;
  const Gang& gang = gangs_.at(waiter.id);
  // Strict packing lets nobody follow elsewhere, so the rest of a gang stays one whole.
  const bool one_by_one = gang.met && gang.strategy != PlacementStrategy::kStrictPack;
  return one_by_one ? 1 : std::min(gang.at_least, pieces);
}

// Where those of its gang or group are that have been placed; each node once.
Scheduler::Impl::Slots Scheduler::Impl::NodesOf(const Waiter& waiter) const {
  std::vector<uint32_t> nodes;
  if (waiter.kind == WaiterKind::kGang) {
    for (const uint32_t member : gangs_.at(waiter.id).members)
      nodes.push_back(leases_[member].node);
  } else {
    for (const auto& [number, bundle] : groups_[waiter.id].bundles) nodes.push_back(bundle.node);
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  if (!nodes.empty() && nodes.back() == kNone) nodes.pop_back();
  return nodes;
}

// What is to be placed together next.
Scheduler::Impl::Pieces Scheduler::Impl::PiecesOf(const Waiter& waiter) const {
  std::vector<Piece> pieces;
  if (waiter.kind == WaiterKind::kGang) {
    for (const uint32_t lease : gangs_.at(waiter.id).waiting) {
      pieces.push_back({leases_[lease].shape, lease, kNone, 0});
    }
    std::sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) {
      return leases_[a.item].number < leases_[b.item].number;  // As they were asked for.
    });
  } else if (waiter.kind == WaiterKind::kGroup) {
    uint64_t first = ~uint64_t{0};
    const Group& group = groups_[waiter.id];
    for (const auto& [number, bundle] : group.bundles) {
      if (bundle.node == kNone) first = std::min(first, bundle.batch);
    }
    for (const auto& [number, bundle] : group.bundles) {
      if (bundle.node == kNone && bundle.batch == first) {
        pieces.push_back({bundle.shape, number, kNone, 0});
      }
    }
  }
  return pieces;
}

void Scheduler::Impl::KeepPromises() {
  if (now_ < check_promises_at_ || now_ < recover_until_) return;
  std::vector<Order> over;
  for (const auto& [order, promise] : promises_) {
    if (promise.until <= now_) over.push_back(order);
  }
  for (const Order& order : over) DropPromise(order);
  check_promises_at_ = Time::Never();
  auto it = waiters_.begin();
  while (it != waiters_.end()) {
    const Waiter waiter = *it;
    const auto kept = promises_.find(waiter.order);
    const Time due = SinceOf(waiter) + options_.starvation_after;
    bool heads = true;  // Whether it stands for its priority.
    if (kept != promises_.end()) {
      check_promises_at_ = std::min(check_promises_at_, kept->second.until);
    } else if (due > now_) {
      check_promises_at_ = std::min(check_promises_at_, due);
    } else {
      heads = MakePromise(waiter);
      const int64_t times = heads ? kPromiseLasts : 1;
      check_promises_at_ = std::min(check_promises_at_, now_ + times * options_.starvation_after);
    }
    it = heads ? waiters_.lower_bound(Waiter{{waiter.order.neg_priority + 1, 0}})
               : waiters_.upper_bound(waiter);
  }
}

bool Scheduler::Impl::MakePromise(const Waiter& waiter) {
  if (promises_.size() >= kSchedulerPromisesMax) return false;
  const uint32_t lease = waiter.kind == WaiterKind::kGroup ? kNone : FirstOf(waiter);
  Promise promise{waiter, lease, now_ + kPromiseLasts * options_.starvation_after, {}, {}};
  if (waiter.kind != WaiterKind::kShape) return PromiseBatch(std::move(promise));
  const Shape& shape = shapes_[waiter.id];
  return shape.group == kNone ? PromiseNode(std::move(promise), shape)
                              : PromiseBundle(std::move(promise), shape);
}

bool Scheduler::Impl::PromiseNode(Promise promise, const Shape& shape) {
  uint32_t best = kNone;
  double nearest = 0;
  for (uint32_t slot = 0; slot < cluster_.nodes.slots(); ++slot) {
    if (!cluster_.nodes.Has(slot)) continue;
    const Node& node = cluster_.nodes[slot];
    if (!node.usable() || node.hold.on || !node.capacity.FitsWhenIdle(shape.need)) continue;
    if (!shape.Accepts(node)) continue;
    const double distance = node.capacity.Distance(shape.need);
    if (best != kNone && distance >= nearest) continue;
    best = slot;
    nearest = distance;
  }
  if (best == kNone) return false;
  cluster_.nodes[best].hold = Hold{true, promise.owner.order, shape.need};
  cluster_.Changed(best);
  promise.places.push_back({best, {}});
  promises_.emplace(promise.owner.order, std::move(promise));
  return true;
}

bool Scheduler::Impl::PromiseBundle(Promise promise, const Shape& shape) {
  Group& group = groups_[shape.group];
  Bundle* best = nullptr;
  double nearest = 0;
  for (auto& [number, bundle] : group.bundles) {
    if (shape.bundle != kAnyBundle && shape.bundle != static_cast<int>(number)) continue;
    if (bundle.node == kNone || !cluster_.nodes[bundle.node].usable() || bundle.hold.on) continue;
    if (!bundle.capacity.FitsWhenIdle(shape.need)) continue;
    const double distance = bundle.capacity.Distance(shape.need);
    if (best != nullptr && distance >= nearest) continue;
    best = &bundle;
    nearest = distance;
    promise.places = {{bundle.node, {shape.group, number}}};
  }
  if (best == nullptr) return false;
  best->hold = Hold{true, promise.owner.order, shape.need};
  promises_.emplace(promise.owner.order, std::move(promise));
  return true;
}

// Assigns nodes to pieces, the least used first, without booking: on nodes as they are, or as they
// would be if nothing ran there.
Scheduler::Impl::Plan Scheduler::Impl::PlanBatch(std::vector<Piece>& pieces, const Waiter& waiter,
                                                 PlanFor how) const {
  Plan plan;
  const PlacementStrategy strategy = StrategyOf(waiter);
  for (const uint32_t node : NodesOf(waiter)) plan.beside.insert(node);
  std::vector<std::pair<double, uint32_t>> nodes;
  for (uint32_t slot = 0; slot < cluster_.nodes.slots(); ++slot) {
    if (!cluster_.nodes.Has(slot)) continue;
    const Node& node = cluster_.nodes[slot];
    if (how != PlanFor::kIdle && !node.usable()) continue;
    if (how == PlanFor::kPromise && node.hold.on) continue;
    const bool taken = plan.beside.contains(slot);
    if (strategy == PlacementStrategy::kStrictSpread && taken) continue;
    if (strategy == PlacementStrategy::kStrictPack && !plan.beside.empty() && !taken) continue;
    nodes.emplace_back(node.capacity.Share(), slot);
  }
  std::sort(nodes.begin(), nodes.end());
  const int rounds = strategy == PlacementStrategy::kSpread ? 2 : 1;
  for (int round = 0; round < rounds && plan.placed < pieces.size(); ++round) {
    for (const auto& [share, slot] : nodes) {
      if (plan.placed == pieces.size()) break;
      const bool one = strategy == PlacementStrategy::kStrictSpread ||
                       (strategy == PlacementStrategy::kSpread && round == 0);
      PlanOnNode(pieces, slot, waiter.order, how, one, plan);
      if (strategy != PlacementStrategy::kStrictPack || plan.placed == pieces.size()) continue;
      for (Piece& piece : pieces) piece.node = kNone;
      plan.placed = 0;
    }
  }
  return plan;
}

void Scheduler::Impl::PlanOnNode(std::vector<Piece>& pieces, uint32_t slot, Order order,
                                 PlanFor how, bool one, Plan& plan) const {
  const Node& node = cluster_.nodes[slot];
  const bool idle = how != PlanFor::kNow;
  Capacity& free =
      plan.after.try_emplace(slot, idle ? Idle(node.capacity) : node.capacity).first->second;
  uint32_t failed = kNone;
  for (Piece& piece : pieces) {
    if (piece.node != kNone || piece.shape == failed) continue;
    const Shape& shape = shapes_[piece.shape];
    const bool fits = shape.Accepts(node) &&
                      (idle ? free.Fits(shape.need) : node.hold.Allows(free, shape.need, order));
    if (!fits) {
      failed = piece.shape;
      continue;
    }
    free.Take(shape.need);
    piece.node = slot;
    ++plan.placed;
    if (one) return;
  }
}

bool Scheduler::Impl::PromiseBatch(Promise promise) {
  std::vector<Piece> pieces = PiecesOf(promise.owner);
  SortLargestFirst(pieces);
  const Plan plan = PlanBatch(pieces, promise.owner, PlanFor::kPromise);
  if (plan.placed < AtLeastOf(promise.owner, pieces.size())) return false;
  HoldPlan(std::move(promise), pieces);
  return true;
}

void Scheduler::Impl::HoldPlan(Promise promise, const std::vector<Piece>& pieces) {
  std::map<uint32_t, std::vector<Need>> needs;
  for (const Piece& piece : pieces) {
    if (piece.node == kNone) continue;
    promise.plan.push_back(piece);
    needs[piece.node].push_back(shapes_[piece.shape].need);
  }
  for (const auto& [slot, list] : needs) {
    Node& node = cluster_.nodes[slot];
    Capacity idle = Idle(node.capacity);
    Need sum;
    uint64_t devices = 0;
    for (const Need& need : list) {
      sum.Add(need);
      devices |= idle.Take(need);
    }
    // Several shares are kept as the devices that they are on.
    if (list.size() > 1) sum.gpu = __builtin_popcountll(devices) * kOne;
    node.hold = Hold{true, promise.owner.order, sum};
    cluster_.Changed(slot);
    promise.places.push_back({slot, {}});
  }
  promises_.emplace(promise.owner.order, std::move(promise));
}

// What was kept is for all again.
void Scheduler::Impl::DropPromise(Order order) {
  const auto found = promises_.find(order);
  if (found == promises_.end()) return;
  const Promise promise = std::move(found->second);
  promises_.erase(found);
  for (const HeldPlace& place : promise.places) {
    if (place.bundle.group == kNone) {
      cluster_.nodes[place.node].hold = Hold{};
      NodeChanged(place.node);
    } else {
      groups_[place.bundle.group].bundles.at(place.bundle.number).hold = Hold{};
      BundlesChanged(place.bundle.group);
    }
  }
  LookForPromises();
}

// Another place at once when what waits or a place has changed, so that nobody slips in between.
void Scheduler::Impl::RenewPromise(Order order) {
  const auto found = promises_.find(order);
  if (found == promises_.end()) return;
  const Waiter owner = found->second.owner;
  const uint32_t lease = found->second.lease;
  DropPromise(order);
  const bool single = owner.kind == WaiterKind::kShape;
  if (!single && PiecesOf(owner).empty()) return;
  if (MakePromise(owner) && single) promises_.at(order).lease = lease;
}

// There may be a place now for those for whom there was none.
void Scheduler::Impl::LookForPromises() {
  hopeless_.clear();
  check_promises_at_ = std::min(check_promises_at_, now_);
}

}  // namespace troupe
