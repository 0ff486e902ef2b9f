// Why something waits, for people: the nearest misses first.
#include <algorithm>
#include <sstream>
#include <tuple>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

constexpr size_t kNodesInReasonMax = 3;
constexpr double kWrongLabels = 1e6;  // Farther than any lack of room.

std::string Show(const std::string& name, int64_t units) {
  return ShowAmount(name, static_cast<double>(units) / kResourceUnitsPerOne);
}

void AddMiss(std::string& text, const std::string& name, int64_t wanted, int64_t free,
             int64_t total) {
  if (wanted <= free) return;
  if (!text.empty()) text += " and ";
  if (total == 0) {
    text += "has no " + name;
  } else if (wanted > total) {
    text += "has " + name + " " + Show(name, total) + " in all";
  } else {
    text += "lacks " + name + " " + Show(name, wanted - free) + " (" + Show(name, free) + " of " +
            Show(name, total) + " free)";
  }
}

}  // namespace

// What keeps `need` off: "lacks CPU 1.5 (0.5 of 4 free)", "has no GPU".
std::string Scheduler::Impl::Obstacle(const Capacity& capacity, const Need& need) const {
  const Need& total = capacity.total();
  const Need& used = capacity.used();
  std::string text;
  AddMiss(text, "CPU", need.cpu, capacity.free_cpu(), total.cpu);
  AddMiss(text, "memory", need.memory, total.memory - used.memory, total.memory);
  AddMiss(text, "GPU", need.devices() * kOne, capacity.free_devices() * kOne, total.gpu);
  if (need.fraction() > capacity.best_fraction()) {
    if (!text.empty()) text += " and ";
    text += total.gpu == 0 ? "has no GPU"
                           : "has no GPU with " + Show("GPU", need.fraction()) + " free (at most " +
                                 Show("GPU", capacity.best_fraction()) + " on one)";
  }
  for (const Amount& amount : need.custom) {
    const int64_t all = total.Custom(amount.name);
    AddMiss(text, cluster_.names.NameOf(amount.name), amount.units, all - used.Custom(amount.name),
            all);
  }
  return text;
}

std::string Scheduler::Impl::Needs(const Shape& shape) const {
  std::string text = "needs " + cluster_.names.ToResources(shape.need).ToString();
  if (shape.node_only) text += " on node " + shape.node;
  for (size_t i = 0; i < shape.accepted.size() && !shape.accepted[i].empty(); ++i) {
    text += (i == 0 ? " with " : " or ") + shape.accepted[i].text();
  }
  return text;
}

uint32_t Scheduler::Impl::FirstOf(const Waiter& waiter) const {
  return waiter.kind == WaiterKind::kGang ? *gangs_.at(waiter.id).waiting.begin()
                                          : shapes_[waiter.id].waiting.begin()->second;
}

std::string Scheduler::Impl::NameOf(Order order) const {
  const auto found = promises_.find(order);
  if (found == promises_.end()) return "another";
  const Waiter& owner = found->second.owner;
  const std::string priority = " (priority " + std::to_string(-order.neg_priority) + ")";
  if (owner.kind == WaiterKind::kGroup) return "group " + groups_[owner.id].id + priority;
  return leases_[found->second.lease].id + priority;
}

std::string Scheduler::Impl::NotUsable(const Node& node) {
  if (!node.alive) return "is not heard";
  if (node.draining) return "is draining";
  return node.aside ? "is quarantined: a grant was not confirmed there" : "";
}

// Why one more of this shape finds no node once `plan` is carried out, whose nodes may not be used
// again if pieces are to be apart.
Scheduler::Impl::Why Scheduler::Impl::WhyNode(const Shape& shape, Order order, const Plan& plan,
                                              bool apart) const {
  std::vector<std::tuple<double, std::string, std::string>> misses;
  std::map<std::string, size_t> unusable;
  bool possible = false;
  for (uint32_t slot = 0; slot < cluster_.nodes.slots(); ++slot) {
    if (!cluster_.nodes.Has(slot)) continue;
    const Node& node = cluster_.nodes[slot];
    const bool accepted = shape.Accepts(node);
    const auto planned = plan.after.find(slot);
    const Capacity& capacity = planned == plan.after.end() ? node.capacity : planned->second;
    const bool is_taken =
        apart && (plan.beside.contains(slot) || !(capacity.used() == node.capacity.used()));
    possible = possible || (accepted && node.capacity.FitsWhenIdle(shape.need));
    const std::string not_usable = NotUsable(node);
    if (!not_usable.empty()) {
      ++unusable[not_usable];
      continue;
    }
    double distance = capacity.Distance(shape.need);
    std::string obstacle = Obstacle(capacity, shape.need);
    if (!accepted) {
      distance += kWrongLabels;
      const bool labels = !shape.node_only || node.id == shape.node;
      obstacle = labels ? "has not " + shape.accepted[0].Unmet(node.labels) : "is another node";
    } else if (is_taken) {
      obstacle = "already holds one of these";
    } else if (obstacle.empty() && node.hold.on && node.hold.by < order) {
      obstacle = "is promised: it waits behind " + NameOf(node.hold.by);
    }
    if (obstacle.empty()) obstacle = "has room";
    misses.emplace_back(distance, node.id, std::move(obstacle));
  }
  std::sort(misses.begin(), misses.end());
  std::string text = Needs(shape);
  if (misses.empty()) text += "; no node is available";
  for (size_t i = 0; i < std::min(misses.size(), kNodesInReasonMax); ++i) {
    text += i == 0 && misses.size() > 1 ? "; best node " : "; node ";
    text += std::get<1>(misses[i]) + " " + std::get<2>(misses[i]);
  }
  if (misses.size() > kNodesInReasonMax) {
    text += "; " + std::to_string(misses.size() - kNodesInReasonMax) + " more nodes do not fit";
  }
  for (const auto& [why, count] : unusable) {
    text += "; " + std::to_string(count) + (count == 1 ? " node " : " nodes, each ") + why;
  }
  return {text, !possible};
}

