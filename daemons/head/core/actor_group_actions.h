// What the groups of actors want done by who has it, in this order; and what is durable of one.
// Thread: plain values.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "actors/core/actor_group_protocol.h"

namespace troupe::daemons {

struct KeepGroup {
  std::string group;
};
struct ForgetGroup {
  std::string group;
};
struct StartMembers {  // With room for `at_least` of them at once, if that is not 0.
  std::string group;
  std::vector<actors::ActorSpec> actors;
  size_t at_least = 0;
  std::string strategy = {};  // Of all of them; empty: that of each.
};
struct EndMember {
  std::string actor;
  std::string reason;
  bool overdue = false;  // It was to have left by now.
};
struct HoldMember {  // No life of it begins for now, or one may again.
  std::string actor;
  bool held = true;
};
struct DrainMember {  // It leaves the collective group at a boundary, and ends when it is idle.
  std::string group;
  std::string actor;
  std::string reason;
};
// The collective group goes on without them: the others have returned from a run.
struct DismissMembers {
  std::string group;
  std::vector<std::string> actors;
  std::string reason;
};
struct ReadmitMembers {  // Those that were dismissed.
  std::string group;
};
struct TellGroup {  // Those who wait for something to happen in it.
  std::string group;
};
using ActorGroupAction = std::variant<KeepGroup, ForgetGroup, StartMembers, EndMember, HoldMember,
                                      DrainMember, DismissMembers, ReadmitMembers, TellGroup>;
using ActorGroupActions = std::vector<ActorGroupAction>;

// What is durable of a group.
struct ActorGroupRecord {
  struct Member {
    uint32_t number = 0;
    std::string actor;
    bool draining = false;
    std::string reason;          // Why it is to leave,
    uint64_t limit_ms = 30'000;  // in which time; 0: as long as it takes.
    bool finished = false;       // What it was to do is done: it has no other life.
    template <class A>
    void Fields(A& a) {
      a(number, actor, draining, reason, limit_ms, finished);
    }
  };
  actors::ActorGroupSpec spec;
  uint32_t size = 0;
  uint32_t next_member = 0;
  uint64_t restarts = 0;  // Of heads since it was made: their events have other numbers.
  std::vector<Member> members;
  bool formed = false;  // min_size members have been alive at once.
  template <class A>
  void Fields(A& a) {
    a(spec, size, next_member, restarts, members, formed);
  }
};

// The collective group that a group's members are in is to hold exactly these.
struct GroupMembership {
  std::string name;
  uint32_t min_size = 0;
  uint32_t max_size = 0;
  std::vector<std::string> actors;
};

}  // namespace troupe::daemons
