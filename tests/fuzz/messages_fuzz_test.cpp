// Seeded mutation of valid frames of every message type: a decoder neither crashes nor allocates
// more than the frame can pay for, and whatever it accepts is stable. A failure prints the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/fuzz/messages.h"

// Every malloc of the decoder passes here (the linker's --wrap).
static size_t g_largest_request = 0;
// NOLINTBEGIN(bugprone-reserved-identifier): the names that --wrap goes by.
extern "C" void* __real_malloc(size_t bytes);
extern "C" void* __wrap_malloc(size_t bytes) {
  g_largest_request = std::max(g_largest_request, bytes);
  return __real_malloc(bytes);
}
// NOLINTEND(bugprone-reserved-identifier)

namespace troupe::fuzz {
namespace {

constexpr int kSeeds = 150;
constexpr int kMutantsPerFrame = 60;
constexpr size_t kListMax = 4;
// What one request for memory may ask for: an object per byte of the frame, plus buffers.
constexpr size_t kBytesPerFrameByte = 32;
constexpr size_t kBuffersBytes = 64 << 10;

using Random = std::mt19937_64;

uint64_t Below(Random& random, uint64_t limit) { return random() % limit; }

// Fills every field of a message with edge cases and noise.
struct RandomFields {
  Random& random;

  template <class... T>
  void operator()(T&... fields) {
    (Fill(fields), ...);
  }

  template <class T>
  void Fill(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      value = Below(random, 2) == 1;
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(Below(random, static_cast<uint64_t>(LastValue(T{})) + 1));
    } else if constexpr (std::is_floating_point_v<T>) {
      const T edges[] = {
          0, -0.0, 1, 0.1, std::numeric_limits<T>::infinity(), std::numeric_limits<T>::max()};
      value = edges[Below(random, std::size(edges))];
    } else if constexpr (std::is_integral_v<T>) {
      const T edges[] = {0, 1, std::numeric_limits<T>::min(), std::numeric_limits<T>::max(),
                         static_cast<T>(random())};
      value = edges[Below(random, std::size(edges))];
    } else if constexpr (std::is_same_v<T, std::string>) {
      const size_t sizes[] = {0, 1, 5, 40, 300};
      value.assign(sizes[Below(random, std::size(sizes))], static_cast<char>(random()));
    } else if constexpr (wire::internal::IsVector<T>::value) {
      value.resize(Below(random, kListMax));
      for (auto& element : value) Fill(element);
    } else if constexpr (wire::internal::IsStringMap<T>::value) {
      for (size_t i = Below(random, kListMax); i > 0; --i) {
        std::string key;
        Fill(key);
        Fill(value[key]);
      }
    } else {
      value.Fields(*this);
    }
  }
};

std::string Header(Random& random) {
  // Lengths that lie, types that are not expected, markers that MessagePack does not use.
  static const std::vector<std::string> kHeaders = {
      std::string("\xdd\xff\xff\xff\xff", 5),
      std::string("\xdf\x7f\xff\xff\xff", 5),
      std::string("\xc6\xff\xff\xff\xff", 5),
      std::string("\xdb\x00\xff\xff\xff", 5),
      std::string("\xdc\xff\xff", 3),
      std::string("\xc9\xff\xff\xff\xff\x01", 6),
      std::string("\xc0", 1),
      std::string("\xc1", 1),
      std::string("\x9f", 1),
      std::string("\x8f", 1),
      std::string("\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9),
      std::string("\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9),
      std::string("\xca\x7f\xc0\x00\x00", 5),
      std::string("\xc7\x08\x64", 3),
      std::string("\xd7\x71", 2),
      std::string(20, '\x91')};
  return kHeaders[Below(random, kHeaders.size())];
}

std::string Mutate(Random& random, std::string frame, const std::string& other) {
  for (uint64_t rounds = 1 + Below(random, 3); rounds > 0 && !frame.empty(); --rounds) {
    const size_t at = Below(random, frame.size());
    const size_t length = 1 + Below(random, 8);
    switch (Below(random, 8)) {
      case 0:
        frame[at] = static_cast<char>(frame[at] ^ (1 << Below(random, 8)));
        break;
      case 1:
        frame[at] = static_cast<char>(random());
        break;
      case 2:
        frame.erase(at, length);
        break;
      case 3:
        frame.insert(at, frame.substr(at, length));
        break;
      case 4:
        frame.resize(at);
        break;
      case 5:
        frame.insert(at, Header(random));
        break;
      case 6: {
        const std::string header = Header(random);
        frame.replace(at, header.size(), header);
        break;
      }
      default:
        frame.replace(at, std::string::npos, other.substr(Below(random, other.size())));
    }
  }
  return frame;
}

// The greatest single request for memory while `body` runs.
template <class F>
size_t LargestRequest(F&& body) {
  g_largest_request = 0;
  body();
  return g_largest_request;
}

TEST(MessagesFuzzTest, RandomMessagesOfEveryTypeSurviveTheWire) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    ForEachMessage([&](auto message) {
      using T = typename decltype(message)::Type;
      T value{};
      RandomFields{random}.Fill(value);
      const std::string frame = wire::Encode(message.type, value, message.numbers);
      const Result<T> back = wire::Decode<T>(message.type, frame);
      ASSERT_TRUE(back.ok()) << message.name << " seed " << seed << ": " << back.error().message;
      EXPECT_EQ(wire::Encode(message.type, *back, message.numbers), frame)
          << message.name << " seed " << seed;
      EXPECT_EQ(*wire::PeekType(frame), message.type);
    });
  }
}

TEST(MessagesFuzzTest, MutatedFramesAreRefusedOrStable) {
  size_t refused = 0;
  size_t frames = 0;
  std::string other = "\x93";
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    ForEachMessage([&](auto message) {
      using T = typename decltype(message)::Type;
      T value{};
      RandomFields{random}.Fill(value);
      const std::string frame = wire::Encode(message.type, value, message.numbers);
      for (int i = 0; i < kMutantsPerFrame; ++i) {
        const std::string mutant = Mutate(random, frame, other);
        bool good = false;
        const size_t largest = LargestRequest(
            [&] { good = RefusedOrStable<T>(message.type, mutant, message.numbers); });
        ASSERT_TRUE(good) << message.name << " seed " << seed << " mutant " << i;
        ASSERT_LE(largest, kBytesPerFrameByte * mutant.size() + kBuffersBytes)
            << message.name << " seed " << seed << " mutant " << i;
        refused += wire::Decode<T>(message.type, mutant).ok() ? 0 : 1;
        ++frames;
      }
      other = frame;
    });
  }
  EXPECT_GT(refused, frames / 2);  // Else the mutants are no test of refusals,
  EXPECT_LT(refused, frames);      // or none of what is accepted.
}

// A decoder that trusted counts would ask for 16 bytes for each claimed element.
TEST(MessagesFuzzTest, CountsThatLieDoNotAllocate) {
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{512} << 10}) {
    for (const char* header : {"\xdd\x10\x00\x00\x00", "\xdf\x10\x00\x00\x00"}) {
      const std::string body = std::string(header, 5) + std::string(bytes, '\xc0');
      ForEachMessage([&](auto message) {
        using T = typename decltype(message)::Type;
        const std::string frame = std::string("\x93\x01") + static_cast<char>(message.type) + body;
        const size_t largest = LargestRequest(
            [&] { EXPECT_FALSE(wire::Decode<T>(message.type, frame).ok()) << message.name; });
        EXPECT_LE(largest, kBytesPerFrameByte * frame.size() + kBuffersBytes) << message.name;
      });
    }
  }
}

}  // namespace
}  // namespace troupe::fuzz
