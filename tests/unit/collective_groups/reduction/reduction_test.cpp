#include "collective_groups/reduction/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace troupe::groups {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// ---- a slow model of the 16-bit formats: exact values, nearest found by search ----

struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kHalf{5, 10};
constexpr Format kBrain{8, 7};

// Value of a pattern with the sign bit clear. The all-ones exponent reads as the next power of two:
// that is where rounding to infinity begins to be decided.
double MagnitudeOf(Format f, uint16_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = bits >> f.mantissa_bits;
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  return std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

uint16_t InfinityOf(Format f) {
  return static_cast<uint16_t>(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
}

double ValueOf(Format f, uint16_t bits) {
  const uint16_t magnitude = bits & 0x7fff;
  double value = MagnitudeOf(f, magnitude);
  if (magnitude == InfinityOf(f)) value = std::numeric_limits<double>::infinity();
  if (magnitude > InfinityOf(f)) value = std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000) != 0 ? -value : value;
}

// The nearest pattern, ties to the even one. Not for NaN.
uint16_t Nearest(Format f, double value) {
  const double magnitude = std::fabs(value);
  uint16_t low = 0;
  uint16_t high = InfinityOf(f);
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (magnitude >= MagnitudeOf(f, high)) return sign | high;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (MagnitudeOf(f, middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - MagnitudeOf(f, low);
  const double above = MagnitudeOf(f, high) - magnitude;
  const bool up = above < below || (above == below && (high & 1) == 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

float ModelFloat(ReduceOp op, float a, float b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kMin:
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
      if (a == b) return std::signbit(a) ? a : b;  // -0 is the less one.
      return std::min(a, b);
    case ReduceOp::kMax:
      return -ModelFloat(ReduceOp::kMin, -a, -b);
    case ReduceOp::kProduct:
      return a * b;
  }
  return 0;
}

void ExpectSixteenBit(DataType type, Format format, ReduceOp op, const std::vector<uint16_t>& a,
                      const std::vector<uint16_t>& b) {
  std::vector<uint16_t> out(a.size());
  GetReduceFunction(type, op)(out.data(), a.data(), b.data(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const float x = static_cast<float>(ValueOf(format, a[i]));
    const float y = static_cast<float>(ValueOf(format, b[i]));
    const float wanted = ModelFloat(op, x, y);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(ValueOf(format, out[i])))
          << a[i] << " op " << b[i] << " -> " << out[i];
    } else {
      ASSERT_EQ(out[i], Nearest(format, wanted)) << a[i] << " op " << b[i];
    }
  }
}

class SixteenBitTest : public ::testing::TestWithParam<std::pair<DataType, Format>> {};

TEST_P(SixteenBitTest, EveryPatternSurvivesAddingZero) {
  const auto [type, format] = GetParam();
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  ExpectSixteenBit(type, format, ReduceOp::kSum, all, std::vector<uint16_t>(all.size(), 0x8000));
}

TEST_P(SixteenBitTest, RandomPatternsMatchTheModel) {
  const auto [type, format] = GetParam();
  std::mt19937 random(11);
  std::vector<uint16_t> a(200'000);
  std::vector<uint16_t> b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<uint16_t>(random());
    // Half of the pairs have near exponents, where rounding of sums happens.
    b[i] = static_cast<uint16_t>(i % 2 == 0 ? random() : a[i] ^ (random() & 0x8fff));
  }
  for (const ReduceOp op : kOps) ExpectSixteenBit(type, format, op, a, b);
}

TEST_P(SixteenBitTest, EdgesMatchTheModel) {
  const auto [type, format] = GetParam();
  const uint16_t infinity = InfinityOf(format);
  const auto smallest_normal = static_cast<uint16_t>(1 << format.mantissa_bits);
  std::vector<uint16_t> edges;
  for (const uint16_t centre : {uint16_t{2}, smallest_normal, infinity, Nearest(format, 1.0)}) {
    for (int d = -2; d <= 2; ++d) {
      edges.push_back(static_cast<uint16_t>(centre + d));
      edges.push_back(static_cast<uint16_t>((centre + d) | 0x8000));
    }
  }
  for (const uint16_t b : edges) {
    for (const ReduceOp op : kOps)
      ExpectSixteenBit(type, format, op, edges, std::vector<uint16_t>(edges.size(), b));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBitTest,
                         ::testing::Values(std::pair(DataType::kFloat16, kHalf),
                                           std::pair(DataType::kBfloat16, kBrain)),
                         [](const auto& info) {
                           return std::string(DataTypeName(info.param.first));
                         });

TEST(ReductionTest, HalfKnownAnswers) {
  const auto sum = GetReduceFunction(DataType::kFloat16, ReduceOp::kSum);
  // 2048 + 1 is half-way: to even. 65504 + 16 rounds to infinity, 65504 + 15.99 does not.
  const std::vector<uint16_t> a = {0x6800, 0x6801, 0x7bff, 0x7bff, 0x0001, 0x03ff};
  const std::vector<uint16_t> b = {0x3c00, 0x3c00, 0x4c00, 0x4bff, 0x0001, 0x0001};
  std::vector<uint16_t> out(a.size());
  sum(out.data(), a.data(), b.data(), a.size());
  EXPECT_THAT(out, ::testing::ElementsAre(0x6800, 0x6802, 0x7c00, 0x7bff, 0x0002, 0x0400));
}

// ---- native types ----

template <class T>
T Model(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kSum) return a + b;
    if (op == ReduceOp::kProduct) return a * b;
  } else {  // Two's complement, as the bits say.
    using U = std::make_unsigned_t<T>;
    const auto x = static_cast<uint64_t>(static_cast<U>(a));
    const auto y = static_cast<uint64_t>(static_cast<U>(b));
    if (op == ReduceOp::kSum) return static_cast<T>(x + y);
    if (op == ReduceOp::kProduct) return static_cast<T>(x * y);
  }
  return op == ReduceOp::kMin ? (a < b ? a : b) : (a > b ? a : b);
}

template <class T>
void ExpectModel(DataType type, T low, T high) {
  ASSERT_EQ(ElementBytes(type), sizeof(T));
  std::mt19937_64 random(5);
  std::vector<T> a(1001);
  std::vector<T> b(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      a[i] = std::uniform_real_distribution<T>(low, high)(random);
      b[i] = std::uniform_real_distribution<T>(low, high)(random);
    } else {
      a[i] = static_cast<T>(std::uniform_int_distribution<int64_t>(low, high)(random));
      b[i] = static_cast<T>(std::uniform_int_distribution<int64_t>(low, high)(random));
    }
  }
  for (const ReduceOp op : kOps) {
    std::vector<T> wanted(a.size());
    for (size_t i = 0; i < a.size(); ++i) wanted[i] = Model(op, a[i], b[i]);
    std::vector<T> out(a.size());
    const ReduceFunction reduce = GetReduceFunction(type, op);
    reduce(out.data(), a.data(), b.data(), a.size());
    EXPECT_EQ(out, wanted) << DataTypeName(type);
    out = a;
    reduce(out.data(), out.data(), b.data(), a.size());  // In place over either operand.
    EXPECT_EQ(out, wanted) << DataTypeName(type);
    out = b;
    reduce(out.data(), a.data(), out.data(), a.size());
    EXPECT_EQ(out, wanted) << DataTypeName(type);
  }
}

TEST(ReductionTest, NativeTypesMatchTheModel) {
  ExpectModel<uint8_t>(DataType::kUint8, 0, 255);
  ExpectModel<int8_t>(DataType::kInt8, -128, 127);
  ExpectModel<int16_t>(DataType::kInt16, INT16_MIN, INT16_MAX);
  ExpectModel<int32_t>(DataType::kInt32, -30'000, 30'000);
  ExpectModel<int64_t>(DataType::kInt64, -2'000'000'000, 2'000'000'000);
  ExpectModel<float>(DataType::kFloat32, -1e6F, 1e6F);
  ExpectModel<double>(DataType::kFloat64, -1e6, 1e6);
}

TEST(ReductionTest, IntegersWrapAround) {
  const std::vector<int32_t> a = {INT32_MAX, INT32_MIN, 1 << 20, INT32_MIN};
  const std::vector<int32_t> b = {1, -1, 1 << 15, -1};
  std::vector<int32_t> out(a.size());
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
    GetReduceFunction(DataType::kInt32, op)(out.data(), a.data(), b.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(out[i], Model(op, a[i], b[i])) << i;
  }
}

TEST(ReductionTest, BoolIsOrAndAndAndAnswersZeroOrOne) {
  const std::vector<uint8_t> a = {0, 0, 1, 1, 255, 2};
  const std::vector<uint8_t> b = {0, 1, 0, 1, 0, 4};
  for (const ReduceOp op : kOps) {
    std::vector<uint8_t> out(a.size(), 9);
    GetReduceFunction(DataType::kBool, op)(out.data(), a.data(), b.data(), a.size());
    if (op == ReduceOp::kSum || op == ReduceOp::kMax) {
      EXPECT_THAT(out, ::testing::ElementsAre(0, 1, 1, 1, 1, 1));
    } else {
      EXPECT_THAT(out, ::testing::ElementsAre(0, 0, 0, 1, 0, 1));
    }
  }
}

TEST(ReductionTest, ZeroElementsTouchNothing) {
  uint8_t out = 7;
  GetReduceFunction(DataType::kUint8, ReduceOp::kSum)(&out, &out, &out, 0);
  EXPECT_EQ(out, 7);
}

TEST(ReductionTest, ScaleRoundsFloatsAndTruncatesIntegers) {
  std::vector<int32_t> ints = {7, -7, 0};
  ScaleInPlace(ints.data(), ints.size(), DataType::kInt32, 0.5);
  EXPECT_THAT(ints, ::testing::ElementsAre(3, -3, 0));
  std::vector<float> floats = {3.0F, -1.0F};
  ScaleInPlace(floats.data(), floats.size(), DataType::kFloat32, 1.0 / 3);
  EXPECT_THAT(floats, ::testing::ElementsAre(3.0F * static_cast<float>(1.0 / 3),
                                             -1.0F * static_cast<float>(1.0 / 3)));
  std::vector<uint16_t> halves = {0x3c00, 0x0003};  // 1 and three subnormal units.
  ScaleInPlace(halves.data(), halves.size(), DataType::kFloat16, 0.5);
  EXPECT_THAT(halves, ::testing::ElementsAre(0x3800, 0x0002));
}

TEST(ReductionTest, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DataType::kBool); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(ParseDataType(DataTypeName(type)), type);
  }
  EXPECT_EQ(ParseDataType("complex64"), std::nullopt);
  EXPECT_EQ(ParseReduceOp("product"), ReduceOp::kProduct);
  EXPECT_EQ(ParseReduceOp("mean"), std::nullopt);
}

}  // namespace
}  // namespace troupe::groups
