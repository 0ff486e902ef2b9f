#include "actors/host/placing.h"

#include <algorithm>

#include "runtime/process.h"
#include "runtime/wire.h"

namespace troupe::actors {

Error NoCluster() {
  return Error{
      ErrorCode::kUnavailable,
      "this process is not part of a cluster: in C++ it joins one by troupe::Init, in Python by "
      "troupe.init()"};
}

Status CheckProgram(const ActorOptions& options) {
  if (options.plugin.empty()) return Status::Ok();
  if (!options.program.empty())
    return Error{ErrorCode::kInvalidArgument, "an actor is of a plugin or of a program, not both"};
  if (options.plugin.starts_with('/')) return Status::Ok();
  return Error{
      ErrorCode::kInvalidArgument,
      "a plugin is named by its absolute path on the nodes, not \"" + options.plugin + "\""};
}

ActorSpec SpecOf(const ActorSystem& system, const ActorOptions& options,
                 const ActorBlueprint& blueprint) {
  ActorSpec spec;
  spec.counted = !options.counted_as.empty() && !options.detached;
  spec.actor = spec.counted ? options.counted_as : RandomId();
  spec.name = options.name;
  spec.type = blueprint.type;
  spec.owner = system.directory_client()->owner();
  spec.detached = options.detached;
  spec.get_if_exists = options.get_if_exists;
  spec.blueprint = wire::Encode(kActorBlueprint, blueprint);
  spec.wish = {options.resources,       options.strategy, options.labels,
               options.prefer,          options.node,     options.node_soft,
               options.placement_group, options.bundle,   options.priority};
  spec.program = system.options().program;
  if (!options.plugin.empty()) {
    spec.program.argv = system.options().plugin_host;
    spec.program.spare_argv.clear();
    spec.program.argv.push_back(options.plugin);
  }
  if (!options.program.empty()) spec.program = {options.program, {}};
  if (!options.env.empty()) spec.program.spare_argv.clear();  // Few others will have the same.
  for (const auto& [key, value] : options.env) spec.program.env[key] = value;
  spec.max_restarts = options.max_restarts;
  spec.backoff_ms = static_cast<uint64_t>(std::max<int64_t>(0, options.backoff / milliseconds(1)));
  spec.backoff_max_ms =
      static_cast<uint64_t>(std::max<int64_t>(0, options.backoff_most / milliseconds(1)));
  spec.start_timeout_s = ToSeconds(options.timeout);
  spec.runs_tasks = options.runs_tasks;
  return spec;
}

}  // namespace troupe::actors
