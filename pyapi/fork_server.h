// The server's end of a fork server (runtime/fork_server.h) for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace troupe::pyapi {

void BindForkServer(pybind11::module_& module);

}  // namespace troupe::pyapi
