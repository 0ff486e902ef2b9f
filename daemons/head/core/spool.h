// Spool: where the head puts payloads that are too large for its memory.
// Thread: owner only. A payload is gone with the last who refers to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/result.h"

namespace troupe::daemons {

class SpoolFile {
 public:
  virtual ~SpoolFile() = default;
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  // kResourceExhausted: there is no room for it; what is there stays as it is.
  [[nodiscard]] virtual Status Append(std::string_view bytes) = 0;
  [[nodiscard]] virtual uint64_t size() const = 0;
  // Fewer than `count` at its end, or if it cannot be read.
  [[nodiscard]] virtual std::string Read(uint64_t offset, size_t count) const = 0;

 protected:
  SpoolFile() = default;
};

class Spool {
 public:
  virtual ~Spool() = default;
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // An empty one.
  [[nodiscard]] virtual Result<std::shared_ptr<SpoolFile>> Create() = 0;

 protected:
  Spool() = default;
};

}  // namespace troupe::daemons
