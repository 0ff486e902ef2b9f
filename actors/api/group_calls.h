// What a process asks of the cluster about groups of actors, and calls of all of their members.
// Thread: any; callbacks come on a thread of the runtime and must not block.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/api/actor_group_options.h"
#include "actors/api/future.h"
#include "actors/core/actor_group_protocol.h"
#include "actors/host/actor_system.h"

namespace troupe::actors {

// By number; of a run.
using GroupResults = std::vector<std::pair<uint32_t, std::string>>;

[[nodiscard]] Result<ActorGroupStatus> MakeGroup(const std::shared_ptr<ActorSystem>& system,
                                                 const ActorGroupOptions& options,
                                                 const ActorBlueprint& blueprint);
// kNotFound; kInvalidArgument if it is of another type; empty: of any.
[[nodiscard]] Result<ActorGroupStatus> FindActorGroup(const std::shared_ptr<ActorSystem>& system,
                                                      const std::string& name,
                                                      const std::string& type);
void AskActorGroupLater(const std::shared_ptr<ActorSystem>& system, ActorGroupRequest request,
                        Duration limit, ActorDirectoryClient::OnActorGroup done);
// Asks the head; kUnavailable: this process is not part of a cluster.
[[nodiscard]] Result<ActorGroupStatus> AskActorGroup(const std::shared_ptr<ActorSystem>& system,
                                                     ActorGroupRequest request, Duration limit);
// Calls `method` of every member that is there or comes while none has returned. `done` runs once:
// with the results when all members that are there have returned, or with the error of one.
// Returns what gives it up.
std::shared_ptr<PendingCall> RunOnGroup(const std::shared_ptr<ActorSystem>& system,
                                        const std::string& group, const std::string& method,
                                        std::string arguments, Duration limit,
                                        std::function<void(Result<GroupResults>)> done);
// Until `count` members are alive; 0: as many as there are to be.
[[nodiscard]] Status WaitForGroup(const std::shared_ptr<ActorSystem>& system,
                                  const std::string& group, uint32_t count, Duration limit);
// `told` gets every event from now on, in order, on a thread of the runtime; not after the watch
// has gone.
[[nodiscard]] std::shared_ptr<void> WatchGroup(const std::shared_ptr<ActorSystem>& system,
                                               const ActorGroupStatus& from,
                                               std::function<void(const GroupEvent&)> told);

}  // namespace troupe::actors
