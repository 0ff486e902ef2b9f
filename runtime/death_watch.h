// Death watch of one host: a page of process-shared robust mutexes, one slot per worker
// incarnation.
//
// A worker's idle thread holds its slot's mutex for life. The kernel releases it with EOWNERDEAD
// before it tears the address space down, so the node's watcher wakes within about 0.1 ms of a kill
// however large the heap is; a socket's EOF comes only after that (80 us per dirty MiB). pidfds
// stand behind it for the exit status.
// Thread: Watch and Hold from any thread.
// Owns: the mapping; the file belongs to the node that created it.
// Limits: kDeathWatchSlots workers per host at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/result.h"

namespace troupe {

inline constexpr uint32_t kDeathWatchSlots = 256;

class DeathWatch {
 public:
  // Creates the file (mode 0600) with all slots free; the node does this once.
  static Result<std::unique_ptr<DeathWatch>> Create(const std::string& path);
  // Maps an existing file; a worker does this.
  static Result<std::unique_ptr<DeathWatch>> Open(const std::string& path);
  ~DeathWatch();

  // Worker side: takes the slot on a thread of its own and holds it until this object or the
  // process ends. kFenced if it has been reset since this `turn`; kAlreadyExists if it is held, or
  // this object holds one.
  Status Hold(uint32_t slot, uint64_t turn);

  // Node side: resets a slot for a new worker, whose turn it is then. A process that was given up
  // while it was being started may come late, with the slot of before. REQUIRES: nobody watches it,
  // nor holds it in its turn.
  uint64_t Reset(uint32_t slot);
  // Node side: somebody has taken it since.
  [[nodiscard]] bool WasHeld(uint32_t slot) const;
  // Node side: calls `on_death` once, from a thread of this object, when the holder of the slot is
  // gone, killed or in good order. A worker that has not taken its slot yet is waited for; Unwatch
  // ends the watch without a call. REQUIRES: `on_death` does not call Unwatch.
  void Watch(uint32_t slot, std::function<void()> on_death);
  void Unwatch(uint32_t slot);

 private:
  struct Impl;
  explicit DeathWatch(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
