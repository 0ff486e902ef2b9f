// Reading from and writing to a list of buffers as if they were one.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "collective_groups/collectives/algorithms.h"
#include "collective_groups/shm/internal/stream_copy.h"

namespace troupe::groups {

// A place in a list of buffers.
template <class Buffer>
class SegmentPlace {
 public:
  explicit SegmentPlace(std::span<const Buffer> buffers) : buffers_(buffers) {}
  void Seek(size_t offset) {
    index_ = 0;
    offset_ = offset;
    while (index_ < buffers_.size() && offset_ >= buffers_[index_].bytes) {
      offset_ -= buffers_[index_++].bytes;
    }
  }

 protected:
  using Memory = decltype(Buffer::data);

  // How much of the buffer is left here; past the last one 0.
  size_t Rest() {
    while (index_ < buffers_.size() && offset_ == buffers_[index_].bytes) {
      ++index_;
      offset_ = 0;
    }
    return index_ < buffers_.size() ? buffers_[index_].bytes - offset_ : 0;
  }
  // This place and what follows it in the same buffer, at most `bytes`; goes past that.
  std::pair<Memory, size_t> Pass(size_t bytes) {
    const size_t piece = std::min(bytes, Rest());
    using Byte = std::conditional_t<std::is_same_v<Memory, void*>, char, const char>;
    Byte* const here = static_cast<Byte*>(buffers_[index_].data) + offset_;
    offset_ += piece;
    return {here, piece};
  }

 private:
  const std::span<const Buffer> buffers_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

class SegmentReader : public SegmentPlace<ConstBuffer> {
 public:
  using SegmentPlace::SegmentPlace;
  // The next `bytes` where they lie, if that is in one piece; they are skipped then. Else null.
  const char* Take(size_t bytes) {
    if (bytes == 0 || Rest() < bytes) return nullptr;
    return static_cast<const char*>(Pass(bytes).first);
  }
  void Read(char* to, size_t bytes) {
    while (bytes > 0) {
      const auto [here, piece] = Pass(bytes);
      std::memcpy(to, here, piece);
      to += piece;
      bytes -= piece;
    }
  }
};

class SegmentWriter : public SegmentPlace<MutableBuffer> {
 public:
  // `stream`: past the cache; for outputs larger than it.
  explicit SegmentWriter(std::span<const MutableBuffer> buffers, bool stream = false)
      : SegmentPlace(buffers), stream_(stream) {}
  void Write(const char* from, size_t bytes) {
    while (bytes > 0) {
      const auto [here, piece] = Pass(bytes);
      stream_ ? StreamCopy(static_cast<char*>(here), from, piece)
              : static_cast<void>(std::memcpy(here, from, piece));
      from += piece;
      bytes -= piece;
    }
  }

 private:
  const bool stream_;
};

}  // namespace troupe::groups
