// Messages about placement groups, between the head and processes that create or resize them.
//
// Requests are answered and repeated as those of actors (cluster_protocol.h); asking twice is
// asking once. kAwait is answered when all bundles have a place, or when that cannot be any more.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe {

// What is reserved together on one node.
struct PlacementBundle {
  std::map<std::string, double> resources = {};  // As ActorOptions::resources.
  std::vector<std::string> labels = {};          // Terms that the node must fulfil: "zone=a".
  template <class A>
  void Fields(A& a) {
    a(resources, labels);
  }
};

// How a placement group stands.
struct PlacementGroupStatus {
  struct Bundle {
    uint32_t number = 0;
    std::string node;  // Empty: it waits.
    std::vector<uint32_t> devices;
    PlacementBundle wish;
    template <class A>
    void Fields(A& a) {
      a(number, node, devices, wish);
    }
  };
  std::string id;
  std::string name;
  std::string state;   // "pending", "placed", "resizing", "rescheduling".
  std::string reason;  // Why bundles wait.
  std::vector<Bundle> bundles;
  [[nodiscard]] bool placed() const { return state == "placed"; }
  template <class A>
  void Fields(A& a) {
    a(id, name, state, reason, bundles);
  }
};

namespace actors {

inline constexpr uint8_t kFrameGroupRequest = 100;
inline constexpr uint8_t kGroupRecord = 101;
inline constexpr const char* kGroupId = "pg-";  // What ids begin with.

struct GroupSpec {
  std::string group;  // Its id, chosen by the creator.
  std::string name;   // Unique among those there are; empty: none.
  std::string owner;  // Who it goes with, as in ActorSpec; ignored if it is detached.
  bool detached = false;
  std::string strategy = "pack";  // "pack", "spread", "strict_pack", "strict_spread".
  int32_t priority = 0;
  template <class A>
  void Fields(A& a) {
    a(group, name, owner, detached, strategy, priority);
  }
};

enum class PlacementGroupVerb : uint8_t {
  kCreate,  // `spec` whole.
  kResize,
  kRemove,
  kAwait,
  kStatus,
  kFind,  // By spec.name.
};
constexpr PlacementGroupVerb LastValue(PlacementGroupVerb) { return PlacementGroupVerb::kFind; }

struct GroupRequest {
  uint64_t request = 0;
  PlacementGroupVerb verb = PlacementGroupVerb::kStatus;
  GroupSpec spec;  // But for kCreate only the id or the name counts.
  std::vector<PlacementBundle> add;
  std::vector<uint32_t> remove;
  template <class A>
  void Fields(A& a) {
    a(request, verb, spec, add, remove);
  }
};

}  // namespace actors
}  // namespace troupe
