// What actors ask the scheduler for, and by which names.
// Thread: any.
#pragma once

#include <string>
#include <utility>

#include "actors/core/cluster_protocol.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

inline constexpr const char* kActorLease = "actor/";  // "actor/ID#INCARNATION".

[[nodiscard]] std::string MakeLeaseId(const std::string& actor, uint64_t incarnation);
// Actor and incarnation of a lease; an empty actor if it is another's.
[[nodiscard]] std::pair<std::string, uint64_t> ParseLeaseId(const std::string& lease);
// kInvalidArgument says what of the wish cannot be.
[[nodiscard]] Result<sched::LeaseRequest> LeaseFor(const actors::ActorSpec& spec,
                                                   uint64_t incarnation);

}  // namespace troupe::daemons
