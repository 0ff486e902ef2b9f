// FrameReader: cuts a stream of bytes into frames, each led by its length (FrameHeader).
//
// Pure; somebody else reads the stream, into where Space() says.
// Thread: owner only. Limits: the largest frame that is taken.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::internal {

// Both ends are on one host: its byte order.
using FrameHeader = std::array<char, sizeof(uint32_t)>;
[[nodiscard]] inline FrameHeader HeaderOf(std::string_view frame) {
  const auto bytes = static_cast<uint32_t>(frame.size());
  FrameHeader header{};
  std::memcpy(header.data(), &bytes, sizeof bytes);
  return header;
}

class FrameReader {
 public:
  explicit FrameReader(size_t frame_bytes_max) : frame_bytes_max_(frame_bytes_max) {}

  // Where to put what is read next: the rest of a large frame directly, anything else into
  // `scratch`.
  [[nodiscard]] std::span<char> Space(std::span<char> scratch) {
    in_place_ = in_frame_ && frame_.size() - have_ >= scratch.size();
    return in_place_ ? std::span(frame_).subspan(have_) : scratch;
  }

  // The first `bytes` of the last Space() were filled. Calls `deliver(std::string frame) -> bool`
  // for each frame that is whole now, until it says false. False: it did, or no correct peer has
  // sent this; the reader is spent.
  template <class F>
  [[nodiscard]] bool Filled(std::span<const char> bytes, F&& deliver) {
    if (in_place_) {
      have_ += bytes.size();
      return !Whole() || deliver(Take());
    }
    while (!bytes.empty()) {
      if (!in_frame_) {
        Move(bytes, header_);
        if (have_ < header_.size()) return true;
        uint32_t length = 0;
        std::memcpy(&length, header_.data(), sizeof length);
        if (length > frame_bytes_max_) return false;
        frame_.resize(length);
        in_frame_ = true;
        have_ = 0;
      }
      Move(bytes, frame_);
      if (Whole() && !deliver(Take())) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] bool Whole() const { return in_frame_ && have_ == frame_.size(); }

  void Move(std::span<const char>& from, std::span<char> to) {
    const size_t bytes = std::min(from.size(), to.size() - have_);
    std::memcpy(to.data() + have_, from.data(), bytes);
    from = from.subspan(bytes);
    have_ += bytes;
  }

  std::string Take() {
    in_frame_ = false;
    have_ = 0;
    return std::exchange(frame_, {});
  }

  size_t frame_bytes_max_;
  FrameHeader header_{};
  std::string frame_;
  bool in_frame_ = false;  // The header is known.
  bool in_place_ = false;
  size_t have_ = 0;  // Of the header, or of the frame.
};

}  // namespace troupe::internal
