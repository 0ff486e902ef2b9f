#include "daemons/head/disk_spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe::daemons {
namespace {

class DiskFile final : public SpoolFile {
 public:
  explicit DiskFile(int fd) : fd_(fd) {}
  ~DiskFile() override { ::close(fd_); }

  [[nodiscard]] Status Append(std::string_view bytes) override {
    const uint64_t before = size_;
    while (!bytes.empty()) {
      const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        size_ = before;
        return Error{ErrorCode::kResourceExhausted,
                     std::string("the folder for temporary files of the head's host: ") +
                         std::strerror(errno)};
      }
      size_ += static_cast<uint64_t>(put);
      bytes.remove_prefix(static_cast<size_t>(put));
    }
    return Status::Ok();
  }

  [[nodiscard]] uint64_t size() const override { return size_; }

  [[nodiscard]] std::string Read(uint64_t offset, size_t count) const override {
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count) {
      const ssize_t got =
          ::pread(fd_, bytes.data() + have, count - have, static_cast<off_t>(offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }

 private:
  const int fd_;
  uint64_t size_ = 0;
};

}  // namespace

Result<std::shared_ptr<SpoolFile>> DiskSpool::Create() {
  std::error_code error;
  const auto temp = std::filesystem::temp_directory_path(error);
  std::string path = (error ? std::string("/tmp") : temp.string()) + "/troupe-spool-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    return Error{ErrorCode::kResourceExhausted,
                 "cannot make a file in " + path + ": " + std::strerror(errno)};
  }
  ::unlink(path.c_str());
  return std::shared_ptr<SpoolFile>(std::make_shared<DiskFile>(fd));
}

}  // namespace troupe::daemons
