// How processes of Python's actors are started: by this interpreter, now or ahead of their actors.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"

namespace troupe::pyapi {

// `argv` starts a worker. Those that are started ahead of their actors import the modules `preload`
// meanwhile. `python_path` is what PYTHONPATH is to be; empty: nothing.
[[nodiscard]] actors::Program ActorProgram(const std::vector<std::string>& argv,
                                           const std::vector<std::string>& preload,
                                           const std::string& python_path);

// As this worker was started itself, so that actors of actors find the same spares. `python` is its
// interpreter.
[[nodiscard]] actors::Program ProgramOfWorker(const std::string& python);

}  // namespace troupe::pyapi
