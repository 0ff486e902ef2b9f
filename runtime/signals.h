// Waiting for the end of a daemon: SIGTERM or SIGINT, or the close of a pipe that its parent holds
// open (the "lifeline": it closes whatever way the parent ends, so the daemon can still clean up).
// Thread: main.
#pragma once

#include <functional>

#include "runtime/clock.h"

namespace troupe {

enum class StopCause { kSignal, kLifeline, kCondition, kUser1 };

// Blocks SIGTERM and SIGINT for this and later threads and ignores SIGPIPE; call first in main.
void PrepareSignals();
// And SIGUSR1, before other threads are made: WaitForStop returns kUser1 at each.
void PrepareUser1();
// What is freed of large payloads goes back to the system at once: a daemon's size says what it
// holds.
void PrepareMemory();
// As many descriptors as the system allows; who is started from here inherits that.
void RaiseDescriptorLimit();
// Returns at a signal, which the next call does not see, when `lifeline_fd` (or -1) reaches its
// end, or when `condition` becomes true; it is looked at every `interval`.
StopCause WaitForStop(int lifeline_fd, const std::function<bool()>& condition,
                      Duration interval = milliseconds(50));

}  // namespace troupe
