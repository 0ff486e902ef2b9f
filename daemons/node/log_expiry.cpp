#include "daemons/node/log_expiry.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "worker-";
constexpr std::string_view kSuffix = ".log";

// All files of one worker: its log, and the part before.
struct WorkerLogs {
  std::vector<fs::path> files;
  uint64_t bytes = 0;
  std::pair<int64_t, int64_t> written;  // Last: seconds, nanoseconds.
};

bool Lives(const fs::path& log) {
  const int fd = ::open(log.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) != 0;
  ::close(fd);
  return locked;
}

// By the worker's name, without any suffix.
std::map<std::string, WorkerLogs> LogsIn(const std::string& folder) {
  std::map<std::string, WorkerLogs> logs;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const size_t suffix = name.rfind(kSuffix);
    if (!name.starts_with(kPrefix) || suffix == std::string::npos) continue;
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    WorkerLogs& of = logs[name.substr(0, suffix)];
    of.files.push_back(it->path());
    of.bytes += static_cast<uint64_t>(info.st_size);
    of.written = std::max<std::pair<int64_t, int64_t>>(of.written,
                                                       {info.st_mtim.tv_sec, info.st_mtim.tv_nsec});
  }
  return logs;
}

}  // namespace

size_t ExpireWorkerLogs(const std::string& folder, const LogLimits& limits) {
  std::vector<std::pair<std::string, WorkerLogs>> ended;
  uint64_t bytes = 0;
  size_t files = 0;
  for (auto& [worker, logs] : LogsIn(folder)) {
    if (Lives(fs::path(folder) / (worker + std::string(kSuffix)))) continue;
    bytes += logs.bytes;
    files += logs.files.size();
    ended.emplace_back(worker, std::move(logs));
  }
  std::ranges::sort(ended, {}, [](const auto& one) { return one.second.written; });
  size_t removed = 0;
  for (const auto& [worker, logs] : ended) {
    if (bytes <= limits.folder_bytes && files <= limits.folder_files) break;
    for (const fs::path& file : logs.files) {
      std::error_code error;
      removed += fs::remove(file, error) ? 1 : 0;
    }
    bytes -= logs.bytes;
    files -= logs.files.size();
  }
  return removed;
}

}  // namespace troupe::daemons
