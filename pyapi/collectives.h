// The class CollectiveGroup of troupe._core: a collective group that an actor is in.
//
// Tensors arrive as addresses and sizes; nothing of them is touched after a call has returned.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "actors/core/collective_protocol.h"
#include "collective_groups/collectives/collective_group.h"

namespace troupe::pyapi {

namespace py = pybind11;

void BindCollectives(py::module_& m);
[[nodiscard]] py::object MakeCollectiveGroup(std::shared_ptr<groups::CollectiveGroup> group);
// Of keyword arguments: name, size, elastic, min_size, actors.
[[nodiscard]] actors::CollectiveRequest CollectiveRequestOf(const std::string& verb,
                                                            const py::dict& options);
[[nodiscard]] py::dict CollectiveDict(const actors::CollectiveStatus& status);

}  // namespace troupe::pyapi
