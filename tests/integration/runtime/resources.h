// Counts of what this process holds, to tell a leak.
// Thread: any.
#pragma once

#include <filesystem>

namespace troupe::tests {

inline size_t CountEntries(const char* directory) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}
inline size_t OpenDescriptors() { return CountEntries("/proc/self/fd"); }
inline size_t Threads() { return CountEntries("/proc/self/task"); }

}  // namespace troupe::tests
