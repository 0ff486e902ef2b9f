#include "pyapi/actor_program.h"

#include <sstream>

#include "runtime/process.h"

namespace troupe::pyapi {
namespace {

constexpr const char* kPreload = "TROUPE_WORKER_PRELOAD";  // Names with commas between them.
constexpr const char* kPath = "PYTHONPATH";

}  // namespace

actors::Program ActorProgram(const std::vector<std::string>& argv,
                             const std::vector<std::string>& preload,
                             const std::string& python_path) {
  actors::Program program{argv, {}, argv};
  program.spare_argv.emplace_back("--spare");
  std::string list;
  for (const std::string& module : preload) {
    program.spare_argv.push_back(module);
    list += (list.empty() ? "" : ",") + module;
  }
  program.env[kPreload] = list;
  if (!python_path.empty()) program.env[kPath] = python_path;
  return program;
}

actors::Program ProgramOfWorker(const std::string& python) {
  std::vector<std::string> preload;
  std::istringstream list(Env(kPreload));
  for (std::string module; std::getline(list, module, ',');) preload.push_back(module);
  return ActorProgram({python, "-m", "troupe.worker"}, preload, Env(kPath));
}

}  // namespace troupe::pyapi
