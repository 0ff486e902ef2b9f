// What a guard and its worker do before the worker's program begins: whoever started it (exec of
// troupe-guard, or a fork server), it lives and dies with its guard.
// Thread: that of a process without others, between fork and what the process is for.
#pragma once

namespace troupe {

// Of a guard: whatever is orphaned below it becomes its child, and the signals that it reads from a
// signalfd wait for that.
void PrepareGuard();
// Of the worker: alone in its process group, killed when its guard ends, offered to the kernel
// where memory runs out, with `input` as its stdin (-1: nothing to read). False: the guard has
// ended, or there is no stdin.
[[nodiscard]] bool PrepareWorker(int guard, int input);

}  // namespace troupe
