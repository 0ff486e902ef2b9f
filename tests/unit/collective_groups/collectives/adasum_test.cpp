#include "collective_groups/collectives/adasum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace troupe::groups {
namespace {

template <class T>
std::vector<T> ModelOf(const std::vector<T>& a, const std::vector<T>& b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  std::vector<T> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    out[i] = static_cast<T>((aa > 0 ? 1 - ab / (2 * aa) : 1) * static_cast<double>(a[i]) +
                            (bb > 0 ? 1 - ab / (2 * bb) : 1) * static_cast<double>(b[i]));
  }
  return out;
}

template <class T>
void ExpectModel(DataType type) {
  std::mt19937 random(1);
  std::normal_distribution<T> normal(T{0.1}, T{1});
  for (const size_t count : {1, 15, 16, 17, 1000}) {
    std::vector<T> a(count);
    std::vector<T> b(count);
    for (size_t i = 0; i < count; ++i) {
      a[i] = normal(random);
      b[i] = normal(random);
    }
    const std::vector<T> wanted = ModelOf(a, b);
    std::vector<T> out(count);
    AdasumCombine(out.data(), a.data(), b.data(), count, type);
    for (size_t i = 0; i < count; ++i)
      EXPECT_NEAR(out[i], wanted[i], 8 * std::numeric_limits<T>::epsilon()) << i;
    std::vector<T> swapped(count);
    AdasumCombine(swapped.data(), b.data(), a.data(), count, type);
    EXPECT_EQ(swapped, out);  // Symmetric, to the bit.
    AdasumCombine(a.data(), a.data(), b.data(), count, type);
    EXPECT_EQ(a, out);
  }
}

TEST(AdasumTest, MatchesTheModel) {
  ExpectModel<float>(DataType::kFloat32);
  ExpectModel<double>(DataType::kFloat64);
}

TEST(AdasumTest, OrthogonalVectorsAreAddedAndEqualOnesAveraged) {
  const std::vector<float> x = {3, 0, 0, 0};
  const std::vector<float> y = {0, 4, -1, 0};
  std::vector<float> out(4);
  AdasumCombine(out.data(), x.data(), y.data(), 4, DataType::kFloat32);
  EXPECT_THAT(out, ::testing::ElementsAre(3, 4, -1, 0));
  AdasumCombine(out.data(), y.data(), y.data(), 4, DataType::kFloat32);
  EXPECT_THAT(out, ::testing::ElementsAre(0, 4, -1, 0));
}

TEST(AdasumTest, AVectorOfNormZeroLeavesTheOtherAlone) {
  const std::vector<double> zero(5, 0);
  const std::vector<double> x = {1, -2, 3, 1e-300, 5};
  std::vector<double> out(5, 9);
  AdasumCombine(out.data(), zero.data(), x.data(), 5, DataType::kFloat64);
  EXPECT_EQ(out, x);
  AdasumCombine(out.data(), x.data(), zero.data(), 5, DataType::kFloat64);
  EXPECT_EQ(out, x);
  AdasumCombine(out.data(), zero.data(), zero.data(), 5, DataType::kFloat64);
  EXPECT_EQ(out, zero);
}

TEST(AdasumTest, DotsOfPartsAddUpToThoseOfTheWhole) {
  std::vector<float> a(100);
  std::vector<float> b(100);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i) - 40;
    b[i] = static_cast<float>(i * i % 23);
  }
  const AdasumTerms whole = AdasumDots(a.data(), b.data(), 100, DataType::kFloat32);
  const AdasumTerms low = AdasumDots(a.data(), b.data(), 37, DataType::kFloat32);
  const AdasumTerms high = AdasumDots(a.data() + 37, b.data() + 37, 63, DataType::kFloat32);
  EXPECT_EQ(low.ab + high.ab, whole.ab);  // Integers: exact.
  EXPECT_EQ(low.aa + high.aa, whole.aa);
  EXPECT_EQ(low.bb + high.bb, whole.bb);
  std::vector<float> parts(100);
  AdasumApply(parts.data(), a.data(), b.data(), 37, DataType::kFloat32, whole);
  AdasumApply(parts.data() + 37, a.data() + 37, b.data() + 37, 63, DataType::kFloat32, whole);
  std::vector<float> out(100);
  AdasumCombine(out.data(), a.data(), b.data(), 100, DataType::kFloat32);
  EXPECT_EQ(parts, out);
}

TEST(AdasumTest, NarrowTypesNeitherOverflowNorLoseSmallProducts) {
  // Squares of 600 exceed float16, and 4096 ones added in it would stick at 2048.
  const std::vector<uint16_t> large(4096, 0x60b0);  // 600
  const AdasumTerms terms = AdasumDots(large.data(), large.data(), 4096, DataType::kFloat16);
  EXPECT_EQ(terms.ab, 600.0 * 600 * 4096);
  std::vector<uint16_t> out(4096);
  AdasumCombine(out.data(), large.data(), large.data(), 4096, DataType::kFloat16);
  EXPECT_EQ(out, large);
  const std::vector<uint16_t> brain(7, 0x4049);  // 3.140625
  std::vector<uint16_t> same(7);
  AdasumCombine(same.data(), brain.data(), brain.data(), 7, DataType::kBfloat16);
  EXPECT_EQ(same, brain);
}

TEST(AdasumTest, OnlyFloatingTypes) {
  EXPECT_TRUE(IsAdasumType(DataType::kBfloat16));
  EXPECT_FALSE(IsAdasumType(DataType::kInt64));
  EXPECT_FALSE(IsAdasumType(DataType::kBool));
}

}  // namespace
}  // namespace troupe::groups
