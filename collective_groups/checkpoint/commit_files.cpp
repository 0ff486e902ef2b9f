#include "collective_groups/checkpoint/commit_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace troupe::groups {
namespace {

// One call of write(2) or read(2) moves at most this much, so that it returns now and then.
constexpr size_t kCallBytesMax = size_t{64} << 20;

Error SystemError(int number, const char* what, const std::string& path) {
  ErrorCode code = ErrorCode::kUnavailable;
  if (number == ENOSPC || number == EDQUOT || number == EFBIG) code = ErrorCode::kResourceExhausted;
  if (number == EACCES || number == EPERM || number == EROFS) code = ErrorCode::kPermissionDenied;
  if (number == ENOENT || number == ENOTDIR) code = ErrorCode::kNotFound;
  return Error{code, std::string("cannot ") + what + " " + path + ": " +
                         std::generic_category().message(number)};
}

Status Checked(int result, const char* what, const std::string& path) {
  if (result == 0) return Status::Ok();
  return SystemError(errno, what, path);
}

class PosixCommitFiles : public CommitFiles {
 public:
  Status MakeDirectory(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return SystemError(error.value(), "make the directory", path);
    return Status::Ok();
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(directory, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) return SystemError(error.value(), "list", directory);
    return names;
  }

  Result<int> Create(const std::string& path) override {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return SystemError(errno, "create", path);
    (void)::flock(file, LOCK_EX | LOCK_NB);  // Without locks leftovers just stay.
    return file;
  }

  Result<size_t> Write(int file, const void* data, size_t bytes, const std::string& path) override {
    for (;;) {
      const ssize_t written = ::write(file, data, std::min(bytes, kCallBytesMax));
      if (written >= 0) return static_cast<size_t>(written);
      if (errno != EINTR) return SystemError(errno, "write", path);
    }
  }

  Status Sync(int file, const std::string& path) override {
    return Checked(::fsync(file), "sync", path);
  }

  void Close(int file) override { ::close(file); }

  Status Rename(const std::string& from, const std::string& to) override {
    return Checked(std::rename(from.c_str(), to.c_str()), "rename to", to);
  }

  Status SyncDirectory(const std::string& path) override {
    const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return SystemError(errno, "open", path);
    const int result = ::fsync(directory);
    const int number = errno;
    ::close(directory);
    // Some network file systems cannot sync a directory and make renames durable by themselves.
    if (result == 0 || number == EINVAL) return Status::Ok();
    return SystemError(number, "sync", path);
  }

  Status Remove(const std::string& path) override {
    return Checked(::unlink(path.c_str()), "remove", path);
  }

  void RemoveAbandoned(const std::string& path) override {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) (void)::unlink(path.c_str());
    ::close(file);
  }

  Result<int> OpenToRead(const std::string& path) override {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return SystemError(errno, "open", path);
    return file;
  }

  Status ReadExactly(int file, void* data, size_t bytes, const std::string& path) override {
    auto* at = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::read(file, at, std::min(bytes, kCallBytesMax));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError(errno, "read", path);
      if (got == 0) return Error{ErrorCode::kCorrupt, path + " ends too early"};
      at += got;
      bytes -= static_cast<size_t>(got);
    }
    return Status::Ok();
  }

  Result<uint64_t> Size(int file, const std::string& path) override {
    struct stat info {};
    if (::fstat(file, &info) != 0) return SystemError(errno, "look at", path);
    return static_cast<uint64_t>(info.st_size);
  }
};

}  // namespace

std::unique_ptr<CommitFiles> MakeCommitFiles() { return std::make_unique<PosixCommitFiles>(); }

}  // namespace troupe::groups
