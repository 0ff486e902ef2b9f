// After a restart: what runs already is taken as granted, if that is possible.
#include <algorithm>
#include <utility>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

uint64_t MaskOf(const std::vector<uint32_t>& devices) {
  uint64_t mask = 0;
  for (const uint32_t device : devices) {
    if (device < kDevicesMax) mask |= uint64_t{1} << device;
  }
  return mask;
}

}  // namespace

// Books what the claim says for a lease that waits.
Status Scheduler::Impl::TakeClaim(const Claim& claim, uint32_t slot) {
  const uint32_t node = cluster_.nodes.Find(claim.node);
  if (node == kNone) {
    return Error{ErrorCode::kNotFound, "there is no node \"" + claim.node + "\""};
  }
  const Shape& shape = shapes_[leases_[slot].shape];
  const uint64_t devices = MaskOf(claim.devices);
  const Error full{ErrorCode::kResourceExhausted,
                   "node \"" + claim.node + "\" has not got " +
                       cluster_.names.ToResources(shape.need).ToString() +
                       " left on the devices that were named"};
  uint32_t number = kNone;
  if (shape.group == kNone) {
    if (!cluster_.nodes[node].capacity.ClaimOn(shape.need, devices)) return full;
  } else {
    Group& group = groups_[shape.group];
    const int wanted = shape.bundle == kAnyBundle ? claim.bundle : shape.bundle;
    number = static_cast<uint32_t>(wanted);
    const auto bundle = group.bundles.find(number);
    if (wanted < 0 || bundle == group.bundles.end() || bundle->second.node != node) {
      return Error{ErrorCode::kConflict, "bundle " + std::to_string(wanted) +
                                             " of placement group \"" + group.id +
                                             "\" is not on node \"" + claim.node + "\""};
    }
    if (!bundle->second.capacity.ClaimOn(shape.need, devices)) return full;
  }
  Settle(slot, node, number, devices);
  leases_[slot].state = LeaseState::kConfirmed;
  if (cluster_.nodes[node].draining) TellDrain(slot);
  return Status::Ok();
}

void Scheduler::Impl::On(const Claim& event) {
  const LeaseRequest& request = event.lease;
  uint32_t slot = leases_.Find(request.id);
  const bool known = slot != kNone;
  if (known && leases_[slot].state != LeaseState::kPending) {
    const Lease& lease = leases_[slot];
    const std::string& node = cluster_.nodes[lease.node].id;
    if (node != event.node || lease.devices != MaskOf(event.devices)) {
      return Refuse(request.id, ErrorCode::kFenced,
                    "lease \"" + request.id + "\" is granted to node \"" + node +
                        "\" on other devices or another node; its process on node \"" + event.node +
                        "\" must end");
    }
    On(Confirm{request.id, event.node});
    return TellGranted(slot);
  }
  if (!known) {
    const Status status = Check(request);
    if (!status.ok()) return Refuse(request.id, status.error().code, status.error().message);
    slot = AddLease(request);
    Enqueue(slot);
  } else if (shapes_[leases_[slot].shape].id != ShapeKey(request)) {
    return Refuse(request.id, ErrorCode::kAlreadyExists,
                  "there is another lease \"" + request.id + "\"; ids must differ");
  }
  const Status taken = TakeClaim(event, slot);
  if (taken.ok()) return TellGranted(slot);
  if (!known) End(slot);
  Refuse(request.id, taken.error().code, taken.error().message + "; its process must end");
}

// Places the bundles that are not placed where the claim says, as far as that is possible.
void Scheduler::Impl::PlaceClaimed(uint32_t slot, const ClaimGroup& event) {
  Group& group = groups_[slot];
  for (const ClaimGroup::Bundle& claimed : event.bundles) {
    const auto found = group.bundles.find(claimed.number);
    const uint32_t node = cluster_.nodes.Find(claimed.node);
    if (found == group.bundles.end() || found->second.node != kNone || node == kNone) continue;
    const uint64_t devices = MaskOf(claimed.devices);
    const Shape& shape = shapes_[found->second.shape];
    if (!cluster_.nodes[node].capacity.TakeOn(shape.need, devices)) continue;
    cluster_.Changed(node);
    PlaceBundle(slot, claimed.number, node, devices);
  }
  RenewPromise(group.order());
  if (group.waiting == 0) SetWaiter({group.order(), WaiterKind::kGroup, slot}, false, false);
}

void Scheduler::Impl::On(const ClaimGroup& event) {
  uint32_t slot = groups_.Find(event.group);
  if (slot != kNone) {
    const uint32_t waiting = groups_[slot].waiting;
    PlaceClaimed(slot, event);
    if (groups_[slot].waiting != waiting) changed_groups_.try_emplace(slot, "claimed");
    return;
  }
  std::vector<BundleSpec> specs;
  bool placed = false;
  uint32_t next = event.next_bundle;
  for (const ClaimGroup::Bundle& bundle : event.bundles) {
    specs.push_back(bundle.spec);
    placed = placed || !bundle.node.empty();
    next = std::max(next, bundle.number + 1);
  }
  const Status status = CheckGroup(event.group, specs);
  if (!status.ok()) return Refuse(event.group, status.error().code, status.error().message);
  slot = AddGroup(event.group, event.strategy, event.priority);
  Group& group = groups_[slot];
  group.resized = event.resized;
  group.next_bundle = next;
  group.was_placed = placed;
  for (const ClaimGroup::Bundle& bundle : event.bundles) {
    if (group.bundles.contains(bundle.number)) continue;
    AddBundle(slot, bundle.number, bundle.spec, placed && !bundle.node.empty() ? 0 : 1);
  }
  GroupWaits(slot);
  PlaceClaimed(slot, event);
  changed_groups_.try_emplace(slot, "claimed");
}

}  // namespace troupe
