// The class Group of troupe._core: an elastic group to train in, and its collectives.
//
// Tensors arrive as addresses and sizes; their memory must stay until wait() has returned.
#pragma once

#include <functional>
#include <memory>

#include "daemons/client/worker_client.h"
#include "pyapi/python_support.h"

namespace troupe::pyapi {

void BindGroup(py::module_& m);
// The group of a run's worker; `client` must outlive the object.
[[nodiscard]] py::object MakeGroup(daemons::WorkerClient* client);
// One that an actor trains in. `running`: others were in it before.
[[nodiscard]] py::object MakeGroup(std::shared_ptr<groups::GroupAgent> agent, uint32_t max_size,
                                   bool running);

}  // namespace troupe::pyapi