Scheduler::Impl::Why Scheduler::Impl::WhyBundle(const Shape& shape, Order order) const {
  const Group& group = groups_[shape.group];
  const std::string name = "placement group " + group.id;
  std::string nearest;
  double distance = 0;
  bool possible = false;
  for (const auto& [number, bundle] : group.bundles) {
    if (shape.bundle != kAnyBundle && shape.bundle != static_cast<int>(number)) continue;
    const Need& total = shapes_[bundle.shape].need;
    possible = possible || Capacity(total, ~uint64_t{0}).FitsWhenIdle(shape.need);
    if (bundle.node == kNone) {
      const Why why = WhyGroup(group);
      return {name + " is " + std::string(GroupStateName(StateOf(group))) + ": " + why.text,
              why.impossible};
    }
    const Node& node = cluster_.nodes[bundle.node];
    const double here = bundle.capacity.Distance(shape.need);
    if (!nearest.empty() && here >= distance) continue;
    distance = here;
    std::string obstacle = Obstacle(bundle.capacity, shape.need);
    if (!node.usable()) obstacle = "is on node " + node.id + ", which " + NotUsable(node);
    if (obstacle.empty() && bundle.hold.on && bundle.hold.by < order) {
      obstacle = "is promised: it waits behind " + NameOf(bundle.hold.by);
    }
    nearest = "bundle " + std::to_string(number) + " " + obstacle;
  }
  if (nearest.empty()) nearest = "it has no bundle";
  return {std::string(possible ? "busy: " : "impossible in the present bundles: ") + Needs(shape) +
              " of " + name + "; " + nearest,
          !possible};
}

// Of bundles or of a gang's members: how far a try gets, and why the next finds no place.
Scheduler::Impl::Why Scheduler::Impl::WhyBatch(const Waiter& waiter) const {
  std::vector<Piece> pieces = PiecesOf(waiter);
  if (pieces.empty()) return {};
  SortLargestFirst(pieces);
  const size_t enough = AtLeastOf(waiter, pieces.size());
  Pieces idle = pieces;
  const bool impossible = PlanBatch(idle, waiter, PlanFor::kIdle).placed < enough;
  std::string text = impossible ? "impossible on the present nodes: " : "busy: ";
  const PlacementStrategy strategy = StrategyOf(waiter);
  const Plan plan = PlanBatch(pieces, waiter, PlanFor::kNow);
  if (strategy == PlacementStrategy::kStrictPack) {
    Shape together = shapes_[pieces[0].shape];
    for (size_t i = 1; i < pieces.size(); ++i) together.need.Add(shapes_[pieces[i].shape].need);
    if (!plan.beside.empty()) {
      together.node_only = true;
      together.node = cluster_.nodes[*plan.beside.begin()].id;
    }
    text += "all " + std::to_string(pieces.size()) + " together on one node: ";
    return {text + WhyNode(together, waiter.order, {}, false).text, impossible};
  }
  const auto next = std::find_if(pieces.begin(), pieces.end(),
                                 [](const Piece& piece) { return piece.node == kNone; });
  if (next == pieces.end()) return {"it is about to be placed", false};
  const bool apart = strategy == PlacementStrategy::kStrictSpread;
  text += "only " + std::to_string(plan.placed) + " of " + std::to_string(pieces.size()) +
          (apart ? " fit on a node each; the next " : " fit; the next ");
  return {text + WhyNode(shapes_[next->shape], waiter.order, plan, apart).text, impossible};
}

Scheduler::Impl::Why Scheduler::Impl::Recovering() const {
  std::ostringstream text;
  text.precision(3);
  text << "recovering: nothing new is placed until what runs is claimed, for "
       << ToSeconds(recover_until_ - now_) << " s at most";
  return {text.str(), false};
}

Scheduler::Impl::Why Scheduler::Impl::WhyGroup(const Group& group) const {
  const uint32_t slot = groups_.Find(group.id);
  if (group.waiting > 0 && now_ < recover_until_) return Recovering();
  return group.waiting == 0 ? Why{} : WhyBatch({group.order(), WaiterKind::kGroup, slot});
}

Scheduler::Impl::Why Scheduler::Impl::WhyLease(const Lease& lease) const {
  if (lease.state != LeaseState::kPending) return {};
  if (now_ < recover_until_) return Recovering();
  if (lease.gang != kNone) {
    return WhyBatch({gangs_.at(lease.gang).order(), WaiterKind::kGang, lease.gang});
  }
  const Shape& shape = shapes_[lease.shape];
  if (shape.group != kNone) return WhyBundle(shape, lease.order());
  Why why = WhyNode(shape, lease.order(), {}, false);
  why.text = (why.impossible ? "impossible on any present node: " : "busy: ") + why.text;
  return why;
}

// Which one of its like it waits for, if it is not the first.
std::string Scheduler::Impl::Behind(const Lease& lease) const {
  const Shape& shape = shapes_[lease.shape];
  if (shape.waiting.empty() || shape.waiting.begin()->first >= lease.order()) return "";
  const Lease& first = leases_[shape.waiting.begin()->second];
  return "waits behind " + first.id + " (priority " + std::to_string(first.priority) + "); ";
}

}  // namespace troupe
