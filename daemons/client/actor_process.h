// ActorProcess: the life of a worker process that hosts a placed actor, from its start until it is
// let go.
// Thread: Run blocks its caller; the actor has threads of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "actors/host/actor_system.h"
#include "daemons/client/worker_client.h"

namespace troupe::daemons {

struct ActorProcessOptions {
  actors::TypeTable types;
  actors::Program program;  // How more processes like this one are started.
  bool has_cpu = false;     // The actor was given some, and lends it while all its calls wait.
};

// In a process that a node has started for an actor: whether this is one.
[[nodiscard]] bool InActorProcess();
// Hosts the actor that the head assigns to this process, and ends the process after it.
[[noreturn]] void HostAssigned(const ActorProcessOptions& options);
// Tells the head that the actor that it assigns cannot be made, and why; ends the process.
[[noreturn]] void RefuseAssigned(const Error& why);

// Hosts the actor of `worker`'s assignment until the head lets the process go. Returns the exit
// status of the process.
int RunActorProcess(WorkerClient& worker, const Assignment& assignment,
                    ActorProcessOptions options);

// The actor system of this process as part of the cluster that `worker` belongs to.
struct ProcessSystem;
[[nodiscard]] Result<std::shared_ptr<actors::ActorSystem>> JoinCluster(WorkerClient& worker,
                                                                       const std::string& owner,
                                                                       ActorProcessOptions options);

}  // namespace troupe::daemons
