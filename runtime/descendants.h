// Ending what processes have started and left behind.
//
// It needs this process to be a child subreaper: the kernel hands it whatever becomes an orphan
// below it, also one that made a session or a process group of its own. Of a process without other
// children than these no descendant escapes.
// Thread: that of the only ones to wait for children of this process.
// Limits: what cannot be killed is left after the time given.
#pragma once

#include <set>

#include "runtime/clock.h"

namespace troupe {

// Whatever is orphaned below this process becomes its child.
void BecomeSubreaper();
// Kills and reaps all descendants of this process. False if some are left after `limit`.
bool EndDescendants(Duration limit);
// Kills the children of this process other than `known`, and all below them, and reaps those that
// have ended. Never waits. True if none is left.
bool EndStrays(const std::set<int>& known);

}  // namespace troupe
