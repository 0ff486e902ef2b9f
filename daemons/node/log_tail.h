// The end of a log file: what a node tells of its workers and of its host's daemons.
//
// Thread: any; reads from the disk.
// Limits: kLogTailBytesMax.
#pragma once

#include <string>

#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kLogTailBytesMax = 1 << 20;

// Where a log is: `log` is "worker-NAME", or a daemon's name. kInvalidArgument if it is no such
// name; kNotFound if this host keeps no logs.
[[nodiscard]] Result<std::string> LogPath(const std::string& log_dir, const std::string& log);
// At most the last `lines` lines, and no more than kLogTailBytesMax. kNotFound if there is no file.
[[nodiscard]] Result<std::string> ReadTail(const std::string& path, size_t lines);

}  // namespace troupe::daemons
