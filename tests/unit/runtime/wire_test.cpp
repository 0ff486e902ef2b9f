#include "runtime/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace troupe::wire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint8_t kType = 9;

enum class Colour : uint8_t { kRed = 0, kGreen = 1, kBlue = 2 };
constexpr Colour LastValue(Colour) { return Colour::kBlue; }
enum class Open : uint8_t { kNone = 0 };

struct Point {
  int32_t x = 0;
  int32_t y = 0;
  friend bool operator==(const Point&, const Point&) = default;
  template <class A>
  void Fields(A& a) {
    a(x, y);
  }
};

struct Everything {
  bool flag = false;
  int8_t i8 = 0;
  int16_t i16 = 0;
  int32_t i32 = 0;
  int64_t i64 = 0;
  uint8_t u8 = 0;
  uint16_t u16 = 0;
  uint32_t u32 = 0;
  uint64_t u64 = 0;
  float f32 = 0;
  double f64 = 0;
  std::string bytes;
  Colour colour = Colour::kRed;
  Open open = Open::kNone;
  Point point;
  std::vector<Point> points;
  std::vector<std::string> names;
  std::map<std::string, std::vector<double>> series;
  std::vector<int32_t> numbers;
  friend bool operator==(const Everything&, const Everything&) = default;
  template <class A>
  void Fields(A& a) {
    a(flag, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, bytes, colour, open, point, points,
      names, series, numbers);
  }
};

template <class T>
struct One {
  T value{};
  template <class A>
  void Fields(A& a) {
    a(value);
  }
};
struct Nothing {
  template <class A>
  void Fields(A& a) {
    a();
  }
};

template <class T>
T RoundTrip(const T& value) {
  const Result<One<T>> back = Decode<One<T>>(kType, Encode(kType, One<T>{value}));
  EXPECT_TRUE(back.ok()) << (back.ok() ? "" : back.error().message);
  return back.ok() ? back->value : T{};
}

template <class T>
std::string Problem(std::string_view frame, uint8_t type = kType) {
  const Result<T> decoded = Decode<T>(type, frame);
  if (decoded.ok()) return "";
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  return decoded.error().message;
}

std::string Frame(const std::function<void(Writer&)>& write_fields, uint64_t version = kWireVersion,
                  uint64_t type = kType) {
  Writer w;
  w.Array(3);
  w.Uint(version);
  w.Uint(type);
  write_fields(w);
  return w.Take();
}

