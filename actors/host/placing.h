// What the cluster is told of an actor that is to be started somewhere.
// Thread: any.
#pragma once

#include "actors/api/options.h"
#include "actors/core/cluster_protocol.h"
#include "actors/host/actor_system.h"

namespace troupe::actors {

// Of a process that is told of no directory.
[[nodiscard]] Error NoCluster();
// Of what a process is started with. The nodes' working directories are nobody's business.
[[nodiscard]] Status CheckProgram(const ActorOptions& options);
// With a new id. `system` is part of a cluster.
[[nodiscard]] ActorSpec SpecOf(const ActorSystem& system, const ActorOptions& options,
                               const ActorBlueprint& blueprint);

}  // namespace troupe::actors
