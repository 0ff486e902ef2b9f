// NodeWorker: the process of one worker of a node, its output and its log.
//
// Thread: the node's loop.
#pragma once

#include <cstdint>
#include <optional>

#include "daemons/node/guarded_process.h"
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
  uint32_t slot = 0;
  Stream out;
  Stream err;
  TokenBucket reading{static_cast<double>(kReadBytesPerSecond), kReadBurstBytes};
  std::optional<LogFile> log = {};
};

}  // namespace troupe::daemons
