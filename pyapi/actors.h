// Actors for Python: the actor system of a driver's process and that of a worker's.
// Thread: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "daemons/client/driver_client.h"
#include "daemons/client/worker_client.h"

namespace troupe::pyapi {

namespace py = pybind11;

struct DriverActorOptions {
  std::vector<std::string> worker_argv;
  std::vector<std::string> preload;  // Modules for processes that are started ahead.
  std::string python_path;
  std::string key_file;
  std::string data_address;
};

void BindActors(py::module_& m);
// The actor system beside a driver's client, which must outlive it.
[[nodiscard]] py::object MakeDriverActors(daemons::DriverClient* client,
                                          const DriverActorOptions& options);
// That of a worker whose assignment is an actor.
[[nodiscard]] py::object MakeWorkerActors(daemons::WorkerClient* client);

}  // namespace troupe::pyapi
