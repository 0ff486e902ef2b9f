// Collective groups of actors, as their driver makes them. Their members use them through
// <troupe/collectives.h>.
// Thread: any.
#pragma once

#include <memory>
#include <string>

#include "actors/core/collective_protocol.h"
#include "actors/host/actor_system.h"

namespace troupe {

struct CollectiveGroupOptions {
  std::string name;
  bool elastic = false;   // It goes on with the members that there are.
  uint32_t min_size = 1;  // An elastic one waits below so many.
};

namespace actors {
// Asks the head. kUnavailable: this process is not part of a cluster.
[[nodiscard]] Result<CollectiveStatus> AskCollective(const std::shared_ptr<ActorSystem>& system,
                                                     CollectiveRequest request, Duration limit);
}  // namespace actors

}  // namespace troupe
