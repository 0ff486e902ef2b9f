// Groups of actors, between Python's dicts and the messages about them.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "actors/core/actor_group_protocol.h"

namespace troupe::pyapi {

// All but the description of the members.
[[nodiscard]] actors::ActorGroupRequest ActorGroupRequestOf(const std::string& verb,
                                                            const pybind11::dict& options);
void BindActorGroups(pybind11::module_& m);

}  // namespace troupe::pyapi
