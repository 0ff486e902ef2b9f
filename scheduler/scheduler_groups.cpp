// Placement groups: bundles that are reserved together, and resized in place.
#include <algorithm>
#include <utility>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

constexpr uint64_t kLostBatch = 0;  // Bundles that a node took with it; they are placed first.
constexpr uint64_t kFirstBatch = 1;

}  // namespace

GroupState Scheduler::Impl::StateOf(const Group& group) {
  if (group.waiting == 0) return GroupState::kPlaced;
  if (!group.was_placed) return GroupState::kPending;
  const bool lost = std::any_of(group.bundles.begin(), group.bundles.end(), [](const auto& entry) {
    return entry.second.node == kNone && entry.second.batch == kLostBatch;
  });
  return lost ? GroupState::kRescheduling : GroupState::kResizing;
}

GroupChange Scheduler::Impl::Describe(const Group& group, GroupState state) const {
  GroupChange change{group.id, state, "", {}};
  for (const auto& [number, bundle] : group.bundles) {
    const bool placed = bundle.node != kNone;
    change.bundles.push_back({number, placed ? cluster_.nodes[bundle.node].id : "",
                              DevicesOf(bundle.devices, shapes_[bundle.shape].need.gpu)});
  }
  return change;
}

Status Scheduler::Impl::CheckGroup(const std::string& id,
                                   const std::vector<BundleSpec>& bundles) const {
  if (id.empty() || id.size() > kSchedulerIdBytesMax) {
    return Error{ErrorCode::kInvalidArgument, "a placement group's id has 1 to " +
                                                  std::to_string(kSchedulerIdBytesMax) + " bytes"};
  }
  if (groups_.size() >= kSchedulerGroupsMax) {
    return Error{ErrorCode::kResourceExhausted, "there are " + std::to_string(kSchedulerGroupsMax) +
                                                    " placement groups, the limit"};
  }
  if (shapes_.size() + bundles.size() > kSchedulerShapesMax) {
    return Error{ErrorCode::kResourceExhausted, "there are " + std::to_string(kSchedulerShapesMax) +
                                                    " different kinds of requests, the limit"};
  }
  if (bundles.size() > kBundlesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "a placement group has at most " + std::to_string(kBundlesMax) + " bundles"};
  }
  for (const BundleSpec& bundle : bundles) {
    Status status = CheckResources(bundle.resources);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

uint32_t Scheduler::Impl::AddGroup(const std::string& id, PlacementStrategy strategy,
                                   int priority) {
  Group group;
  group.id = id;
  group.strategy = strategy;
  group.priority = priority;
  group.number = ++last_number_;
  return groups_.Add(std::move(group));
}

void Scheduler::Impl::AddBundle(uint32_t slot, uint32_t number, const BundleSpec& spec,
                                uint64_t batch) {
  LeaseRequest request;  // A bundle is found a place like any request.
  request.resources = spec.resources;
  request.labels = spec.labels;
  Bundle bundle;
  bundle.shape = UseShape(request);
  bundle.batch = batch;
  groups_[slot].bundles.emplace(number, std::move(bundle));
  ++groups_[slot].waiting;
}

// Some of its bundles wait.
void Scheduler::Impl::GroupWaits(uint32_t slot) {
  Group& group = groups_[slot];
  group.since = now_;
  check_promises_at_ = std::min(check_promises_at_, now_ + options_.starvation_after);
  SetWaiter({group.order(), WaiterKind::kGroup, slot}, group.waiting > 0, true);
}

// A bundle has room that it had not: those who wait for one are looked at.
void Scheduler::Impl::BundlesChanged(uint32_t slot) {
  for (const uint32_t shape : groups_[slot].shapes) {
    if (shapes_[shape].head) fresh_.insert(*shapes_[shape].head);
  }
}

// What was booked on the node is the bundle's.
void Scheduler::Impl::PlaceBundle(uint32_t slot, uint32_t number, uint32_t node, uint64_t devices) {
  Group& group = groups_[slot];
  Bundle& bundle = group.bundles.at(number);
  bundle.node = node;
  bundle.devices = devices;
  bundle.capacity = Capacity(shapes_[bundle.shape].need, devices);
  cluster_.nodes[node].bundles.push_back({slot, number});
  --group.waiting;
  group.was_placed = true;
  group.open = std::min(group.open, number);
  BundlesChanged(slot);
  LookForPromises();
}

// Takes a bundle off its node. Those that run in it are over; those that were only granted wait
// again, unless the bundle goes for good.
void Scheduler::Impl::UnplaceBundle(uint32_t slot, uint32_t number, const std::string& reason,
                                    bool for_good) {
  Bundle& bundle = groups_[slot].bundles.at(number);
  while (bundle.leases != kNone) {
    const bool ran = leases_[bundle.leases].state == LeaseState::kConfirmed;
    Revoke(bundle.leases, reason, !ran && !for_good);
  }
  if (bundle.hold.on) DropPromise(bundle.hold.by);
  std::erase_if(cluster_.nodes[bundle.node].bundles,
                [&](const BundleRef& ref) { return ref.group == slot && ref.number == number; });
  cluster_.nodes[bundle.node].capacity.Give(shapes_[bundle.shape].need, bundle.devices);
  NodeChanged(bundle.node);
  bundle.node = kNone;
  bundle.devices = 0;
  bundle.capacity = Capacity();
  bundle.batch = kLostBatch;
  ++groups_[slot].waiting;
}

void Scheduler::Impl::RemoveBundle(uint32_t slot, uint32_t number, const std::string& reason) {
  Group& group = groups_[slot];
  if (group.bundles.at(number).node != kNone) UnplaceBundle(slot, number, reason, true);
  const std::vector<uint32_t> shapes = group.shapes;
  for (const uint32_t shape : shapes) {
    if (shapes_[shape].bundle == static_cast<int>(number)) RevokeWaiting(shape, reason);
  }
  LeaveShape(group.bundles.at(number).shape);
  group.bundles.erase(number);
  --group.waiting;
}

void Scheduler::Impl::RevokeWaiting(uint32_t slot, const std::string& reason) {
  while (shapes_.Has(slot) && !shapes_[slot].waiting.empty()) {
    Revoke(shapes_[slot].waiting.begin()->second, reason, false);
  }
}

// Those that no bundle holds any more.
void Scheduler::Impl::RevokeUnfit(uint32_t slot) {
  const std::vector<uint32_t> shapes = groups_[slot].shapes;
  for (const uint32_t shape : shapes) {
    if (shapes_[shape].waiting.empty()) continue;
    const Status fits = CheckBundles(groups_[slot], cluster_.names.ToResources(shapes_[shape].need),
                                     shapes_[shape].bundle);
    if (!fits.ok()) RevokeWaiting(shape, fits.error().message);
  }
}

// ---- placing ----

void Scheduler::Impl::ServeGroup(uint32_t slot, bool try_all) {
  Group& group = groups_[slot];
  std::map<uint64_t, std::vector<Piece>> batches;
  for (const auto& [number, bundle] : group.bundles) {
    if (bundle.node == kNone) batches[bundle.batch].push_back({bundle.shape, number, kNone, 0});
  }
  for (auto& [batch, pieces] : batches) {
    if (!try_all && !MayHelp(pieces, group.order())) continue;
    std::vector<uint32_t> beside = NodesOf({group.order(), WaiterKind::kGroup, slot});
    const size_t all = pieces.size();
    if (PlaceBatch(pieces, group.strategy, all, std::move(beside), group.order()) == 0) continue;
    for (const Piece& piece : pieces) PlaceBundle(slot, piece.item, piece.node, piece.devices);
    changed_groups_.try_emplace(slot, "");
    RenewPromise(group.order());
  }
  if (group.waiting == 0) SetWaiter({group.order(), WaiterKind::kGroup, slot}, false, false);
}

// ---- events ----

void Scheduler::Impl::On(const CreateGroup& event) {
  std::string contents =
      std::string(PlacementStrategyName(event.strategy)) + " " + std::to_string(event.priority);
  for (const BundleSpec& bundle : event.bundles) {
    LeaseRequest request;
    request.resources = bundle.resources;
    request.labels = bundle.labels;
    contents += "\n\n" + ShapeKey(request);
  }
  const uint32_t known = groups_.Find(event.group);
  if (known != kNone) {
    // Of one that was claimed nobody knows how it began.
    if (!groups_[known].created.empty() && groups_[known].created != contents) {
      Refuse(event.group, ErrorCode::kAlreadyExists,
             "there is another placement group \"" + event.group + "\"; ids must differ");
    } else {
      changed_groups_.try_emplace(known, "");
    }
    return;
  }
  Status status = CheckGroup(event.group, event.bundles);
  if (status.ok() && event.bundles.empty()) {
    status = Error{ErrorCode::kInvalidArgument, "a placement group has at least one bundle"};
  }
  if (!status.ok()) return Refuse(event.group, status.error().code, status.error().message);
  const uint32_t slot = AddGroup(event.group, event.strategy, event.priority);
  groups_[slot].created = std::move(contents);
  for (const BundleSpec& spec : event.bundles) {
    AddBundle(slot, groups_[slot].next_bundle++, spec, kFirstBatch);
  }
  GroupWaits(slot);
  changed_groups_.try_emplace(slot, "");
}

void Scheduler::Impl::On(const ResizeGroup& event) {
  const uint32_t slot = groups_.Find(event.group);
  if (slot == kNone) {
    return Refuse(event.group, ErrorCode::kNotFound,
                  "there is no placement group \"" + event.group + "\"");
  }
  Group& group = groups_[slot];
  if (event.number <= group.resized) {
    changed_groups_.try_emplace(slot, "");
    return;
  }
  Status status = CheckGroup(event.group, event.add);
  if (status.ok() && group.bundles.size() + event.add.size() > kBundlesMax) {
    status = Error{ErrorCode::kInvalidArgument,
                   "a placement group has at most " + std::to_string(kBundlesMax) + " bundles"};
  }
  if (!status.ok()) return Refuse(event.group, status.error().code, status.error().message);
  group.resized = event.number;
  for (const uint32_t number : event.remove) {
    if (!group.bundles.contains(number)) continue;
    RemoveBundle(
        slot, number,
        "bundle " + std::to_string(number) + " of placement group " + group.id + " was removed");
  }
  // What nothing has been placed of is still one whole.
  const uint64_t batch = group.was_placed ? kFirstBatch + event.number : kFirstBatch;
  for (const BundleSpec& spec : event.add) AddBundle(slot, group.next_bundle++, spec, batch);
  RevokeUnfit(slot);
  RenewPromise(group.order());
  GroupWaits(slot);
  changed_groups_.insert_or_assign(slot, "resized");
}

void Scheduler::Impl::On(const RemoveGroup& event) {
  const uint32_t slot = groups_.Find(event.group);
  if (slot == kNone) return;
  Group& group = groups_[slot];
  const std::string reason = "placement group " + group.id + " was removed";
  DropPromise(group.order());
  SetWaiter({group.order(), WaiterKind::kGroup, slot}, false, false);
  while (!group.bundles.empty()) RemoveBundle(slot, group.bundles.begin()->first, reason);
  const std::vector<uint32_t> shapes = group.shapes;
  for (const uint32_t shape : shapes) RevokeWaiting(shape, reason);
  decision_.groups.push_back(GroupChange{group.id, GroupState::kRemoved, "removed", {}});
  changed_groups_.erase(slot);
  groups_.Remove(slot);
}

}  // namespace troupe