TEST(WireTest, EveryFieldTypeSurvives) {
  Everything e;
  e.flag = true;
  e.i8 = -128;
  e.i16 = -32768;
  e.i32 = std::numeric_limits<int32_t>::min();
  e.i64 = std::numeric_limits<int64_t>::min();
  e.u8 = 255;
  e.u16 = 65535;
  e.u32 = std::numeric_limits<uint32_t>::max();
  e.u64 = std::numeric_limits<uint64_t>::max();
  e.f32 = 1.5F;
  e.f64 = 0.1;
  e.bytes = std::string("\0\xff\xc1 text", 8);
  e.colour = Colour::kBlue;
  e.open = static_cast<Open>(255);
  e.point = {-1, 2};
  e.points = {{3, 4}, {5, -6}};
  e.names = {"", "a", std::string(70'000, 'x')};
  e.series = {{"", {}}, {"s", {1, -2.5}}};
  e.numbers = {7, -8};
  for (const Numbers numbers : {Numbers::kElements, Numbers::kPacked}) {
    const Result<Everything> back = Decode<Everything>(kType, Encode(kType, e, numbers));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, e);
  }
  EXPECT_TRUE(Decode<Nothing>(kType, Encode(kType, Nothing{})).ok());
}

TEST(WireTest, IntegersKeepTheirEdges) {
  for (const int64_t value : {INT64_MIN, INT64_C(-2147483649), INT64_C(-129), INT64_C(-32),
                              INT64_C(-1), INT64_C(0), INT64_C(127), INT64_C(128), INT64_MAX}) {
    EXPECT_EQ(RoundTrip(value), value);
  }
  for (const uint64_t value : {UINT64_C(0), UINT64_C(255), UINT64_C(1) << 32, UINT64_MAX}) {
    EXPECT_EQ(RoundTrip(value), value);
  }
}

TEST(WireTest, DoublesKeepTheirBits) {
  using Limits = std::numeric_limits<double>;
  for (const double value :
       {0.0, -0.0, 1.0, -3.0, 0.1, 18446744073709551616.0, -9.3e18, Limits::max(), Limits::lowest(),
        Limits::denorm_min(), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    EXPECT_EQ(std::bit_cast<uint64_t>(RoundTrip(value)), std::bit_cast<uint64_t>(value)) << value;
  }
}

TEST(WireTest, NumbersOutOfRangeAreRefused) {
  EXPECT_THAT(Problem<One<int8_t>>(Encode(kType, One<int64_t>{128})),
              HasSubstr("integer out of range at [2][0]"));
  EXPECT_THAT(Problem<One<uint16_t>>(Encode(kType, One<uint64_t>{65536})),
              HasSubstr("integer out of range"));
  EXPECT_THAT(Problem<One<uint32_t>>(Encode(kType, One<int64_t>{-1})),
              HasSubstr("expected an unsigned integer"));
  EXPECT_THAT(Problem<One<int64_t>>(Encode(kType, One<uint64_t>{UINT64_MAX})),
              HasSubstr("expected a signed integer"));
  EXPECT_THAT(Problem<One<float>>(Encode(kType, One<double>{1e300})),
              HasSubstr("number out of range"));
  EXPECT_TRUE(std::isinf(Decode<One<float>>(kType, Encode(kType, One<double>{INFINITY}))->value));
  EXPECT_THAT(Problem<One<Colour>>(Encode(kType, One<uint8_t>{3})),
              HasSubstr("enum value over 2 at [2][0]"));
  EXPECT_THAT(Problem<One<Open>>(Encode(kType, One<uint64_t>{256})),
              HasSubstr("enum value over 255"));
}

TEST(WireTest, WrongTypesNameWhatAndWhere) {
  const std::string text = Encode(kType, One<std::string>{"x"});
  EXPECT_THAT(Problem<One<bool>>(text), HasSubstr("message type 9"));
  EXPECT_THAT(Problem<One<bool>>(text), HasSubstr("expected a boolean at [2][0]"));
  EXPECT_THAT(Problem<One<int>>(text), HasSubstr("expected a signed integer at [2][0]"));
  EXPECT_THAT(Problem<One<double>>(text), HasSubstr("expected a number"));
  EXPECT_THAT(Problem<One<Point>>(text), HasSubstr("expected an array"));
  EXPECT_THAT((Problem<One<std::map<std::string, int>>>(text)), HasSubstr("expected a map"));
  EXPECT_THAT(Problem<One<std::string>>(Encode(kType, One<int>{1})), HasSubstr("expected bytes"));
  using Points = One<std::vector<One<Point>>>;
  EXPECT_THAT(Problem<Points>(Frame([](Writer& w) {
                w.Array(1);
                w.Array(2);
                w.Array(1);
                w.Array(2);
                w.Int(1);
                w.Int(2);
                w.Array(1);
                w.Array(2);
                w.Int(3);
                w.Bool(true);
              })),
              HasSubstr("expected a signed integer at [2][0][1][0][1]"));
}

TEST(WireTest, WrongArityIsRefused) {
  const auto fields = [](size_t n) {
    return Frame([n](Writer& w) {
      w.Array(n);
      for (size_t i = 0; i < n; ++i) w.Int(1);
    });
  };
  EXPECT_EQ(Problem<Point>(fields(2)), "");
  EXPECT_THAT(Problem<Point>(fields(1)), HasSubstr("wrong number of fields at [2]"));
  EXPECT_THAT(Problem<Point>(fields(3)), HasSubstr("wrong number of fields"));
  EXPECT_THAT(Problem<Point>(fields(0)), HasSubstr("wrong number of fields"));
  Writer two;
  two.Array(2);
  two.Uint(kWireVersion);
  two.Uint(kType);
  EXPECT_THAT(Problem<Point>(two.Take()), HasSubstr("envelope is not [version, type, fields]"));
}

TEST(WireTest, AnotherVersionOrTypeIsRefusedAndSaysWhatToDo) {
  const auto fields = [](Writer& w) {
    w.Array(2);
    w.Int(1);
    w.Int(2);
  };
  EXPECT_THAT(Problem<Point>(Frame(fields, kWireVersion + 1)),
              AllOf(HasSubstr("unsupported wire version"), HasSubstr("same release")));
  EXPECT_THAT(Problem<Point>(Frame(fields, kWireVersion, kType + 1)),
              HasSubstr("unexpected message type at [1]"));
  EXPECT_EQ(*PeekType(Frame(fields)), kType);
  EXPECT_EQ(*PeekType(Frame(fields, kWireVersion, 200)), 200);
  EXPECT_THAT(PeekType(Frame(fields, kWireVersion + 1)).error().message,
              HasSubstr("unsupported wire version"));
  for (const std::string_view bytes : {"", "\x93", "\x93\x01", "\x93\x01\xc3\xc3", "hello"}) {
    EXPECT_EQ(PeekType(bytes).error().code, ErrorCode::kCorrupt) << bytes.size();
  }
}

TEST(WireTest, EveryTruncationAndAnyTrailingByteIsRefused) {
  Everything e;
  e.names = {"one", "two"};
  e.series = {{"k", {1, 2}}};
  const std::string frame = Encode(kType, e);
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    EXPECT_NE(Problem<Everything>(frame.substr(0, bytes)), "") << bytes;
  }
  EXPECT_THAT(Problem<Everything>(frame + '\0'), HasSubstr("trailing bytes"));
  EXPECT_THAT(Problem<Everything>(frame + frame), HasSubstr("trailing bytes"));
}

TEST(WireTest, CountsThatLieAreRefused) {
  // array32, map32, bin32 and str32 that claim more than the frame can hold.
  for (const char* header : {"\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff",
                             "\xdb\xff\xff\xff\xff", "\xdd\x00\x0f\x42\x40"}) {
    const std::string frame = std::string("\x93\x01\x09") + std::string(header, 5);
    EXPECT_THAT(Problem<One<std::string>>(frame), HasSubstr("not MessagePack within limits"));
  }
}

template <class T>
std::string PackedFrame(const std::vector<T>& numbers) {
  return Encode(kType, One<std::vector<T>>{numbers}, Numbers::kPacked);
}

template <class T>
void ExpectPackedRoundTrip(std::vector<T> numbers) {
  numbers.push_back(std::numeric_limits<T>::lowest());
  numbers.push_back(std::numeric_limits<T>::max());
  for (const std::vector<T>& sent : {numbers, std::vector<T>{}}) {
    const auto back = Decode<One<std::vector<T>>>(kType, PackedFrame(sent));
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(back->value, sent);
  }
}

TEST(WireTest, PackedNumbersOfEveryTypeKeepTheirEdges) {
  ExpectPackedRoundTrip<int8_t>({-1, 0});
  ExpectPackedRoundTrip<int16_t>({-1, 0});
  ExpectPackedRoundTrip<int32_t>({-1, 0});
  ExpectPackedRoundTrip<int64_t>({-1, 0});
  ExpectPackedRoundTrip<uint8_t>({1});
  ExpectPackedRoundTrip<uint16_t>({1});
  ExpectPackedRoundTrip<uint32_t>({1});
  ExpectPackedRoundTrip<uint64_t>({1});
  ExpectPackedRoundTrip<float>({0.1F, std::numeric_limits<float>::infinity()});
  ExpectPackedRoundTrip<double>({0.1, -0.0});
}

TEST(WireTest, PackedNumbersAreOnePieceOfMemory) {
  // [1, 9, [ext 'i' of 8 bytes]]: fixext8, the letter, two integers, little-endian.
  EXPECT_EQ(PackedFrame<int32_t>({1, -2}),
            std::string("\x93\x01\x09\x91\xd7i\x01\0\0\0\xfe\xff\xff\xff", 14));
  // Bits of one width, and values that do not belong to a number, are no numbers.
  EXPECT_EQ(NumberCode<bool>(), 0);
  EXPECT_EQ(NumberCode<long double>(), 0);
  EXPECT_EQ(NumberCode<Colour>(), 0);
  EXPECT_EQ(Encode(kType, One<std::vector<Colour>>{{Colour::kRed}}, Numbers::kPacked),
            Encode(kType, One<std::vector<Colour>>{{Colour::kRed}}));
}

TEST(WireTest, PackedNumbersMayBeMoreThanAnArrayHolds) {
  const std::vector<int32_t> many(5 * kWireElementsMax, 7);
  const auto back = Decode<One<std::vector<int32_t>>>(kType, PackedFrame(many));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->value, many);
  EXPECT_THAT(Problem<One<std::vector<int32_t>>>(Encode(kType, One<std::vector<int32_t>>{many})),
              HasSubstr("a list has at most 1000000 elements"));
}

