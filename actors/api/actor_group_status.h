// How a group of actors stands, and what has happened in it.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

enum class GroupMemberState : uint8_t {
  kStarting,    // Waits for a place, or its constructor runs.
  kAlive,       // It can be called.
  kRestarting,  // It has died and is being replaced.
  kDraining,    // It was asked to leave, and has not left.
};
constexpr GroupMemberState LastValue(GroupMemberState) { return GroupMemberState::kDraining; }
// "starting", "alive", "restarting", "draining".
[[nodiscard]] const char* GroupMemberStateName(GroupMemberState state);

enum class GroupEventKind : uint8_t {
  kAdded,     // A member of this number is wanted.
  kAlive,     // It can be called, for the first time or again.
  kDied,      // Its process has ended; another one is being started.
  kDraining,  // It is to leave.
  kLeft,      // It is no member any more, as it was asked to.
  kLost,      // It is no member any more: it has ended for good.
  kResized,   // The group has another size from now on.
  kBelowMin,  // Fewer than min_size members can be called.
  kEnded,     // The group is over.
};
constexpr GroupEventKind LastValue(GroupEventKind) { return GroupEventKind::kEnded; }
// "added", "alive", "died", "draining", "left", "lost", "resized", "below_min", "ended".
[[nodiscard]] const char* GroupEventKindName(GroupEventKind kind);

struct GroupEvent {
  uint64_t sequence = 0;  // Grows by one with each event of a group.
  GroupEventKind kind = GroupEventKind::kAdded;
  int32_t member = -1;  // Its number; -1: it is about the group.
  std::string detail;   // Why.
  template <class A>
  void Fields(A& a) {
    a(sequence, kind, member, detail);
  }
};

// How a group of actors stands.
struct ActorGroupStatus {
  struct Member {
    uint32_t number = 0;  // Never used again in this group.
    std::string actor;
    uint64_t incarnation = 0;
    GroupMemberState state = GroupMemberState::kStarting;
    std::string reason;  // Why it is not alive.
    template <class A>
    void Fields(A& a) {
      a(number, actor, incarnation, state, reason);
    }
  };
  std::string id;
  std::string name;  // Also that of its collective group.
  std::string type;
  uint32_t min_size = 0;
  uint32_t size = 0;  // As many as there are to be.
  uint32_t max_size = 0;
  bool ended = false;
  std::string reason;           // Why it has ended, or is below min_size.
  std::vector<Member> members;  // By number.
  std::vector<GroupEvent> events;
  uint64_t sequence = 0;  // Of the last event.
  uint64_t missed = 0;    // Events after `since` that are not known any more.
  template <class A>
  void Fields(A& a) {
    a(id, name, type, min_size, size, max_size, ended, reason, members, events, sequence, missed);
  }
};

}  // namespace troupe
