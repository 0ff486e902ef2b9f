// The class CommitStore of troupe._core.
#pragma once

#include <pybind11/pybind11.h>

namespace troupe::pyapi {

void BindCommitStore(pybind11::module_& m);

}  // namespace troupe::pyapi
