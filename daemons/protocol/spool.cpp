#include "daemons/protocol/spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe::daemons {

Result<std::shared_ptr<SpoolFile>> SpoolFile::Create() {
  std::error_code error;
  const auto temp = std::filesystem::temp_directory_path(error);
  std::string path = (error ? std::string("/tmp") : temp.string()) + "/troupe-spool-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    return Error{ErrorCode::kResourceExhausted,
                 "cannot make a file in " + path + ": " + std::strerror(errno)};
  }
  ::unlink(path.c_str());
  return std::shared_ptr<SpoolFile>(new SpoolFile(fd));
}

SpoolFile::~SpoolFile() { ::close(fd_); }

Status SpoolFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      return Error{ErrorCode::kResourceExhausted,
                   std::string("the folder for temporary files of the head's host: ") +
                       std::strerror(errno)};
    }
    size_ += static_cast<uint64_t>(put);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return Status::Ok();
}

std::string SpoolFile::Read(uint64_t offset, size_t count) const {
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

Result<uint64_t> Uploads::Add(const WorkerPart& part) {
  if (part.total > kUploadBytesMax || part.upload == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "a payload has at most " + std::to_string(kUploadBytesMax) + " bytes"};
  }
  Upload& upload = uploads_[part.process];
  if (upload.number != part.upload) {
    if (part.offset > 0) return uint64_t{0};  // Its beginning went to another head.
    Result<std::shared_ptr<SpoolFile>> file = SpoolFile::Create();
    if (!file.ok()) return file.error();
    upload = {part.upload, part.total, std::move(*file)};
  }
  const uint64_t have = Have(part.process, part.upload);
  if (part.offset == have && upload.file && have + part.bytes.size() <= upload.total) {
    if (const Status s = upload.file->Append(part.bytes); !s.ok()) return s.error();
  }
  return Have(part.process, part.upload);
}

uint64_t Uploads::Have(const std::string& process, uint64_t upload) const {
  const auto it = uploads_.find(process);
  if (it == uploads_.end() || it->second.number != upload) return 0;
  return it->second.file ? it->second.file->size() : it->second.total;
}

std::shared_ptr<const SpoolFile> Uploads::Take(const std::string& process, uint64_t upload) {
  const auto it = uploads_.find(process);
  if (it == uploads_.end() || it->second.number != upload || !it->second.file ||
      it->second.file->size() != it->second.total)
    return nullptr;
  return std::exchange(it->second.file, nullptr);
}

}  // namespace troupe::daemons
