// Placement groups between Python and the cluster: dicts for requests and answers.
// Thread: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "actors/core/group_protocol.h"

namespace troupe::pyapi {

// Of {"group", "name", "detached", "strategy", "priority", "add": [bundle], "remove": [number]};
// a bundle is {"resources": {name: amount}, "labels": [term]}.
[[nodiscard]] actors::GroupRequest GroupRequestOf(const std::string& verb,
                                                  const pybind11::dict& options);
// {"id", "name", "state", "reason", "bundles": [{"number", "node", "devices", "resources",
// "labels"}]}.
[[nodiscard]] pybind11::dict GroupDict(const PlacementGroupStatus& status);

}  // namespace troupe::pyapi
