#include "runtime/file_lane.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/log.h"
#include "runtime/thread.h"

namespace troupe {

struct FileLane::State {
  std::mutex mu;
  std::condition_variable changed;
  std::deque<std::pair<size_t, std::function<void()>>> tasks;
  size_t bytes = 0;  // Of those that wait and of the one that runs.
  bool stopping = false;

  void Run() {
    NameThisThread("files");
    std::unique_lock lock(mu);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !tasks.empty(); });
      if (tasks.empty()) return;
      auto [size, task] = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      bytes -= size;
      changed.notify_all();
    }
  }
};

// Detached: a thread that hangs in a file system cannot be joined.
FileLane::FileLane() : state_(std::make_shared<State>()) {
  std::thread([state = state_] { state->Run(); }).detach();
}

FileLane::~FileLane() {
  (void)WaitIdle(kFileLaneClose);
  std::lock_guard lock(state_->mu);
  state_->stopping = true;
  state_->tasks.clear();
  state_->changed.notify_all();
}

bool FileLane::Post(size_t bytes, std::function<void()> task) {
  std::lock_guard lock(state_->mu);
  const size_t size = bytes + kFileLaneTaskBytes;
  if (state_->bytes + size > kFileLaneBytesMax) return false;
  state_->bytes += size;
  state_->tasks.emplace_back(size, std::move(task));
  state_->changed.notify_all();
  return true;
}

bool FileLane::HalfFull() const {
  std::lock_guard lock(state_->mu);
  return state_->bytes >= kFileLaneBytesMax / 2;
}

bool FileLane::WaitIdle(Duration limit) {
  std::unique_lock lock(state_->mu);
  return state_->changed.wait_for(lock, limit, [this] { return state_->bytes == 0; });
}

struct LogFile::File {
  const std::string path;
  const size_t bytes_max;
  int fd = -1;
  size_t size = 0;
  bool opened = false;
  std::atomic<bool> failed{false};

  File(std::string at, size_t limit) : path(std::move(at)), bytes_max(limit) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) ::close(fd);
  }

  void Open() {
    fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    struct stat info {};
    size = fd >= 0 && ::fstat(fd, &info) == 0 ? static_cast<size_t>(info.st_size) : 0;
    if (fd >= 0) (void)::flock(fd, LOCK_SH);  // Who cleans up sees that it is in use.
  }

  void Fail() {
    LogWarning("cannot write ", path, ": ", std::strerror(errno));
    failed = true;
  }

  // Makes room for `more` bytes.
  void Rotate(size_t more) {
    if (bytes_max == 0 || size == 0 || size + more <= bytes_max / 2 || fd < 0) return;
    if (::rename(path.c_str(), (path + ".1").c_str()) != 0) return Fail();
    ::close(fd);
    Open();
  }

  void Write(std::string_view text) {
    if (!std::exchange(opened, true)) Open();
    Rotate(text.size());
    while (!failed && !text.empty()) {
      const ssize_t put = fd < 0 ? -1 : ::write(fd, text.data(), text.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return Fail();
      size += static_cast<size_t>(put);
      text.remove_prefix(static_cast<size_t>(put));
    }
  }
};

LogFile::LogFile(FileLane* lane, std::string path, size_t bytes_max)
    : lane_(lane), path_(std::move(path)), file_(std::make_shared<File>(path_, bytes_max)) {
  (void)lane_->Post(0, [file = file_] { file->Write(""); });
}

bool LogFile::Append(std::string_view text) {
  return lane_->Post(text.size(),
                     [file = file_, bytes = std::string(text)] { file->Write(bytes); });
}

bool LogFile::failed() const { return file_->failed; }

}  // namespace troupe
