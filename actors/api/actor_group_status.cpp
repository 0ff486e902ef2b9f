#include "actors/api/actor_group_status.h"

namespace troupe {

const char* GroupMemberStateName(GroupMemberState state) {
  static constexpr const char* kNames[] = {"starting", "alive", "restarting", "draining"};
  return kNames[static_cast<size_t>(state)];
}

const char* GroupEventKindName(GroupEventKind kind) {
  static constexpr const char* kNames[] = {"added", "alive",   "died",      "draining", "left",
                                           "lost",  "resized", "below_min", "ended"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace troupe
