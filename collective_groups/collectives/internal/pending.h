// An operation of GroupAgent from its issue until it was waited for.
#pragma once

#include "collective_groups/membership/group_agent.h"

namespace troupe::groups {

struct GroupAgent::Pending {
  Operation operation;
  Progress progress;
  size_t bytes = 0;
  Epoch epoch = 0;
  Body body;
  bool done = false;
  Status status;
  uint64_t value = 0;
};

}  // namespace troupe::groups
