// ActorGroup: one group of actors on the head, as data. ActorGroups moves it.
// Thread: the head's loop.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "daemons/head/core/actor_group_actions.h"
#include "runtime/clock.h"

namespace troupe::daemons {

struct ActorGroup {
  struct Member {
    ActorGroupRecord::Member record;
    uint64_t incarnation = 0;
    GroupMemberState state = GroupMemberState::kStarting;  // But for draining.
    bool placed = false;                                   // Its life has a process.
    uint64_t life = 0;                                     // Younger ones have greater numbers.
    std::string reason;
    Time leave_by = Time::Never();
    Time ask_again = Time::Never();  // To leave: the word may have been lost.
  };
  actors::ActorGroupSpec spec;
  uint32_t size = 0;
  uint32_t next_member = 0;
  uint64_t restarts = 0;
  std::map<uint32_t, Member> members;
  std::deque<GroupEvent> events;
  uint64_t sequence = 0;
  bool formed = false;          // min_size members have been alive at once.
  bool closed = false;          // Nobody is to join it for now.
  std::set<uint32_t> returned;  // From the run that there is.
  Time dismiss_at = Time::Never();
  Time below_since = Time::Never();  // Fewer than min_size are alive.
  std::string below_reason;
  std::optional<std::string> ended;  // Why.
  Time ended_at{};
};

}  // namespace troupe::daemons
