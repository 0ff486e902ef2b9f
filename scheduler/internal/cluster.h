// The nodes with what they have, and the pools through which they are found.
//
// A pool holds the nodes that one selector accepts and that have certain custom resources; it is
// made when it is first asked for and kept up to date. Nodes with and without GPUs are apart, so
// that work without a GPU can be kept off the former.
// Thread: one.
// Limits: kPoolsMax pools; the one not used for longest makes room, and is made anew if need be.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "scheduler/internal/capacity.h"
#include "scheduler/internal/fit_tree.h"
#include "scheduler/internal/slot_table.h"
#include "scheduler/labels.h"

namespace troupe::sched::internal {

// Who goes first: the less.
struct Order {
  int64_t neg_priority = 0;
  uint64_t number = 0;  // In the order of arrival; unique.
  friend auto operator<=>(const Order&, const Order&) = default;
};

// Room that is kept for one waiting request.
struct Hold {
  bool on = false;
  Order by;
  Need need;
  // Whether `need` may be taken by a request of this order.
  [[nodiscard]] bool Allows(const Capacity& capacity, const Need& wanted, Order order) const {
    return !on || order <= by ? capacity.Fits(wanted) : capacity.FitsBeside(wanted, need);
  }
};

struct BundleRef {
  uint32_t group = kNone;
  uint32_t number = 0;
};

struct Seat {  // In a pool.
  uint32_t pool = 0;
  uint32_t position = 0;
};

struct Node {
  std::string id;
  uint64_t incarnation = 0;
  Labels labels;
  Capacity capacity;
  bool alive = true;
  bool draining = false;
  bool aside = false;
  Time drain_deadline = Time::Never();
  Time aside_until;
  uint32_t failures = 0;    // Grants that were not confirmed, since one was.
  uint32_t leases = kNone;  // First of the list of those outside of bundles.
  uint32_t lease_count = 0;
  std::vector<BundleRef> bundles;
  Hold hold;
  std::vector<Seat> seats;
  uint64_t mark = 0;  // Of the batch that took it last.
  bool dirty = false;

  [[nodiscard]] bool usable() const { return alive && !draining && !aside; }
};

// Small numbers for the names of custom resources.
class NameTable {
 public:
  [[nodiscard]] size_t size() const { return names_.size(); }
  [[nodiscard]] bool Knows(std::string_view name) const { return numbers_.contains(name); }
  uint32_t Number(std::string_view name);
  [[nodiscard]] const std::string& NameOf(uint32_t number) const { return names_[number]; }
  Need ToNeed(const ResourceSet& resources);
  [[nodiscard]] ResourceSet ToResources(const Need& need) const;

 private:
  std::map<std::string, uint32_t, std::less<>> numbers_;
  std::vector<std::string> names_;
};

struct Pool {
  Pool(std::string pool_key, LabelSelector selector, std::vector<uint32_t> names)
      : key(std::move(pool_key)),
        labels(std::move(selector)),
        custom(std::move(names)),
        plain(kFixedDims + custom.size()),
        gpu(kFixedDims + custom.size()) {}
  std::string key;
  LabelSelector labels;
  std::vector<uint32_t> custom;
  FitTree plain;
  FitTree gpu;
  uint64_t used = 0;  // When, in searches.
};

class Cluster {
 public:
  [[nodiscard]] static std::string PoolKey(const LabelSelector& labels,
                                           const std::vector<uint32_t>& custom);
  // `hint` is the number of the pool when it was last asked for.
  Pool& FindPool(const std::string& key, const LabelSelector& labels,
                 const std::vector<uint32_t>& custom, uint32_t& hint);
  uint32_t AddNode(Node node);
  void RemoveNode(uint32_t slot);
  // What is free, or whether it may be used, has changed.
  void Changed(uint32_t slot);

  SlotTable<Node> nodes;
  NameTable names;
  Need total;  // Of all nodes.

 private:
  static constexpr size_t kPoolsMax = 64;
  void Join(uint32_t pool, uint32_t slot);
  void WriteSeat(const Node& node, const Seat& seat);

  std::vector<std::unique_ptr<Pool>> pools_;
  uint64_t searches_ = 0;
  std::vector<int64_t> room_;
  std::vector<int64_t> half_;
};

}  // namespace troupe::sched::internal
