// The class CommitStore of troupe._core.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/error.h"

namespace troupe::pyapi {

// `raise` throws the Python exception of an error; it does not return.
void BindCommitStore(pybind11::module_& m, void (*raise)(const Error&));

}  // namespace troupe::pyapi
