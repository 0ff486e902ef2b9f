// What the scheduler is told, and what it answers.
//
// Every event may arrive twice: the repeat changes nothing (a repeated Request or Claim is answered
// again). Ids of leases and groups are the caller's; an id that has ended may be used again.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/clock.h"
#include "scheduler/devices.h"
#include "scheduler/labels.h"
#include "scheduler/placement_strategy.h"

namespace troupe {
namespace sched {

inline constexpr int kAnyBundle = -1;

// A node joins. A greater incarnation of a node that is there means that the old one is gone.
struct NodeUp {
  std::string node;
  uint64_t incarnation = 0;
  ResourceSet total;  // GPU: its number of devices.
  Labels labels;
};
struct NodeHealth {
  std::string node;
  bool alive = true;  // False: suspect. Nothing new goes there, nothing is taken away.
  bool draining = false;
  Time drain_deadline = Time::Never();
};
struct NodeGone {
  std::string node;
  std::string reason;
};

struct LeaseRequest {
  std::string id;
  ResourceSet resources;
  int priority = 0;                                         // Higher goes first.
  PlacementStrategy strategy = PlacementStrategy::kHybrid;  // Or kSpread or kPack.
  LabelSelector labels;                                     // Must match.
  LabelSelector prefer;                                     // Better if it matches.
  std::vector<LabelSelector> fallback;                      // In place of `labels`, in this order.
  std::string node;                                         // Affinity; empty: none.
  bool node_only = false;                                   // Whether it may run nowhere else.
  std::string group;        // Draws from a bundle of this group, which decides where it runs.
  int bundle = kAnyBundle;  // Which.
};
struct Request {
  LeaseRequest lease;
};
// All of them, or none until at least `at_least` fit at once; the others follow when they fit.
// `strategy` counts for them together, strict ones as for groups.
struct RequestGang {
  std::vector<LeaseRequest> leases;  // Of one priority, outside of groups, without affinity.
  PlacementStrategy strategy = PlacementStrategy::kPack;
  size_t at_least = static_cast<size_t>(-1);
};
struct Confirm {  // Its process runs there.
  std::string lease;
  std::string node;
};
// All that runs in its process waits: its CPU, and nothing else of it, is for others meanwhile.
struct Lend {
  std::string lease;
};
// Something in it runs again, whether or not there is room: the node or the bundle may have given
// more CPU than it has, until others end.
struct TakeBack {
  std::string lease;
};
struct Release {  // Its process has ended, or it is not wanted any more.
  std::string lease;
};
struct Cancel {  // Not wanted any more, unless its process runs.
  std::string lease;
};
// After a restart: this lease runs there. It may be that others ran on CPU that it had lent, so CPU
// is claimed whether or not there is room. A claim of one that is not held yet is not lent.
struct Claim {
  LeaseRequest lease;
  std::string node;
  int bundle = kAnyBundle;  // Which one it was given, if it is in a group.
  std::vector<uint32_t> devices;
};

struct BundleSpec {
  ResourceSet resources;
  LabelSelector labels;
};
struct CreateGroup {
  std::string group;
  std::vector<BundleSpec> bundles;  // Numbered from 0.
  PlacementStrategy strategy = PlacementStrategy::kPack;
  int priority = 0;
};
// `number` grows with each resize of the group; one that is not greater is a repeat.
struct ResizeGroup {
  std::string group;
  uint64_t number = 1;
  std::vector<BundleSpec> add;   // Numbered on; a number is never used again.
  std::vector<uint32_t> remove;  // Numbers that are not there are no error.
};
struct RemoveGroup {
  std::string group;
};
// After a restart, when the nodes are up again: the group as it was. A bundle that cannot be where
// it was is placed anew. A repeat places those whose node has come up meanwhile.
struct ClaimGroup {
  struct Bundle {
    uint32_t number = 0;
    BundleSpec spec;
    std::string node;  // Empty: it was not placed.
    std::vector<uint32_t> devices;
  };
  std::string group;
  std::vector<Bundle> bundles;
  PlacementStrategy strategy = PlacementStrategy::kPack;
  int priority = 0;
  uint64_t resized = 0;      // The number of the last resize.
  uint32_t next_bundle = 0;  // What the next bundle is numbered.
};
// After a restart, first of all: until then nothing is placed, so that nothing new takes the room
// of what runs and is yet to be claimed. A time that is past ends it.
struct Recover {
  Time until;
};
struct Wake {};  // Nothing but time has passed.

}  // namespace sched

using SchedulerEvent =
    std::variant<sched::NodeUp, sched::NodeHealth, sched::NodeGone, sched::Request,
                 sched::RequestGang, sched::Confirm, sched::Lend, sched::TakeBack, sched::Release,
                 sched::Cancel, sched::Claim, sched::CreateGroup, sched::ResizeGroup,
                 sched::RemoveGroup, sched::ClaimGroup, sched::Recover, sched::Wake>;

}  // namespace troupe
