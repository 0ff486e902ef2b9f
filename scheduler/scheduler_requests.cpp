// Leases from their request to their end, and gangs.
#include <algorithm>
#include <utility>

#include "scheduler/internal/core.h"

namespace troupe {
namespace {

std::string Quoted(const std::string& id) {
  return "\"" + id.substr(0, kSchedulerIdBytesMax) + "\"";
}

// Every amount exactly, which the text for people is not.
std::string UnitsText(const ResourceSet& resources) {
  std::string text;
  text.reserve(64);
  for (const auto& [name, units] : resources.units()) {
    text.append(name).append("=").append(std::to_string(units)).append(",");
  }
  return text;
}

}  // namespace

Status Scheduler::Impl::CheckResources(const ResourceSet& resources) const {
  Status gpu = CheckGpuAmount(resources);
  if (!gpu.ok()) return gpu;
  size_t fresh = 0;
  for (const auto& [name, units] : resources.units()) fresh += cluster_.names.Knows(name) ? 0 : 1;
  if (fresh > 0 && cluster_.names.size() + fresh > kSchedulerResourceNamesMax) {
    return Error{ErrorCode::kResourceExhausted,
                 "more than " + std::to_string(kSchedulerResourceNamesMax) +
                     " names of resources have been used since the scheduler began"};
  }
  return Status::Ok();
}

Status Scheduler::Impl::Check(const LeaseRequest& request) const {
  if (request.id.empty() || request.id.size() > kSchedulerIdBytesMax) {
    return InvalidArgument("a lease's id has 1 to " + std::to_string(kSchedulerIdBytesMax) +
                           " bytes");
  }
  if (leases_.size() >= kSchedulerLeasesMax) {
    return Error{ErrorCode::kResourceExhausted, "there are " + std::to_string(kSchedulerLeasesMax) +
                                                    " leases, the limit; release some first"};
  }
  if (shapes_.size() >= kSchedulerShapesMax) {
    return Error{ErrorCode::kResourceExhausted, "there are " + std::to_string(kSchedulerShapesMax) +
                                                    " different kinds of requests, the limit"};
  }
  if (request.fallback.size() > kFallbacksMax) {
    return InvalidArgument("at most " + std::to_string(kFallbacksMax) +
                           " fallback selectors may be given");
  }
  if (request.node.empty() && request.node_only) {
    return InvalidArgument("node_only is set but no node is named");
  }
  Status resources = CheckResources(request.resources);
  if (!resources.ok() || request.group.empty()) return resources;
  if (!request.node.empty() || !request.labels.empty() || !request.prefer.empty() ||
      !request.fallback.empty()) {
    return InvalidArgument(
        "a request in a placement group runs where its bundle is; give labels to the "
        "bundle and no node");
  }
  const uint32_t group = groups_.Find(request.group);
  if (group == kNone) {
    return Error{ErrorCode::kNotFound, "there is no placement group " + Quoted(request.group)};
  }
  if (request.bundle != kAnyBundle &&
      !groups_[group].bundles.contains(static_cast<uint32_t>(request.bundle))) {
    return Error{ErrorCode::kNotFound, "placement group " + Quoted(request.group) +
                                           " has no bundle " + std::to_string(request.bundle)};
  }
  return CheckBundles(groups_[group], request.resources, request.bundle);
}

// Whether a bundle holds it when nothing else is in it, placed or not.
Status Scheduler::Impl::CheckBundles(const Group& group, const ResourceSet& resources,
                                     int bundle) const {
  std::string held;
  uint32_t last = kNone;  // Most groups have bundles of one shape.
  for (const auto& [number, each] : group.bundles) {
    if (bundle != kAnyBundle && static_cast<int>(number) != bundle) continue;
    if (each.shape == last) continue;
    last = each.shape;
    const ResourceSet all = cluster_.names.ToResources(shapes_[each.shape].need);
    if (all.Covers(resources)) return Status::Ok();
    if (held.empty()) {
      held = "bundle " + std::to_string(number) + " has " + all.ToString() + " in all";
    }
  }
  return Error{ErrorCode::kResourceExhausted,
               "never fits placement group " + Quoted(group.id) + ": needs " +
                   resources.ToString() + "; " +
                   (held.empty() ? "the group has no bundles" : held) +
                   "; ask for less or resize the group first"};
}

// All of a request but id and priority, as text.
std::string Scheduler::Impl::ShapeKey(const LeaseRequest& request) {
  std::string key = UnitsText(request.resources);
  key += static_cast<char>('0' + static_cast<int>(request.strategy));
  if (!request.labels.empty()) key.append("\nlabels ").append(request.labels.text());
  if (!request.prefer.empty()) key.append("\nprefer ").append(request.prefer.text());
  for (const LabelSelector& selector : request.fallback)
    key.append("\nor ").append(selector.text());
  if (!request.node.empty()) {
    key.append(request.node_only ? "\nonly " : "\nnode ").append(request.node);
  }
  if (!request.group.empty()) {
    key.append("\nbundle ")
        .append(std::to_string(request.bundle))
        .append(" ")
        .append(request.group);
  }
  return key;
}

uint32_t Scheduler::Impl::UseShape(const LeaseRequest& request) {
  std::string key = ShapeKey(request);
  uint32_t slot = shapes_.Find(key);
  if (slot == kNone) {
    Shape shape;
    shape.id = std::move(key);
    shape.need = cluster_.names.ToNeed(request.resources);
    for (const Amount& amount : shape.need.custom) shape.custom.push_back(amount.name);
    shape.dims.resize(kFixedDims + shape.custom.size());
    WriteDims(shape.need, shape.dims.data());
    shape.strategy = request.strategy;
    shape.accepted.push_back(request.labels);
    shape.accepted.insert(shape.accepted.end(), request.fallback.begin(), request.fallback.end());
    const auto add = [&](const LabelSelector& labels) {
      shape.alternatives.push_back({labels, Cluster::PoolKey(labels, shape.custom), kNone});
    };
    for (const LabelSelector& labels : shape.accepted) {
      if (!request.prefer.empty()) add(labels.And(request.prefer));
      add(labels);
    }
    shape.node = request.node;
    shape.node_only = request.node_only;
    shape.bundle = request.bundle;
    if (!request.group.empty()) shape.group = groups_.Find(request.group);
    const uint32_t group = shape.group;
    slot = shapes_.Add(std::move(shape));
    if (group != kNone) groups_[group].shapes.push_back(slot);
  }
  ++shapes_[slot].uses;
  return slot;
}

void Scheduler::Impl::LeaveShape(uint32_t slot) {
  Shape& shape = shapes_[slot];
  if (--shape.uses > 0) return;
  if (shape.group != kNone) std::erase(groups_[shape.group].shapes, slot);
  shapes_.Remove(slot);
}

// Whether there is a lease of this id: then this has been answered.
bool Scheduler::Impl::AnswerRepeat(const LeaseRequest& request) {
  const uint32_t slot = leases_.Find(request.id);
  if (slot == kNone) return false;
  const Lease& lease = leases_[slot];
  if (lease.priority != request.priority || shapes_[lease.shape].id != ShapeKey(request)) {
    Refuse(request.id, ErrorCode::kAlreadyExists,
           "there is another lease " + Quoted(request.id) + "; ids must differ");
  } else if (lease.state != LeaseState::kPending) {
    TellGranted(slot);
  }
  return true;
}

uint32_t Scheduler::Impl::AddLease(const LeaseRequest& request) {
  Lease lease;
  lease.id = request.id;
  lease.shape = UseShape(request);
  lease.priority = request.priority;
  lease.number = ++last_number_;
  lease.since = now_;
  return leases_.Add(std::move(lease));
}

// ---- waiting ----

void Scheduler::Impl::Enqueue(uint32_t slot) {
  Lease& lease = leases_[slot];
  lease.state = LeaseState::kPending;
  lease.since = now_;
  check_promises_at_ = std::min(check_promises_at_, now_ + options_.starvation_after);
  if (lease.gang != kNone) {
    Gang& gang = gangs_.at(lease.gang);
    if (gang.waiting.empty()) gang.since = now_;
    gang.waiting.insert(slot);
    SetWaiter({gang.order(), WaiterKind::kGang, lease.gang}, true, true);
    return;
  }
  Shape& shape = shapes_[lease.shape];
  shape.waiting.emplace(lease.order(), slot);
  UpdateHead(lease.shape);
  // It goes before the one that was found to be blocked, so it may have a better right somewhere.
  const bool better_right = !promises_.empty() || shape.group != kNone;
  if (shape.blocked && better_right && shape.head->order == lease.order()) {
    fresh_.insert(*shape.head);
  }
}

void Scheduler::Impl::Dequeue(uint32_t slot) {
  const Lease& lease = leases_[slot];
  if (lease.gang == kNone) {
    shapes_[lease.shape].waiting.erase({lease.order(), slot});
    UpdateHead(lease.shape);
    DropPromise(lease.order());
    return;
  }
  Gang& gang = gangs_.at(lease.gang);
  gang.waiting.erase(slot);
  const Waiter waiter{gang.order(), WaiterKind::kGang, lease.gang};
  RenewPromise(gang.order());
  // One less may be few enough.
  SetWaiter(waiter, !gang.waiting.empty(), true);
}

// ---- granted ----

uint32_t& Scheduler::Impl::ListOf(const Lease& lease) {
  if (lease.bundle == kNone) return cluster_.nodes[lease.node].leases;
  return groups_[shapes_[lease.shape].group].bundles.at(lease.bundle).leases;
}

// The lease holds what was booked for it.
void Scheduler::Impl::Settle(uint32_t slot, uint32_t node, uint32_t bundle, uint64_t devices) {
  Dequeue(slot);
  Lease& lease = leases_[slot];
  lease.node = node;
  lease.bundle = bundle;
  lease.devices = devices;
  lease.since = now_;
  uint32_t& first = ListOf(lease);
  lease.previous = kNone;
  lease.next = first;
  if (first != kNone) leases_[first].previous = slot;
  first = slot;
  if (bundle == kNone) {
    ++cluster_.nodes[node].lease_count;
    cluster_.Changed(node);
  } else {
    ++groups_[shapes_[lease.shape].group].bundles.at(bundle).lease_count;
  }
}

void Scheduler::Impl::Grant(uint32_t slot, uint32_t node, uint32_t bundle, uint64_t devices) {
  Settle(slot, node, bundle, devices);
  Lease& lease = leases_[slot];
  lease.state = LeaseState::kGranted;
  lease.older = newest_unconfirmed_;
  lease.newer = kNone;
  if (newest_unconfirmed_ != kNone) leases_[newest_unconfirmed_].newer = slot;
  newest_unconfirmed_ = slot;
  if (oldest_unconfirmed_ == kNone) oldest_unconfirmed_ = slot;
  TellGranted(slot);
}

void Scheduler::Impl::TellGranted(uint32_t slot) {
  if (leases_[slot].to_tell) return;
  leases_[slot].to_tell = true;
  to_tell_.push_back(slot);
}

// What was granted in this Step and still is: a caller hears nothing of a grant that did not last.
void Scheduler::Impl::WriteGrants() {
  for (const uint32_t slot : to_tell_) {
    if (!leases_.Has(slot) || !leases_[slot].to_tell) continue;
    Lease& lease = leases_[slot];
    lease.to_tell = false;
    lease.told = true;
    decision_.granted.push_back(
        Granted{lease.id, cluster_.nodes[lease.node].id,
                DevicesOf(lease.devices, shapes_[lease.shape].need.gpu),
                lease.bundle == kNone ? kAnyBundle : static_cast<int>(lease.bundle)});
  }
  to_tell_.clear();
}

void Scheduler::Impl::Unlist(uint32_t slot) {
  Lease& lease = leases_[slot];
  if (lease.state != LeaseState::kGranted) return;
  (lease.older == kNone ? oldest_unconfirmed_ : leases_[lease.older].newer) = lease.newer;
  (lease.newer == kNone ? newest_unconfirmed_ : leases_[lease.newer].older) = lease.older;
  lease.older = lease.newer = kNone;
}

// What is booked for it now: of what it was granted, all but what it lends.
Need Scheduler::Impl::HeldBy(const Lease& lease) const {
  Need held = shapes_[lease.shape].need;
  if (lease.lent) held.cpu = 0;
  return held;
}

// An id that is over, or that waits, has nothing to lend: the event was late.
void Scheduler::Impl::SetLent(const std::string& id, bool lent) {
  const uint32_t slot = leases_.Find(id);
  if (slot == kNone) return;
  Lease& lease = leases_[slot];
  if (lease.state == LeaseState::kPending || lease.lent == lent) return;
  const Shape& shape = shapes_[lease.shape];
  if (shape.need.cpu == 0) return;
  lease.lent = lent;
  const int64_t taken = lent ? -shape.need.cpu : shape.need.cpu;
  if (lease.bundle == kNone) {
    cluster_.nodes[lease.node].capacity.BookCpu(taken);
    return NodeChanged(lease.node);
  }
  Group& group = groups_[shape.group];
  group.bundles.at(lease.bundle).capacity.BookCpu(taken);
  if (!lent) return;
  group.open = std::min(group.open, lease.bundle);
  BundlesChanged(shape.group);
}

// Gives back what it holds.
void Scheduler::Impl::Unsettle(uint32_t slot) {
  Unlist(slot);
  Lease& lease = leases_[slot];
  (lease.previous == kNone ? ListOf(lease) : leases_[lease.previous].next) = lease.next;
  if (lease.next != kNone) leases_[lease.next].previous = lease.previous;
  const Shape& shape = shapes_[lease.shape];
  if (lease.bundle == kNone) {
    Node& node = cluster_.nodes[lease.node];
    node.capacity.Give(HeldBy(lease), lease.devices);
    --node.lease_count;
    NodeChanged(lease.node);
  } else {
    Bundle& bundle = groups_[shape.group].bundles.at(lease.bundle);
    bundle.capacity.Give(HeldBy(lease), lease.devices);
    --bundle.lease_count;
    groups_[shape.group].open = std::min(groups_[shape.group].open, lease.bundle);
    BundlesChanged(shape.group);
  }
  lease.node = lease.bundle = lease.previous = lease.next = kNone;
  lease.devices = 0;
  lease.told = lease.to_tell = lease.lent = false;
}

void Scheduler::Impl::End(uint32_t slot) {
  if (leases_[slot].state == LeaseState::kPending) {
    Dequeue(slot);
  } else {
    Unsettle(slot);
  }
  const uint32_t gang = leases_[slot].gang;
  if (gang != kNone) {
    Gang& rest = gangs_.at(gang);
    rest.members.erase(slot);
    // The others may be bound to where it was, or kept from there.
    if (!rest.waiting.empty()) SetWaiter({rest.order(), WaiterKind::kGang, gang}, true, true);
    if (rest.members.empty()) gangs_.erase(gang);
  }
  const uint32_t shape = leases_[slot].shape;
  leases_.Remove(slot);
  LeaveShape(shape);
}

void Scheduler::Impl::Revoke(uint32_t slot, const std::string& reason, bool again) {
  const Lease& lease = leases_[slot];
  if (lease.told || !again) {
    decision_.revoked.push_back(
        Revoked{lease.id, lease.told ? cluster_.nodes[lease.node].id : "", reason, again});
  }
  if (!again) return End(slot);
  Unsettle(slot);
  Enqueue(slot);
}

// ---- events ----

void Scheduler::Impl::On(const Request& event) {
  if (AnswerRepeat(event.lease)) return;
  const Status status = Check(event.lease);
  if (!status.ok()) return Refuse(event.lease.id, status.error().code, status.error().message);
  Enqueue(AddLease(event.lease));
}

Status Scheduler::Impl::CheckGang(const RequestGang& event) const {
  if (event.leases.empty() || event.leases.size() > kGangMax) {
    return InvalidArgument("a gang has 1 to " + std::to_string(kGangMax) + " leases");
  }
  std::set<std::string> ids;
  for (const LeaseRequest& request : event.leases) {
    const Status status = Check(request);
    if (!status.ok()) return status.error().WithContext("lease " + Quoted(request.id));
    if (leases_.Find(request.id) != kNone || !ids.insert(request.id).second) {
      return Error{ErrorCode::kAlreadyExists, "there is another lease " + Quoted(request.id)};
    }
    if (request.priority != event.leases[0].priority) {
      return InvalidArgument("the leases of a gang have one priority");
    }
    if (!request.group.empty() || !request.node.empty()) {
      return InvalidArgument("the leases of a gang name neither a node nor a placement group");
    }
  }
  if (leases_.size() + event.leases.size() > kSchedulerLeasesMax) {
    return Error{ErrorCode::kResourceExhausted,
                 "the gang would bring the leases over " + std::to_string(kSchedulerLeasesMax)};
  }
  return Status::Ok();
}

void Scheduler::Impl::On(const RequestGang& event) {
  const auto known = [&](const LeaseRequest& request) { return leases_.Find(request.id) != kNone; };
  // A repeat, perhaps of one some of whose leases have ended: those that are left are answered.
  if (std::any_of(event.leases.begin(), event.leases.end(), known)) {
    for (const LeaseRequest& request : event.leases) AnswerRepeat(request);
    return;
  }
  const Status status = CheckGang(event);
  if (!status.ok()) {
    const std::string first = event.leases.empty() ? "" : event.leases[0].id;
    return Refuse(first, status.error().code, status.error().message);
  }
  const uint32_t number = ++last_gang_;
  Gang& gang = gangs_[number];
  gang.strategy = event.strategy;
  gang.at_least = std::max<size_t>(1, std::min(event.at_least, event.leases.size()));
  if (event.strategy == PlacementStrategy::kStrictPack) gang.at_least = event.leases.size();
  gang.priority = event.leases[0].priority;
  gang.number = ++last_number_;
  for (const LeaseRequest& request : event.leases) {
    const uint32_t lease = AddLease(request);
    leases_[lease].gang = number;
    gang.members.insert(lease);
    Enqueue(lease);
  }
}

void Scheduler::Impl::ServeGang(uint32_t number, bool try_all) {
  Gang& gang = gangs_.at(number);
  const Waiter waiter{gang.order(), WaiterKind::kGang, number};
  std::vector<Piece> pieces = PiecesOf(waiter);
  if (!try_all && !MayHelp(pieces, gang.order())) return;
  const size_t at_least = AtLeastOf(waiter, pieces.size());
  if (PlaceBatch(pieces, gang.strategy, at_least, NodesOf(waiter), gang.order()) == 0) return;
  gang.met = true;
  const bool promised = promises_.contains(gang.order());
  DropPromise(gang.order());
  for (const Piece& piece : pieces) {
    if (piece.node != kNone) Grant(piece.item, piece.node, kNone, piece.devices);
  }
  if (promised && !gang.waiting.empty()) (void)MakePromise(waiter);
}

void Scheduler::Impl::On(const Confirm& event) {
  const uint32_t slot = leases_.Find(event.lease);
  const uint32_t node = cluster_.nodes.Find(event.node);
  if (slot == kNone || node == kNone || leases_[slot].node != node) {
    return Refuse(event.lease, ErrorCode::kFenced,
                  "lease " + Quoted(event.lease) + " is not granted to node " + Quoted(event.node) +
                      " (any more); its process there must end");
  }
  if (leases_[slot].state == LeaseState::kConfirmed) return;
  Unlist(slot);
  leases_[slot].state = LeaseState::kConfirmed;
  leases_[slot].since = now_;
  cluster_.nodes[node].failures = 0;
}

void Scheduler::Impl::On(const Release& event) {
  const uint32_t slot = leases_.Find(event.lease);
  if (slot != kNone) End(slot);
}

void Scheduler::Impl::On(const Cancel& event) {
  const uint32_t slot = leases_.Find(event.lease);
  if (slot == kNone) return;
  if (leases_[slot].state == LeaseState::kConfirmed) {
    return Refuse(event.lease, ErrorCode::kConflict,
                  "lease " + Quoted(event.lease) + " runs on node " +
                      Quoted(cluster_.nodes[leases_[slot].node].id) +
                      "; end its process and release it");
  }
  End(slot);
}

}  // namespace troupe
