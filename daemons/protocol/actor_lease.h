// What actors ask the scheduler for, and by which names.
// Thread: any.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "actors/core/cluster_protocol.h"
#include "daemons/protocol/messages.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

inline constexpr const char* kActorLease = "actor/";  // "actor/ID#INCARNATION".

// The actors that are workers of runs: "run/RUN/w0#1", owned by "run/RUN".
inline constexpr const char* kRunActor = "run/";
[[nodiscard]] inline bool IsRunActor(std::string_view actor) {
  return actor.starts_with(kRunActor);
}
[[nodiscard]] inline std::string RunOwner(const std::string& run) { return kRunActor + run; }

[[nodiscard]] std::string MakeLeaseId(const std::string& actor, uint64_t incarnation);
// Actor and incarnation of a lease; an empty actor if it is another's.
[[nodiscard]] std::pair<std::string, uint64_t> ParseLeaseId(const std::string& lease);
// kInvalidArgument says what of the wish cannot be.
[[nodiscard]] Result<sched::LeaseRequest> LeaseFor(const actors::ActorSpec& spec,
                                                   uint64_t incarnation);
// For what a process has, whoever it was for.
[[nodiscard]] Result<sched::LeaseRequest> LeaseFor(const std::string& lease,
                                                   const WorkerRoom& room);

}  // namespace troupe::daemons
