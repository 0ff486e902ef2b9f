// What the scheduler keeps of leases, their shapes, groups and gangs.
//
// A shape is all of a request but its id and priority. Requests of one shape are alike, so the
// queue looks at the first of each shape only, and a lease stores no more than the shape's number.
// Thread: one.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/internal/cluster.h"
#include "scheduler/placement_strategy.h"
#include "scheduler/scheduler_status.h"

namespace troupe::sched::internal {

// What waits: the first request of a shape, the waiting part of a gang or of a group.
enum class WaiterKind : uint8_t { kShape, kGang, kGroup };
struct Waiter {
  Order order;
  WaiterKind kind = WaiterKind::kShape;
  uint32_t id = kNone;
  friend auto operator<=>(const Waiter&, const Waiter&) = default;
};

struct Alternative {  // A selector to try, in the order of preference.
  LabelSelector labels;
  std::string pool;  // Its key.
  uint32_t hint = kNone;
};

struct Shape {
  std::string id;  // Its contents as text; equal shapes have equal ids.
  Need need;
  std::vector<uint32_t> custom;  // Names in `need`.
  std::vector<int64_t> dims;
  PlacementStrategy strategy = PlacementStrategy::kHybrid;
  std::vector<LabelSelector> accepted;  // One of them must match.
  std::vector<Alternative> alternatives;
  std::string node;
  bool node_only = false;
  uint32_t group = kNone;
  int bundle = -1;
  uint32_t uses = 0;     // By leases and bundles.
  bool blocked = false;  // No node has room for the first, but perhaps those that changed since.
  std::optional<Waiter> head;
  std::set<std::pair<Order, uint32_t>> waiting;  // Leases.

  [[nodiscard]] bool Accepts(const Node& at) const;
};

struct Lease {
  std::string id;
  uint32_t shape = kNone;
  uint32_t node = kNone;
  uint32_t bundle = kNone;  // Its number.
  uint32_t gang = kNone;
  uint32_t previous = kNone;  // In the list of its node or bundle.
  uint32_t next = kNone;
  uint32_t older = kNone;  // In the list of the unconfirmed.
  uint32_t newer = kNone;
  LeaseState state = LeaseState::kPending;
  bool lent = false;     // Its CPU is for others.
  bool told = false;     // Of its present grant the caller has heard,
  bool to_tell = false;  // or will at the end of this Step.
  int priority = 0;
  uint64_t number = 0;
  uint64_t devices = 0;  // By bits.
  Time since;

  [[nodiscard]] Order order() const { return {-static_cast<int64_t>(priority), number}; }
};

struct Bundle {
  uint32_t shape = kNone;
  uint32_t node = kNone;
  uint64_t batch = 0;  // Placed together with those of the same batch. 0: lost with its node.
  uint64_t devices = 0;
  Capacity capacity;  // Of its reservation.
  uint32_t leases = kNone;
  uint32_t lease_count = 0;
  Hold hold;
};

struct Group {
  std::string id;
  PlacementStrategy strategy = PlacementStrategy::kPack;
  int priority = 0;
  uint64_t number = 0;
  uint64_t resized = 0;  // The number of the last resize.
  uint32_t next_bundle = 0;
  uint32_t waiting = 0;  // Bundles that are not placed.
  uint32_t open = 0;     // Bundles of lower numbers are full.
  bool was_placed = false;
  GroupState told = GroupState::kRemoved;  // The state that the last change named.
  Time since;                              // When it began to wait.
  std::map<uint32_t, Bundle> bundles;
  std::vector<uint32_t> shapes;  // Of requests that draw from it.
  std::string created;           // Its first contents as text, to know a repeat by.

  [[nodiscard]] Order order() const { return {-static_cast<int64_t>(priority), number}; }
};

struct Gang {
  PlacementStrategy strategy = PlacementStrategy::kPack;
  size_t at_least = 0;
  bool met = false;  // `at_least` were placed; the others follow one by one.
  int priority = 0;
  uint64_t number = 0;
  Time since;
  std::set<uint32_t> members;  // Leases,
  std::set<uint32_t> waiting;  // those that wait, by slot.

  [[nodiscard]] Order order() const { return {-static_cast<int64_t>(priority), number}; }
};

// One thing to place in a batch.
struct Piece {
  uint32_t shape = kNone;
  uint32_t item = kNone;  // A lease, or a bundle's number.
  uint32_t node = kNone;
  uint64_t devices = 0;
};

struct HeldPlace {
  uint32_t node = kNone;
  BundleRef bundle;  // In which, if any.
};
struct Promise {
  Waiter owner;
  uint32_t lease = kNone;  // That of the owner which was the first when it was made.
  Time until;              // Then it looks whether another place is nearer by now.
  std::vector<HeldPlace> places;
  std::vector<Piece> plan;  // Of a batch.
};

}  // namespace troupe::sched::internal
