// The class Group of troupe._core: a worker's elastic group and its collectives.
//
// Tensors arrive as addresses and sizes; their memory must stay until wait() has returned.
#pragma once

#include "daemons/worker_client.h"
#include "pyapi/python_support.h"

namespace troupe::pyapi {

void BindGroup(py::module_& m);
// `client` must outlive the object.
[[nodiscard]] py::object MakeGroup(daemons::WorkerClient* client);

}  // namespace troupe::pyapi
