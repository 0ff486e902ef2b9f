// Placement: which node holds which request, or a reason a person can read.
//
// Place() is a pure function of the view: same inputs, same outputs, ties by node id. It never
// reserves anything; the caller books what it accepts with ClusterView::Reserve. Requests are tried
// from the largest to the smallest (first fit decreasing), so a set of unequal requests may be
// rejected although some cunning arrangement would hold it; for equal requests the answer is exact.
// Thread: value types, one thread at a time.
// Invariants: PL-1 no node is given more than it has free. PL-2 only alive nodes that are not
// draining and carry all labels asked for are used. PL-3 unless a smaller number is allowed, either
// all requests are placed or none.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/result.h"
#include "scheduler/resources.h"

namespace troupe {

struct NodeView {
  ResourceSet total;
  ResourceSet used;
  std::map<std::string, std::string> labels;
  bool alive = true;
  bool draining = false;

  [[nodiscard]] ResourceSet Free() const;
};

// Nodes by id. `used` of a node never exceeds its `total`.
class ClusterView {
 public:
  // Replaces a node of the same id; bookings of the old one are gone.
  void Put(const std::string& id, NodeView node);
  void Remove(const std::string& id);
  // kNotFound, or kResourceExhausted with what is missing.
  Status Reserve(const std::string& id, const ResourceSet& resources);
  // Gives back what Reserve took. A node that is gone is no error: its bookings went with it.
  void Release(const std::string& id, const ResourceSet& resources);
  void SetState(const std::string& id, bool alive, bool draining);
  [[nodiscard]] const std::map<std::string, NodeView>& nodes() const { return nodes_; }

 private:
  std::map<std::string, NodeView> nodes_;
};

enum class PlacementStrategy {
  kHybrid,        // Pack onto nodes up to half full, then spread over the least used.
  kPack,          // As few nodes as possible.
  kSpread,        // As many nodes as possible; several on one node if there are not enough.
  kStrictPack,    // All on one node, or none.
  kStrictSpread,  // Each on a node of its own, or none.
};

// "hybrid", "pack", "spread", "strict_pack", "strict_spread".
[[nodiscard]] std::string_view PlacementStrategyName(PlacementStrategy strategy);
[[nodiscard]] Result<PlacementStrategy> ParsePlacementStrategy(std::string_view name);

struct PlacementRequest {
  ResourceSet resources;
  std::map<std::string, std::string> labels;  // Must all be equal on the node.
  std::string preferred_node;                 // Taken if it fits; empty: none.
};

struct PlacementOptions {
  PlacementStrategy strategy = PlacementStrategy::kHybrid;
  size_t at_least =
      static_cast<size_t>(-1);  // Enough to accept a partial placement; the default asks for all.
};

// By request: the node's id, or empty where `at_least` allowed to leave it out.
struct Assignments {
  std::vector<std::string> node_of;
  [[nodiscard]] size_t placed() const;
};

struct Rejection {
  std::string reason;
  // Whether the present nodes could hold the request if nothing ran on them. False: only other
  // nodes can help.
  bool possible_when_idle = false;
};

using PlacementResult = std::variant<Assignments, Rejection>;

[[nodiscard]] PlacementResult Place(const ClusterView& cluster,
                                    const std::vector<PlacementRequest>& requests,
                                    const PlacementOptions& options = {});

}  // namespace troupe
