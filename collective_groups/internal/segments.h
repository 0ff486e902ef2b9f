// Reading from and writing to a list of buffers as if they were one.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "collective_groups/algorithms.h"
#include "collective_groups/internal/stream_copy.h"

namespace troupe::groups {

class SegmentReader {
 public:
  explicit SegmentReader(std::span<const ConstBuffer> buffers) : buffers_(buffers) {}
  // The next `bytes` where they lie, if that is in one piece; they are skipped then. Else null.
  const char* Take(size_t bytes) {
    while (index_ < buffers_.size() && offset_ == buffers_[index_].bytes) {
      ++index_;
      offset_ = 0;
    }
    if (bytes == 0 || buffers_[index_].bytes - offset_ < bytes) return nullptr;
    const char* here = static_cast<const char*>(buffers_[index_].data) + offset_;
    offset_ += bytes;
    return here;
  }
  void Read(char* to, size_t bytes) {
    while (bytes > 0) {
      const ConstBuffer& buffer = buffers_[index_];
      const size_t piece = std::min(bytes, buffer.bytes - offset_);
      std::memcpy(to, static_cast<const char*>(buffer.data) + offset_, piece);
      to += piece;
      bytes -= piece;
      offset_ += piece;
      if (offset_ == buffer.bytes) {
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  const std::span<const ConstBuffer> buffers_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

class SegmentWriter {
 public:
  // `stream`: past the cache; for outputs larger than it.
  explicit SegmentWriter(std::span<const MutableBuffer> buffers, bool stream = false)
      : buffers_(buffers), stream_(stream) {}
  void Write(const char* from, size_t bytes) {
    while (bytes > 0) {
      const MutableBuffer& buffer = buffers_[index_];
      const size_t piece = std::min(bytes, buffer.bytes - offset_);
      char* to = static_cast<char*>(buffer.data) + offset_;
      stream_ ? StreamCopy(to, from, piece) : static_cast<void>(std::memcpy(to, from, piece));
      from += piece;
      bytes -= piece;
      offset_ += piece;
      if (offset_ == buffer.bytes) {
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  const std::span<const MutableBuffer> buffers_;
  const bool stream_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

}  // namespace troupe::groups
