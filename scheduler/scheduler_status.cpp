// How things stand, by id.
#include "scheduler/scheduler_status.h"

#include <algorithm>
#include <map>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

template <class T>
void SortById(std::vector<T>& list) {
  std::sort(list.begin(), list.end(), [](const T& a, const T& b) { return a.id < b.id; });
}

}  // namespace

std::string_view sched::LeaseStateName(LeaseState state) {
  switch (state) {
    case LeaseState::kPending:
      return "pending";
    case LeaseState::kGranted:
      return "granted";
    case LeaseState::kConfirmed:
      return "confirmed";
  }
  return "unknown";
}

std::string_view sched::GroupStateName(GroupState state) {
  switch (state) {
    case GroupState::kPending:
      return "pending";
    case GroupState::kPlaced:
      return "placed";
    case GroupState::kResizing:
      return "resizing";
    case GroupState::kRescheduling:
      return "rescheduling";
    case GroupState::kRemoved:
      return "removed";
  }
  return "unknown";
}

std::vector<NodeStatus> Scheduler::Impl::Nodes() const {
  std::vector<NodeStatus> list;
  for (uint32_t slot = 0; slot < cluster_.nodes.slots(); ++slot) {
    if (!cluster_.nodes.Has(slot)) continue;
    const Node& node = cluster_.nodes[slot];
    NodeStatus status;
    status.id = node.id;
    status.total = cluster_.names.ToResources(node.capacity.total());
    status.used = cluster_.names.ToResources(node.capacity.used());
    for (const Capacity::Device& device : node.capacity.devices()) {
      status.devices_free.push_back(static_cast<double>(device.free) / kOne);
    }
    status.labels = node.labels;
    status.alive = node.alive;
    status.draining = node.draining;
    status.drain_deadline = node.drain_deadline;
    status.aside_until = node.aside ? node.aside_until : Time{};
    status.leases = node.lease_count;
    for (const BundleRef& ref : node.bundles) {
      status.leases += groups_[ref.group].bundles.at(ref.number).lease_count;
    }
    list.push_back(std::move(status));
  }
  SortById(list);
  return list;
}

LeaseStatus Scheduler::Impl::StatusOf(const Lease& lease) const {
  const Shape& shape = shapes_[lease.shape];
  LeaseStatus status;
  status.id = lease.id;
  status.state = lease.state;
  status.priority = lease.priority;
  status.since = lease.since;
  if (lease.node != kNone) status.node = cluster_.nodes[lease.node].id;
  status.devices = DevicesOf(lease.devices, shape.need.gpu);
  if (shape.group != kNone) status.group = groups_[shape.group].id;
  status.bundle = lease.bundle == kNone ? shape.bundle : static_cast<int>(lease.bundle);
  status.resources = cluster_.names.ToResources(shape.need);
  return status;
}

std::vector<LeaseStatus> Scheduler::Impl::Leases() const {
  std::vector<LeaseStatus> list;
  // Those of one shape, and of one gang, wait for one reason, which costs a look at every node.
  std::map<std::pair<uint32_t, uint32_t>, Why> known;
  for (uint32_t slot = 0; slot < leases_.slots(); ++slot) {
    if (!leases_.Has(slot)) continue;
    const Lease& lease = leases_[slot];
    LeaseStatus status = StatusOf(lease);
    if (lease.state == LeaseState::kPending) {
      const auto [it, is_new] = known.try_emplace({lease.shape, lease.gang});
      if (is_new) it->second = WhyLease(lease);
      status.reason = Behind(lease) + it->second.text;
      status.impossible = it->second.impossible;
    }
    list.push_back(std::move(status));
  }
  SortById(list);
  return list;
}

std::optional<LeaseStatus> Scheduler::Impl::FindLease(const std::string& id) const {
  const uint32_t slot = leases_.Find(id);
  if (slot == kNone) return std::nullopt;
  const Lease& lease = leases_[slot];
  LeaseStatus status = StatusOf(lease);
  if (lease.state != LeaseState::kPending) return status;
  const Why why = WhyLease(lease);
  status.reason = Behind(lease) + why.text;
  status.impossible = why.impossible;
  return status;
}

GroupStatus Scheduler::Impl::StatusOf(const Group& group) const {
  GroupStatus status;
  status.id = group.id;
  status.state = StateOf(group);
  status.priority = group.priority;
  const GroupChange places = Describe(group, status.state);
  size_t i = 0;
  for (const auto& [number, bundle] : group.bundles) {
    status.bundles.push_back(
        {places.bundles[i++], cluster_.names.ToResources(shapes_[bundle.shape].need),
         cluster_.names.ToResources(bundle.capacity.used()), bundle.lease_count});
  }
  const Why why = WhyGroup(group);
  status.reason = why.text;
  status.impossible = why.impossible;
  return status;
}

std::vector<GroupStatus> Scheduler::Impl::Groups() const {
  std::vector<GroupStatus> list;
  for (uint32_t slot = 0; slot < groups_.slots(); ++slot) {
    if (groups_.Has(slot)) list.push_back(StatusOf(groups_[slot]));
  }
  SortById(list);
  return list;
}

std::optional<GroupStatus> Scheduler::Impl::FindGroup(const std::string& id) const {
  const uint32_t slot = groups_.Find(id);
  if (slot == kNone) return std::nullopt;
  return StatusOf(groups_[slot]);
}

std::vector<PromiseStatus> Scheduler::Impl::Promises() const {
  std::vector<PromiseStatus> list;
  for (const auto& [order, promise] : promises_) {
    for (const HeldPlace& place : promise.places) {
      PromiseStatus status;
      const Waiter& owner = promise.owner;
      if (owner.kind == WaiterKind::kGroup) {
        status.group = groups_[owner.id].id;
      } else {
        status.lease = leases_[promise.lease].id;
      }
      status.priority = static_cast<int>(-order.neg_priority);
      status.node = cluster_.nodes[place.node].id;
      const Hold* hold = &cluster_.nodes[place.node].hold;
      if (place.bundle.group != kNone) {
        status.in_group = groups_[place.bundle.group].id;
        status.bundle = static_cast<int>(place.bundle.number);
        hold = &groups_[place.bundle.group].bundles.at(place.bundle.number).hold;
      }
      status.resources = cluster_.names.ToResources(hold->need);
      list.push_back(std::move(status));
    }
  }
  return list;
}

std::vector<std::string> Scheduler::Impl::WaitingForRoom(size_t limit) const {
  std::vector<std::string> list;
  if (now_ < recover_until_) return list;
  size_t looked = 0;  // A reason costs a look at every node.
  for (auto it = waiters_.begin(); it != waiters_.end() && looked < limit; ++it, ++looked) {
    const bool group = it->kind == WaiterKind::kGroup;
    const Why why = group ? WhyGroup(groups_[it->id]) : WhyLease(leases_[FirstOf(*it)]);
    if (!why.impossible) list.push_back(group ? groups_[it->id].id : leases_[FirstOf(*it)].id);
  }
  return list;
}

}  // namespace troupe
