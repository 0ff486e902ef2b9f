// PlacementGroup: room that is reserved together, and in which actors are then started.
//
//   Result<PlacementGroup> group = runtime.CreatePlacementGroup(
//       {.bundles = {{.resources = {{"GPU", 1}}}, {.resources = {{"GPU", 1}}}}});
//   group->Wait(seconds(60));
//   runtime.Spawn<Trainer>({.resources = {{"GPU", 1}}, .placement_group = group->id()});
//
// All of its bundles are placed at once or none. A bundle whose node dies is placed anew, and so
// are the actors in it that may be started again. It can grow and shrink in place: bundles that
// stay keep their nodes, and what runs in them goes on.
// Thread: any; copies are the same group. Inside a method the calls suspend its fiber.
// Owns: nothing; the group goes with the process or actor that created it, unless it is detached.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/api/future.h"
#include "actors/core/group_protocol.h"
#include "actors/host/actor_system.h"

namespace troupe {

struct PlacementGroupOptions {
  std::vector<PlacementBundle> bundles = {};
  std::string strategy = "pack";  // Or "spread", "strict_pack", "strict_spread".
  std::string name = {};          // Unique among the cluster's groups; empty: none.
  bool detached = false;          // It outlives its creator.
  int32_t priority = 0;           // Among those that wait for a place; higher goes first.
};

class PlacementGroup {
 public:
  PlacementGroup(std::shared_ptr<actors::ActorSystem> system, std::string id)
      : system_(std::move(system)), id_(std::move(id)) {}

  // For ActorOptions::placement_group.
  [[nodiscard]] const std::string& id() const { return id_; }
  // Until every bundle has a place. kDeadlineExceeded says what is missing; kNotFound: it was
  // removed; kResourceExhausted: it cannot be placed on this machine.
  [[nodiscard]] Status Wait(Duration limit) const;
  // How it stands. kNotFound.
  [[nodiscard]] Result<PlacementGroupStatus> Look(Duration limit = seconds(30)) const;
  // Adds bundles, numbered on from the last number there ever was, and removes those of these
  // numbers; what runs in them ends. Returns before those that were added have a place: Wait.
  [[nodiscard]] Status Resize(const std::vector<PlacementBundle>& add,
                              const std::vector<uint32_t>& remove = {}) const;
  // Gives its room back; what runs in it ends. Removing it again is no error.
  [[nodiscard]] Status Remove() const;

 private:
  std::shared_ptr<actors::ActorSystem> system_;
  std::string id_;
};

namespace actors {
// "create" is given an id.
[[nodiscard]] Future<PlacementGroupStatus> AskGroupLater(const std::shared_ptr<ActorSystem>& system,
                                                         GroupRequest request, Duration limit);
[[nodiscard]] Result<PlacementGroupStatus> AskGroup(const std::shared_ptr<ActorSystem>& system,
                                                    GroupRequest request, Duration limit);
[[nodiscard]] Result<PlacementGroupStatus> CreateGroup(const std::shared_ptr<ActorSystem>& system,
                                                       const PlacementGroupOptions& options);
[[nodiscard]] Result<PlacementGroupStatus> FindGroup(const std::shared_ptr<ActorSystem>& system,
                                                     const std::string& name);
}  // namespace actors

}  // namespace troupe
