// Amounts, and taking over what was decided.
#include "tests/sim/scheduler/sim_model.h"

#include <algorithm>

namespace troupe::sched::sim {

ResourceSet Ask::ToResources() const {
  std::map<std::string, int64_t, std::less<>> all;
  for (const auto& [name, amount] : units) {
    if (amount > 0) all[name] = amount;
  }
  if (gpu > 0) all["GPU"] = gpu;
  return ResourceSet::FromUnits(std::move(all));
}

LabelSelector Ask::ToSelector() const {
  std::string text;
  if (!zone.empty()) text += "zone=" + zone;
  if (!not_zone.empty()) text += std::string(text.empty() ? "" : ", ") + "zone!=" + not_zone;
  return *LabelSelector::Parse(text);
}

bool Room::Fits(const Ask& ask) const {
  for (const auto& [name, amount] : ask.units) {
    const auto found = units.find(name);
    if (amount > 0 && amount > (found == units.end() ? 0 : found->second)) return false;
  }
  if (ask.gpu == 0) return true;
  if (ask.gpu >= kUnit) return WholeDevices() >= ask.devices();
  return std::any_of(devices.begin(), devices.end(),
                     [&](const auto& device) { return device.second >= ask.gpu; });
}

bool Room::FitsBeside(const Ask& ask, const Ask& held) const {
  if (!Fits(ask)) return false;
  for (const auto& [name, amount] : ask.units) {
    const auto kept = held.units.find(name);
    if (amount == 0 || kept == held.units.end() || kept->second == 0) continue;
    if (units.at(name) - amount < kept->second) return false;
  }
  if (ask.gpu == 0 || held.gpu == 0) return true;
  const int64_t takes = std::max<int64_t>(1, ask.devices());
  return WholeDevices() - takes >= std::max<int64_t>(1, held.devices());
}

int64_t Room::WholeDevices() const {
  return std::count_if(devices.begin(), devices.end(),
                       [](const auto& device) { return device.second == kUnit; });
}

size_t Room::Copies(const Ask& ask, size_t most) const {
  auto count = static_cast<int64_t>(most);
  for (const auto& [name, amount] : ask.units) {
    const auto found = units.find(name);
    const int64_t free = found == units.end() ? 0 : std::max<int64_t>(0, found->second);
    if (amount > 0) count = std::min(count, free / amount);
  }
  if (ask.gpu >= kUnit) count = std::min(count, WholeDevices() / ask.devices());
  if (ask.gpu > 0 && ask.gpu < kUnit) {
    int64_t shares = 0;
    for (const auto& [index, free] : devices) shares += free / ask.gpu;
    count = std::min(count, shares);
  }
  return static_cast<size_t>(count);
}

bool Room::Take(const Ask& ask, const std::vector<uint32_t>& on) {
  bool enough = true;
  for (const auto& [name, amount] : ask.units) {
    if (amount > 0 && (units[name] -= amount) < 0) enough = false;
  }
  const size_t wanted = ask.gpu == 0 ? 0 : static_cast<size_t>(std::max<int64_t>(1, ask.devices()));
  if (on.size() != wanted) return false;
  for (const uint32_t index : on) {
    const auto device = devices.find(index);
    if (device == devices.end() || (device->second -= std::min(ask.gpu, kUnit)) < 0) return false;
  }
  return enough;
}

Room ModelNode::Whole() const {
  Room room{units, {}};
  for (int64_t i = 0; i < devices; ++i) room.devices[static_cast<uint32_t>(i)] = kUnit;
  return room;
}

Ask ModelLease::Held() const {
  Ask held = ask;
  if (lent) held.units.erase("CPU");
  return held;
}

LeaseRequest ModelLease::ToRequest(const std::string& id) const {
  LeaseRequest request;
  request.id = id;
  request.resources = ask.ToResources();
  request.priority = priority;
  request.strategy = strategy;
  if (group.empty()) request.labels = ask.ToSelector();
  request.group = group;
  request.bundle = bundle;
  return request;
}

Room Model::FreeOf(const std::string& id) const {
  Room room = nodes.at(id).Whole();
  for (const auto& [name, lease] : leases) {
    if (lease.node == id && lease.group.empty()) room.Take(lease.Held(), lease.devices);
  }
  for (const auto& [name, group] : groups) {
    for (const auto& [number, bundle] : group.bundles) {
      if (bundle.node == id) room.Take(bundle.ask, bundle.devices);
    }
  }
  return room;
}

Room Model::FreeIn(const ModelGroup& group, const std::string& id, uint32_t number) const {
  const ModelBundle& bundle = group.bundles.at(number);
  Room room{bundle.ask.units, {}};
  for (const uint32_t device : bundle.devices) {
    room.devices[device] = std::min(bundle.ask.gpu, kUnit);
  }
  for (const auto& [name, lease] : leases) {
    const bool inside = lease.group == id && lease.given == static_cast<int>(number);
    if (inside && !lease.node.empty()) room.Take(lease.Held(), lease.devices);
  }
  return room;
}

SchedulerOptions SchedulerOptionsFor(const SimOptions& options) {
  SchedulerOptions scheduler;
  scheduler.confirm_within =
      options.sabotage == Sabotage::kLateConfirm ? 3 * kConfirmWithin : kConfirmWithin;
  scheduler.starvation_after =
      options.sabotage == Sabotage::kNoPromises ? seconds(100'000) : kStarvationAfter;
  return scheduler;
}

void Model::Hash(const SchedulerDecision& decision) {
  const auto mix = [&](const std::string& text) {
    for (const char c : text + ";") {
      result->hash = (result->hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
    }
  };
  for (const auto& granted : decision.granted) {
    mix(granted.lease + granted.node + VisibleDevices(IndicesOf(granted.devices)));
  }
  for (const auto& revoked : decision.revoked) mix(revoked.lease + revoked.reason);
  for (const auto& change : decision.groups) {
    for (const auto& bundle : change.bundles) mix(change.group + bundle.node);
  }
  for (const auto& refused : decision.refused) mix(refused.error.message);
  for (const auto& drain : decision.drains) mix(drain.lease);
}

bool Model::FitsItsGroup(const ModelLease& lease) const {
  const auto& bundles = groups.at(lease.group).bundles;
  return std::any_of(bundles.begin(), bundles.end(), [&](const auto& entry) {
    const Ask& all = entry.second.ask;
    if (lease.bundle != kAnyBundle && lease.bundle != static_cast<int>(entry.first)) return false;
    return lease.ask.gpu <= all.gpu &&
           std::all_of(lease.ask.units.begin(), lease.ask.units.end(), [&](const auto& need) {
             const auto has = all.units.find(need.first);
             return need.second <= (has == all.units.end() ? 0 : has->second);
           });
  });
}

void Model::LoseNode(const std::string& id) {
  nodes.erase(id);
  lost_now_.insert(id);
  for (auto& [name, group] : groups) {
    for (auto& [number, bundle] : group.bundles) {
      if (bundle.node != id) continue;
      bundle.node.clear();
      bundle.devices.clear();
      bundle.batch = 0;
    }
  }
}

void Model::EndLease(const std::string& id) { leases.erase(id); }

void Model::ApplyGroup(Time now, const GroupChange& change) {
  const auto found = groups.find(change.group);
  if (change.state == GroupState::kRemoved) {
    if (found != groups.end()) Fail("SC-3: a group was removed that nobody removed");
    return;
  }
  if (found == groups.end()) return Fail("SC-3: a change of a group that is not there");
  ModelGroup& group = found->second;
  if (change.bundles.size() != group.bundles.size()) Fail("SC-3: a group has other bundles");
  bool lost_placed = false;
  bool lost_waits = false;
  for (const BundlePlace& place : change.bundles) {
    const auto at = group.bundles.find(place.number);
    if (at == group.bundles.end()) return Fail("SC-3: a bundle that is not there");
    ModelBundle& bundle = at->second;
    if (!bundle.node.empty()) {
      if (bundle.node != place.node) Fail("SC-3: a bundle was moved from a node that is there");
      continue;
    }
    if (bundle.batch == 0) (place.node.empty() ? lost_waits : lost_placed) = true;
    if (place.node.empty()) continue;
    const auto node = nodes.find(place.node);
    if (node == nodes.end()) return Fail("SC-2: a bundle on a node that is not there");
    if (!claiming && !node->second.Usable(now)) Fail("SC-2: a bundle on a node not to be used");
    if (!node->second.Accepts(bundle.ask)) Fail("SC-2: a bundle where its labels do not match");
    if (bundle.batch == 0) ++result->rescheduled;
    bundle.node = place.node;
    for (const DeviceShare& device : place.devices) bundle.devices.push_back(device.index);
    bundle.batch = 1'000'000 + group.resized;
    placed_now_.insert({change.group, place.number});
    group.was_placed = true;
    ++result->groups_placed;
  }
  if (lost_placed && lost_waits) Fail("SC-3: lost bundles were not placed together");
}

void Model::Apply(Time now, const SchedulerDecision& decision, const std::set<std::string>& ends) {
  granted_now_.clear();
  placed_now_.clear();
  std::set<std::string> put_aside;
  for (const Revoked& revoked : decision.revoked) {
    ++result->revoked;
    const auto found = leases.find(revoked.lease);
    if (found == leases.end()) return Fail("SC-2: " + revoked.lease + " was revoked but is over");
    ModelLease& lease = found->second;
    if (revoked.node != lease.node) Fail("SC-2: " + revoked.lease + " was revoked elsewhere");
    const bool late =
        !lease.confirmed && !lease.node.empty() && lease.since + kConfirmWithin <= now;
    if (!late && !ends.contains(revoked.lease)) {
      Fail("SC-2: " + revoked.lease + " was taken away without a cause: " + revoked.reason);
    }
    if (late && nodes.contains(lease.node) && !ends.contains(revoked.lease)) {
      put_aside.insert(lease.node);
    }
    if (!revoked.waits_again) {
      leases.erase(found);
      continue;
    }
    if (lease.confirmed) Fail("SC-2: " + revoked.lease + " ran and waits again");
    lease.node.clear();
    lease.devices.clear();
    lease.given = kAnyBundle;
    lease.lent = lease.uninvited = false;
    lease.since = now;
  }
  for (const std::string& id : put_aside) {
    ModelNode& node = nodes.at(id);
    if (node.aside_until > now) continue;
    node.aside_until = now + std::min<Duration>(seconds(2) * (1 << node.failures), seconds(60));
    node.failures = std::min(node.failures + 1, 10);
  }
  for (const GroupChange& change : decision.groups) ApplyGroup(now, change);
  for (const Granted& granted : decision.granted) ApplyGrant(now, granted);
}

void Model::ApplyGrant(Time now, const Granted& granted) {
  const auto found = leases.find(granted.lease);
  if (found == leases.end()) return Fail("SC-2: " + granted.lease + " was granted but is over");
  ModelLease& lease = found->second;
  std::vector<uint32_t> devices;
  for (const DeviceShare& device : granted.devices) devices.push_back(device.index);
  if (!lease.node.empty()) {
    const bool same = lease.node == granted.node && lease.devices == devices;
    if (!same) Fail("SC-2: " + granted.lease + " was granted twice");
    return;
  }
  const auto node = nodes.find(granted.node);
  if (node == nodes.end()) return Fail("SC-2: granted to a node that is not there");
  if (!claiming && !node->second.Usable(now)) Fail("SC-2: granted to a node not to be used");
  if (lease.group.empty() && !node->second.Accepts(lease.ask)) {
    Fail("SC-2: granted where the labels do not match");
  }
  if (!lease.group.empty()) {
    const ModelGroup& group = groups.at(lease.group);
    const auto bundle = group.bundles.find(static_cast<uint32_t>(granted.bundle));
    const bool inside = bundle != group.bundles.end() && bundle->second.node == granted.node;
    if (!inside) return Fail("SC-2: granted to a bundle that is not there");
    if (lease.bundle != kAnyBundle && lease.bundle != granted.bundle) {
      Fail("SC-2: granted to another bundle than it asked for");
    }
  }
  ++result->granted;
  lease.node = granted.node;
  lease.devices = std::move(devices);
  lease.given = granted.bundle;
  lease.since = now;
  lease.confirmed = claiming;
  lease.uninvited = claiming;
  if (lease.gang != 0) {
    if (!gangs.at(lease.gang).met) ++result->gangs_granted;
    met_now_.insert(lease.gang);
  }
  granted_now_.insert(granted.lease);
}

}  // namespace troupe::sched::sim
