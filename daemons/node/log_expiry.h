// The folder of a node's logs, kept within bounds: those of workers that ended first go first.
//
// A worker that lives, of this node or of another one that shares the folder, holds a lock on its
// file (LogFile); its files stay. Logs of daemons stay, too.
// Thread: any; touches the disk.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::daemons {

struct LogLimits {
  uint64_t worker_bytes = uint64_t{64} << 20;  // Of one worker: its newest output.
  uint64_t folder_bytes = uint64_t{1} << 30;   // Of all workers that have ended,
  size_t folder_files = 1000;                  // and how many files that may be.
};

// Removes what is too much; returns how many files. What cannot be removed stays.
size_t ExpireWorkerLogs(const std::string& folder, const LogLimits& limits);

}  // namespace troupe::daemons
