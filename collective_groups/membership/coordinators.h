// Coordinators: those of some groups, to look at; and what they tell to whoever keeps the groups.
// Thread: that of who owns them.
#pragma once

#include <string>
#include <variant>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {

// Once all members of an active epoch have told their pause: the longest.
struct EpochSettled {
  View view;
  Duration pause{};
};
using GroupNotice =
    std::variant<SendCommand, FenceMember, EpochActivated, EpochSettled, GroupStalled,
                 GroupUnreachable, GroupParked, GroupFailed, GroupEnded>;

class Coordinators {
 public:
  virtual ~Coordinators() = default;
  // Null if there is none (yet).
  [[nodiscard]] virtual const Coordinator* Find(const std::string& group) const = 0;
};

}  // namespace troupe::groups
