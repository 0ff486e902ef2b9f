// FileLane: one thread that touches files in the order in which it was asked to, for who must not
// wait for a file system that hangs.
//
// Thread: any. Owns: its thread; a file system that has hung keeps it beyond the destructor, which
// waits up to kFileLaneClose.
// Limits: kFileLaneBytesMax of what waits; who finds it full waits in its own way.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace troupe {

inline constexpr size_t kFileLaneBytesMax = size_t{4} << 20;
inline constexpr size_t kFileLaneTaskBytes = 256;  // What a task counts beside its bytes.
inline constexpr Duration kFileLaneClose = seconds(2);

class FileLane {
 public:
  FileLane();
  ~FileLane();
  FileLane(const FileLane&) = delete;
  FileLane& operator=(const FileLane&) = delete;

  // False, and nothing done, if more than kFileLaneBytesMax would wait.
  [[nodiscard]] bool Post(size_t bytes, std::function<void()> task);
  // Half of what may wait does: who can wait with more, should.
  [[nodiscard]] bool HalfFull() const;
  // Whether nothing waits any more, within `limit`.
  [[nodiscard]] bool WaitIdle(Duration limit);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A file that is only added to, on a lane. It is opened there, too, and holds a shared lock (flock)
// as long as this lives. With `bytes_max` it keeps the newest: at half it becomes PATH.1, in the
// place of the one before, and begins anew.
class LogFile {
 public:
  LogFile(FileLane* lane, std::string path, size_t bytes_max = 0);
  [[nodiscard]] const std::string& path() const { return path_; }
  // False if the lane has no room for it: it is not in the file then.
  [[nodiscard]] bool Append(std::string_view text);
  // Whether the file could not be opened or written to.
  [[nodiscard]] bool failed() const;

 private:
  struct File;
  FileLane* const lane_;
  const std::string path_;
  std::shared_ptr<File> file_;
};

}  // namespace troupe
