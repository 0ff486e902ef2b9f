// Large payloads of workers on their way through the head: they come in parts and lie in files, so
// that the head's memory does not grow with them.
//
// Thread: owner only. Owns: files without names, in the folder for temporary files; they are gone
// with the last who refers to them, however the process ends.
// Limits: below.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "daemons/protocol/messages.h"
#include "runtime/result.h"

namespace troupe::daemons {

inline constexpr size_t kInlinePayloadBytes = 256 << 10;  // Larger ones come in parts.
inline constexpr size_t kPartBytes = 256 << 10;
inline constexpr size_t kUploadWindowBytes = 1 << 20;  // Sent, and not yet taken.
inline constexpr uint64_t kUploadBytesMax = uint64_t{64} << 30;

class SpoolFile {
 public:
  [[nodiscard]] static Result<std::shared_ptr<SpoolFile>> Create();
  ~SpoolFile();
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  [[nodiscard]] Status Append(std::string_view bytes);
  [[nodiscard]] uint64_t size() const { return size_; }
  // Fewer than `count` if the file cannot be read.
  [[nodiscard]] std::string Read(uint64_t offset, size_t count) const;

 private:
  explicit SpoolFile(int fd) : fd_(fd) {}
  const int fd_;
  uint64_t size_ = 0;
};

// Of each process the one that comes now, or has come last.
class Uploads {
 public:
  // How much of it is here now.
  [[nodiscard]] Result<uint64_t> Add(const WorkerPart& part);
  [[nodiscard]] uint64_t Have(const std::string& process, uint64_t upload) const;
  // Null if it is not all here.
  [[nodiscard]] std::shared_ptr<const SpoolFile> Take(const std::string& process, uint64_t upload);
  void Forget(const std::string& process) { uploads_.erase(process); }

 private:
  struct Upload {
    uint64_t number = 0;
    uint64_t total = 0;
    std::shared_ptr<SpoolFile> file;
  };
  std::map<std::string, Upload> uploads_;
};

}  // namespace troupe::daemons
