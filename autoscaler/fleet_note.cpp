#include "autoscaler/fleet_note.h"

namespace troupe {

std::string_view FleetNoteKindName(FleetNoteKind kind) {
  static constexpr std::string_view kNames[] = {
      "start", "decision", "launch", "up",      "notice", "drain",   "terminate",
      "gone",  "failure",  "group",  "account", "price",  "trouble", "end"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace troupe
