// Messages about groups of actors, between the head and processes that make, resize or call them.
//
// Requests are answered and repeated as those of actors (cluster_protocol.h); asking twice is
// asking once. "watch" is answered when something has happened after `since`, at the latest when
// its time is over, so that whoever follows a group needs no other way to hear of it.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/api/actor_group_status.h"
#include "actors/core/cluster_protocol.h"

namespace troupe::actors {

inline constexpr uint8_t kFrameActorGroupRequest = 104;
inline constexpr uint8_t kActorGroupRecord = 105;
inline constexpr uint8_t kFrameLeaveActor = 106;
inline constexpr uint32_t kGroupMembersMax = kCollectiveMembersMax;
inline constexpr const char* kActorGroupId = "group-";  // What ids begin with.
// In the environment of the members: the name of the group, and of their collective group.
inline constexpr const char* kActorGroupVariable = "TROUPE_ACTOR_GROUP";

struct ActorGroupSpec {
  std::string group;  // Its id, chosen by the creator.
  std::string name;   // Unique among those there are; empty: its id.
  std::string owner;  // Who it ends with, as in ActorSpec; ignored if it is detached.
  bool detached = false;
  uint32_t min_size = 1;
  uint32_t size = 1;
  uint32_t max_size = 1;
  double below_min_s = 600;  // It ends after so long with fewer than min_size members.
  ActorSpec member;          // What its members are; without id, name and owner.
  // The workers of a training run, which knows when it is over: whoever is lost is followed by
  // another, however few are left. For the head itself.
  bool of_run = false;
  std::string strategy = {};  // Of its first members together; empty: that of each.
  template <class A>
  void Fields(A& a) {
    a(group, name, owner, detached, min_size, size, max_size, below_min_s, member, of_run,
      strategy);
  }
};

enum class ActorGroupVerb : uint8_t {
  kCreate,  // `spec` whole.
  kFind,    // By spec.name.
  kStatus,
  kWatch,     // Events after `since`.
  kResize,    // To `size`.
  kDrain,     // `member` is to leave, for `reason`, by `limit_s`.
  kEnd,       // For `reason`.
  kRun,       // A method is called of all members.
  kReturned,  // `member` has returned from it.
};
constexpr ActorGroupVerb LastValue(ActorGroupVerb) { return ActorGroupVerb::kReturned; }

struct ActorGroupRequest {
  uint64_t request = 0;
  ActorGroupVerb verb = ActorGroupVerb::kStatus;
  ActorGroupSpec spec;  // But for kCreate and kFind only its id counts.
  uint32_t size = 0;
  uint32_t member = 0;
  std::string reason;
  double limit_s = 0;
  uint64_t since = 0;
  template <class A>
  void Fields(A& a) {
    a(request, verb, spec, size, member, reason, limit_s, since);
  }
};

// To the process of an actor: it takes no part in collectives after the next boundary, and ends
// when it has done what it was asked for.
struct LeaveActor {
  std::string actor;
  uint64_t incarnation = 0;
  std::string reason;
  bool unheld = false;  // Nobody refers to it, as far as can be known who has heard, of the notes
  uint64_t heard = 0;   // of its process on it, that of this version.
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, reason, unheld, heard);
  }
};

}  // namespace troupe::actors