TEST(WireTest, PackedNumbersBecomeOtherTypesThatHoldThem) {
  const auto frame = PackedFrame<int64_t>({-128, 127});
  EXPECT_EQ(Decode<One<std::vector<int8_t>>>(kType, frame)->value,
            (std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(Decode<One<std::vector<double>>>(kType, frame)->value,
            (std::vector<double>{-128, 127}));
  EXPECT_EQ(Decode<One<std::vector<float>>>(kType, PackedFrame<double>({0.5}))->value,
            (std::vector<float>{0.5}));
  const std::string bytes = Frame([](Writer& w) {
    w.Array(1);
    w.Bytes("\x01\xff");
  });
  EXPECT_EQ(Decode<One<std::vector<uint8_t>>>(kType, bytes)->value, (std::vector<uint8_t>{1, 255}));
}

TEST(WireTest, PackedNumbersThatDoNotFitAreRefused) {
  const auto refused = [](const std::string& problem) {
    EXPECT_THAT(problem, AllOf(HasSubstr("number out of range"), HasSubstr("at [2][0]")));
  };
  refused(Problem<One<std::vector<int8_t>>>(PackedFrame<int64_t>({1, 128})));
  refused(Problem<One<std::vector<uint64_t>>>(PackedFrame<int64_t>({-1})));
  refused(Problem<One<std::vector<int64_t>>>(PackedFrame<uint64_t>({uint64_t{1} << 63})));
  refused(Problem<One<std::vector<int32_t>>>(PackedFrame<double>({1})));
  refused(Problem<One<std::vector<float>>>(PackedFrame<double>({1e300})));
  EXPECT_THAT(Problem<One<std::string>>(PackedFrame<int8_t>({1})), HasSubstr("expected bytes"));
  EXPECT_THAT(Problem<One<std::vector<std::string>>>(PackedFrame<int8_t>({1})),
              HasSubstr("expected an array"));
}

TEST(WireTest, ExtensionsThatMakeNoSenseAreRefused) {
  const auto problem = [](const std::string& extension) {
    return Problem<One<std::vector<int32_t>>>("\x93\x01\x09\x91" + extension);
  };
  EXPECT_THAT(problem(std::string("\xc7\x03i\x01\x02\x03", 6)), HasSubstr("cut short"));
  EXPECT_THAT(problem(std::string("\xd6\xffzzzz", 6)), HasSubstr("an extension that is unknown"));
  EXPECT_THAT(problem(std::string("\xd6\0zzzz", 6)), HasSubstr("an extension that is unknown"));
  EXPECT_THAT(problem(std::string("\xc9\x7f\xff\xff\xffi\0\0\0\0", 10)),
              HasSubstr("not MessagePack within limits"));
  EXPECT_EQ(problem(std::string("\xd6i\0\0\0\0", 6)), "");
}

TEST(WireTest, NestingHasALimit) {
  const auto nested = [](size_t depth) {
    std::string frame(depth, '\x91');  // Arrays of one element.
    return frame + '\x01';
  };
  EXPECT_FALSE(Reader(nested(kWireDepthMax)).failed());
  EXPECT_TRUE(Reader(nested(kWireDepthMax + 1)).failed());
  EXPECT_TRUE(Reader(nested(1'000'000)).failed());
}

TEST(WireTest, ElementsHaveALimit) {
  const auto zeros = [](size_t n) {
    Writer w;
    w.Array(n);
    for (size_t i = 0; i < n; ++i) w.Uint(0);
    return w.Take();
  };
  EXPECT_FALSE(Reader(zeros(kWireElementsMax)).failed());
  EXPECT_TRUE(Reader(zeros(kWireElementsMax + 1)).failed());
}

TEST(WireTest, AFrameOverTheSizeLimitIsNotRead) {
  // Never touched: the size alone decides.
  const std::string_view huge(nullptr, kWireFrameBytesMax + 1);
  Reader reader(huge);
  EXPECT_THAT(reader.Finish().error().message, HasSubstr("frame over the size limit"));
}

TEST(WireTest, TheReaderKeepsItsFirstProblem) {
  Writer w;
  w.Array(2);
  w.Int(1);
  w.Bool(true);
  const std::string frame = w.Take();  // The reader refers to it.
  Reader r(frame);
  EXPECT_EQ(r.Array(), 2U);
  EXPECT_EQ(r.Bytes(), "");
  EXPECT_EQ(r.Bool(), false);  // After a problem nothing is read any more.
  r.Fail("later");
  EXPECT_THAT(r.Finish().error().message, HasSubstr("expected bytes at [0]"));
}

TEST(WireTest, AWriterStartsAfreshAfterTake) {
  Writer w;
  w.Int(1);
  EXPECT_EQ(w.Take(), "\x01");
  w.Int(2);
  EXPECT_EQ(w.Take(), "\x02");
}

}  // namespace
}  // namespace troupe::wire
