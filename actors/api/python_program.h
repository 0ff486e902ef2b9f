// Actors and tasks of Python that a C++ program starts, by "module:name".
//
//   const troupe::PythonProgram python{.path = "/opt/shop"};
//   auto till = troupe::SpawnPython(cluster, {.name = "till"}, python, "shop:Till", 10).value();
//   int sold = till.CallNamed<int>("sell", 3).Get().value();
//   troupe::Future<double> price = troupe::RunPython<double>(cluster, {}, python, "shop:price", 3);
//
// The interpreter is one on the nodes, which imports `troupe` of this release and the module; what
// is decorated with @troupe.remote there is taken without its options. Values are converted as for
// DynamicHandle: docs/actors.md has the table.
// Thread: any.
#pragma once

#include <string>
#include <utility>

#include "actors/api/dynamic_handle.h"

namespace troupe {

struct PythonProgram {
  std::string interpreter = "python3";  // A path, or looked for in the PATH of the node.
  std::string path = {};                // Its PYTHONPATH; empty: as the node has it.

  template <class Options>
  [[nodiscard]] Options With(Options options) const {
    options.program = {interpreter, "-m", "troupe.worker"};
    if (!path.empty()) options.env["PYTHONPATH"] = path;
    return options;
  }
};

// As SpawnDynamic. kUserError: the class cannot be imported, or its constructor raised.
template <class... A>
[[nodiscard]] Result<DynamicHandle> SpawnPython(const Cluster& cluster, const ActorOptions& options,
                                                const PythonProgram& python,
                                                const std::string& name, A&&... arguments) {
  return SpawnDynamic(cluster, python.With(options), name, std::forward<A>(arguments)...);
}

// As RunDynamic; void for a function that returns None. kUserError: it cannot be imported, or it
// raised; kCorrupt: what it returned is no R.
template <class R, class... A>
[[nodiscard]] Future<R> RunPython(const Cluster& cluster, const TaskOptions& options,
                                  const PythonProgram& python, const std::string& name,
                                  A&&... arguments) {
  return RunDynamic<R>(cluster, python.With(options), name, std::forward<A>(arguments)...);
}

}  // namespace troupe
