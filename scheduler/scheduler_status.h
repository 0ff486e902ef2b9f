// What the scheduler decides, and how things stand, for callers and for people.
//
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "scheduler/devices.h"
#include "scheduler/labels.h"
#include "scheduler/resources.h"

namespace troupe {
namespace sched {

enum class LeaseState : uint8_t { kPending, kGranted, kConfirmed };
// "pending", "granted", "confirmed".
[[nodiscard]] std::string_view LeaseStateName(LeaseState state);

// kPending: no bundle has been placed yet. kRescheduling: bundles were lost with their node.
// kResizing: bundles that were added wait.
enum class GroupState : uint8_t { kPending, kPlaced, kResizing, kRescheduling, kRemoved };
// "pending", "placed", "resizing", "rescheduling", "removed".
[[nodiscard]] std::string_view GroupStateName(GroupState state);

struct BundlePlace {
  uint32_t number = 0;
  std::string node;  // Empty: it waits.
  std::vector<DeviceShare> devices;
};

struct Granted {
  std::string lease;
  std::string node;
  std::vector<DeviceShare> devices;
  int bundle = -1;  // Of its group.
};
struct Revoked {
  std::string lease;
  std::string node;  // Empty: it waited.
  std::string reason;
  bool waits_again = false;  // Its request is back in the queue; otherwise it is over.
};
struct GroupChange {
  std::string group;
  GroupState state = GroupState::kPending;
  std::string reason;
  std::vector<BundlePlace> bundles;
};
struct Refused {
  std::string what;  // The id of the lease, group or node; for a gang that of its first lease.
  Error error;
};
struct DrainNotice {
  std::string lease;
  std::string node;
  Time deadline = Time::Never();
};

struct LeaseStatus {
  std::string id;
  LeaseState state = LeaseState::kPending;
  int priority = 0;
  Time since;  // When it came to this state.
  std::string node;
  std::vector<DeviceShare> devices;
  std::string group;
  int bundle = -1;
  ResourceSet resources;
  std::string reason;       // Why it waits; empty once granted.
  bool impossible = false;  // No node that is there could hold it, even if nothing else ran.
};
struct NodeStatus {
  std::string id;
  ResourceSet total;
  ResourceSet used;  // By leases and by bundles of groups.
  std::vector<double> devices_free;
  Labels labels;
  bool alive = true;
  bool draining = false;
  Time drain_deadline = Time::Never();
  Time aside_until;  // Nothing new until then: a grant was not confirmed.
  size_t leases = 0;
};
struct BundleStatus {
  BundlePlace place;
  ResourceSet total;
  ResourceSet used;
  size_t leases = 0;
};
struct GroupStatus {
  std::string id;
  GroupState state = GroupState::kPending;
  int priority = 0;
  std::vector<BundleStatus> bundles;
  std::string reason;
  bool impossible = false;
};
// Room that is kept for a request that has waited long.
struct PromiseStatus {
  std::string lease;  // Or the first one of a gang.
  std::string group;  // Or the group whose bundles wait.
  int priority = 0;
  std::string node;      // Where,
  std::string in_group;  // in a bundle of this group, if any.
  int bundle = -1;
  ResourceSet resources;  // how much.
};

}  // namespace sched

// To be carried out in this order.
struct SchedulerDecision {
  std::vector<sched::Revoked> revoked;
  std::vector<sched::GroupChange> groups;  // As they are at the end of the Step.
  std::vector<sched::Granted> granted;
  std::vector<sched::Refused> refused;
  std::vector<sched::DrainNotice> drains;
};

}  // namespace troupe
