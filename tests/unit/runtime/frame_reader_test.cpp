// Frames out of a stream, however it is cut.
#include "runtime/internal/frame_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace troupe::internal {
namespace {

constexpr size_t kLimit = 100'000;
constexpr size_t kScratchBytes = 1000;

std::string Stream(const std::vector<std::string>& frames) {
  std::string stream;
  for (const std::string& frame : frames) {
    const FrameHeader header = HeaderOf(frame);
    stream.append(header.data(), header.size()).append(frame);
  }
  return stream;
}

// Reads as a socket would, at most `piece()` bytes at once.
template <class Piece, class Deliver>
bool ReadAll(FrameReader& reader, std::string_view stream, Piece piece, Deliver deliver) {
  std::vector<char> scratch(kScratchBytes);
  while (!stream.empty()) {
    const std::span<char> space = reader.Space(scratch);
    const auto filled = space.first(std::min({space.size(), piece(), stream.size()}));
    stream.copy(filled.data(), filled.size());
    stream.remove_prefix(filled.size());
    if (!reader.Filled(filled, deliver)) return false;
  }
  return true;
}

TEST(FrameReaderTest, FramesComeWholeAndInOrderHoweverTheStreamIsCut) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> frames;
    for (int i = 0; i < 20; ++i) {
      const size_t sizes[] = {0, 1, random() % 10, random() % 2000, random() % 20'000};
      std::string frame(sizes[random() % 5], '\0');
      for (char& c : frame) c = static_cast<char>(random());
      frames.push_back(std::move(frame));
    }
    const size_t most = size_t{1} << (random() % 15);
    FrameReader reader(kLimit);
    std::vector<std::string> got;
    ASSERT_TRUE(ReadAll(
        reader, Stream(frames), [&] { return 1 + random() % most; },
        [&](std::string frame) {
          got.push_back(std::move(frame));
          return true;
        }));
    ASSERT_EQ(got, frames) << "round " << round;
  }
}

TEST(FrameReaderTest, ALengthOverTheLimitEndsIt) {
  FrameReader reader(kLimit);
  const std::string stream =
      Stream({"one", std::string(kLimit, 'x'), std::string(kLimit + 1, 'y')});
  size_t got = 0;
  EXPECT_FALSE(ReadAll(
      reader, stream, [] { return kLimit; },
      [&](const std::string&) {
        ++got;
        return true;
      }));
  EXPECT_EQ(got, 2U);
}

TEST(FrameReaderTest, WhoTakesFramesCanStop) {
  FrameReader reader(kLimit);
  std::vector<std::string> got;
  EXPECT_FALSE(ReadAll(
      reader, Stream({"a", "b", "c"}), [] { return kLimit; },
      [&](std::string frame) {
        got.push_back(std::move(frame));
        return got.size() < 2;
      }));
  EXPECT_EQ(got, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace troupe::internal
