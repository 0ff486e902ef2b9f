// Reading from and writing to a list of buffers as if they were one.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "collective_groups/algorithms.h"

namespace troupe::groups {

class SegmentReader {
 public:
  explicit SegmentReader(std::span<const ConstBuffer> buffers) : buffers_(buffers) {}
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
  explicit SegmentWriter(std::span<const MutableBuffer> buffers) : buffers_(buffers) {}
  void Write(const char* from, size_t bytes) {
    while (bytes > 0) {
      const MutableBuffer& buffer = buffers_[index_];
      const size_t piece = std::min(bytes, buffer.bytes - offset_);
      std::memcpy(static_cast<char*>(buffer.data) + offset_, from, piece);
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
  size_t index_ = 0;
  size_t offset_ = 0;
};

}  // namespace troupe::groups
