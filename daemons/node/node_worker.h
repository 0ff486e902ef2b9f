// NodeWorker: what a node knows of one of its workers.
//
// Thread: the node's loop.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "daemons/node/guarded_process.h"
#include "daemons/protocol/messages.h"
#include "runtime/file_lane.h"
#include "runtime/token_bucket.h"

namespace troupe::daemons {

inline constexpr size_t kReadBytesPerSecond = size_t{16} << 20;  // Of one worker's output,
inline constexpr size_t kReadBurstBytes = size_t{64} << 20;      // after it has been silent.

struct NodeWorker {
  struct Stream {
    int fd = -1;
    bool is_stderr = false;
    bool paused = false;
  };

  GuardedProcess child;
  std::string lease;
  WorkerRoom room;
  uint64_t incarnation = 0;  // The node's that started it.
  uint32_t slot = 0;
  Stream out;
  Stream err;
  bool death_reported = false;
  // Of a process that was started ahead: one that ends before it has taken its life lock was dead
  // when it was given its work, which then goes to another.
  std::optional<StartWorker> order = {};
  TokenBucket reading{static_cast<double>(kReadBytesPerSecond), kReadBurstBytes};
  std::optional<LogFile> log = {};
};

}  // namespace troupe::daemons
