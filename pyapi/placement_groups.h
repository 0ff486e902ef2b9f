// Placement groups between Python and the cluster: dicts for requests and answers.
// Thread: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "actors/core/group_protocol.h"
#include "actors/host/actor_system.h"
#include "pyapi/actor_calls.h"
#include "runtime/clock.h"

namespace troupe::pyapi {

// Of {"group", "name", "detached", "strategy", "priority", "add": [bundle], "remove": [number]};
// a bundle is {"resources": {name: amount}, "labels": [term]}.
[[nodiscard]] actors::GroupRequest GroupRequestOf(const std::string& verb,
                                                  const pybind11::dict& options);
// {"id", "name", "state", "reason", "bundles": [{"number", "node", "devices", "resources",
// "labels"}]}.
[[nodiscard]] pybind11::dict GroupDict(const PlacementGroupStatus& status);

// A request as a call that completes with `payload` when it is answered.
[[nodiscard]] std::unique_ptr<PyCall> AskPlacementGroup(
    const std::shared_ptr<actors::ActorSystem>& system, const std::string& verb,
    const pybind11::dict& options, const std::string& payload, Duration limit);

}  // namespace troupe::pyapi
