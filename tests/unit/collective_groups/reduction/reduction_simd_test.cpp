// Every instruction set must give the bits of the plain loops, NaN payloads aside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "collective_groups/reduction/internal/reduction_kernels.h"
#include "collective_groups/reduction/reduction.h"

namespace troupe::groups {
namespace {

using internal::kDataTypes;
using internal::ReductionKernels;
using Bytes = std::vector<unsigned char>;

constexpr ReduceOp kSimdOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

bool IsNan(DataType type, const unsigned char* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, ElementBytes(type));
  switch (type) {
    case DataType::kFloat16:
      return (bits & 0x7fff) > 0x7c00;
    case DataType::kBfloat16:
      return (bits & 0x7fff) > 0x7f80;
    case DataType::kFloat32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case DataType::kFloat64:
      return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
    default:
      return false;
  }
}

void ExpectSame(DataType type, const unsigned char* wanted, const unsigned char* got, size_t count,
                const std::string& what) {
  const size_t size = ElementBytes(type);
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(wanted + i * size, got + i * size, size) == 0) continue;
    ASSERT_TRUE(IsNan(type, wanted + i * size) && IsNan(type, got + i * size))
        << DataTypeName(type) << ' ' << what << ": element " << i << " of " << count;
  }
}

// Random bit patterns; every other value is small, so that sums round and comparisons meet.
Bytes RandomBytes(DataType type, size_t count, std::mt19937_64& random) {
  const size_t size = ElementBytes(type);
  Bytes bytes(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (bits % 2 == 0) {
      const auto value = static_cast<double>(static_cast<int64_t>(random()) >> (bits >> 58));
      if (type == DataType::kFloat64) bits = std::bit_cast<uint64_t>(value * 1e-15);
      if (type == DataType::kFloat32)
        bits = std::bit_cast<uint32_t>(static_cast<float>(value * 1e-15));
      if (type == DataType::kBfloat16)
        bits = std::bit_cast<uint32_t>(static_cast<float>(value * 1e-15)) >> 16;
      if (type == DataType::kFloat16) bits &= 0xbfff;
      if (bits % 32 == 0) bits = 0;
      if (bits % 32 == 2) bits = uint64_t{1} << (8 * size - 1);  // -0, or the least integer.
    }
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

class SimdTest : public ::testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override {
    if (!IsSimdLevelSupported(GetParam()))
      GTEST_SKIP() << "this CPU or compiler has no " << SimdLevelName(GetParam());
    before_ = ActiveSimdLevel();
    ForceSimdLevel(GetParam());
    tested_ = &internal::ActiveKernels();
  }
  void TearDown() override {
    if (tested_ != nullptr) ForceSimdLevel(before_);
  }

  SimdLevel before_ = SimdLevel::kScalar;
  const ReductionKernels* tested_ = nullptr;
  const ReductionKernels* plain_ = internal::ScalarKernels();
};

TEST_P(SimdTest, IsInUseWhenForced) {
  EXPECT_EQ(ActiveSimdLevel(), GetParam());
  EXPECT_EQ(tested_ == plain_, GetParam() == SimdLevel::kScalar);
  EXPECT_EQ(GetReduceFunction(DataType::kFloat32, ReduceOp::kSum),
            tested_->reduce[static_cast<size_t>(DataType::kFloat32)][0]);
}

TEST_P(SimdTest, ReducesLikeThePlainLoopsAtEveryLengthAndAlignment) {
  std::mt19937_64 random(3);
  std::vector<size_t> lengths = {1000, 4096, 100'003};
  for (size_t n = 0; n <= 130; ++n) lengths.push_back(n);
  for (size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const size_t size = ElementBytes(type);
    for (const size_t count : lengths) {
      const Bytes a = RandomBytes(type, count, random);
      const Bytes b = RandomBytes(type, count, random);
      for (size_t op = 0; op < std::size(kSimdOps); ++op) {
        const std::string what = "op " + std::to_string(op);
        Bytes wanted(count * size);
        plain_->reduce[t][op](wanted.data(), a.data(), b.data(), count);
        const size_t shift = random() % 64;  // Also off the elements' own alignment.
        Bytes x(a.size() + shift + 8, 0xa5);
        Bytes y = x;
        Bytes out = x;
        std::copy(a.begin(), a.end(), x.begin() + static_cast<ptrdiff_t>(shift));
        std::copy(b.begin(), b.end(), y.begin() + static_cast<ptrdiff_t>(shift / 2));
        tested_->reduce[t][op](out.data() + shift, x.data() + shift, y.data() + shift / 2, count);
        ExpectSame(type, wanted.data(), out.data() + shift, count, what);
        for (size_t i = 0; i < out.size(); ++i) {  // Nothing before or behind is written.
          if (i < shift || i >= shift + count * size) {
            ASSERT_EQ(out[i], 0xa5) << what << ' ' << i;
          }
        }
        Bytes in_a = x;
        tested_->reduce[t][op](in_a.data() + shift, in_a.data() + shift, y.data() + shift / 2,
                               count);
        ExpectSame(type, wanted.data(), in_a.data() + shift, count, what + " over a");
        tested_->reduce[t][op](y.data() + shift / 2, x.data() + shift, y.data() + shift / 2, count);
        ExpectSame(type, wanted.data(), y.data() + shift / 2, count, what + " over b");
      }
    }
  }
}

TEST_P(SimdTest, ReducesManyInOnePass) {
  std::mt19937_64 random(4);
  for (size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    const bool narrow = type == DataType::kFloat16 || type == DataType::kBfloat16;
    for (const size_t n_inputs : {1, 2, 3, 8}) {
      for (const size_t count : {0, 1, 7, 64, 131, 5000}) {
        std::vector<Bytes> inputs;
        std::vector<const void*> pointers;
        for (size_t k = 0; k < n_inputs; ++k) inputs.push_back(RandomBytes(type, count, random));
        for (const Bytes& input : inputs) pointers.push_back(input.data());
        for (size_t op = 0; op < std::size(kSimdOps); ++op) {
          Bytes wanted(inputs[0].size());
          plain_->reduce_many[t][op](wanted.data(), pointers.data(), n_inputs, count);
          if (!narrow && n_inputs > 1) {
            Bytes pairs = inputs[0];
            for (size_t k = 1; k < n_inputs; ++k)
              plain_->reduce[t][op](pairs.data(), pairs.data(), inputs[k].data(), count);
            ExpectSame(type, pairs.data(), wanted.data(), count, "pairs");
          }
          Bytes out(wanted.size());
          GetReduceManyFunction(type, kSimdOps[op])(out.data(), pointers.data(), n_inputs, count);
          ExpectSame(type, wanted.data(), out.data(), count, "many");
          Bytes last = inputs.back();
          std::vector<const void*> in_place = pointers;
          in_place.back() = last.data();
          tested_->reduce_many[t][op](last.data(), in_place.data(), n_inputs, count);
          ExpectSame(type, wanted.data(), last.data(), count, "many, over the last");
        }
      }
    }
  }
}

TEST_P(SimdTest, ManyRoundsNarrowTypesOnce) {
  // 2048 + 1 is half-way in float16 and falls back to 2048, unless the ones are added up first.
  const uint16_t large = 0x6800;
  const uint16_t one = 0x3c00;
  const void* inputs[] = {&large, &one, &one};
  uint16_t out = 0;
  GetReduceManyFunction(DataType::kFloat16, ReduceOp::kSum)(&out, inputs, 3, 1);
  EXPECT_EQ(out, 0x6801);
  const auto pair = GetReduceFunction(DataType::kFloat16, ReduceOp::kSum);
  pair(&out, &large, &one, 1);
  pair(&out, &out, &one, 1);
  EXPECT_EQ(out, 0x6800);
}

TEST_P(SimdTest, EveryNarrowPatternMeetsEveryHundredth) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> wanted(all.size());
  std::vector<uint16_t> out(all.size());
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    const auto t = static_cast<size_t>(type);
    const auto compare = [&](const std::string& what) {
      ExpectSame(type, reinterpret_cast<unsigned char*>(wanted.data()),
                 reinterpret_cast<unsigned char*>(out.data()), all.size(), what);
    };
    const void* alone[] = {all.data()};
    tested_->reduce_many[t][0](out.data(), alone, 1, all.size());
    wanted = all;  // To float32 and back is the identity.
    compare("round trip");
    for (uint32_t other = 0; other < 65536; other += 97) {
      const std::vector<uint16_t> b(all.size(), static_cast<uint16_t>(other));
      for (size_t op = 0; op < std::size(kSimdOps); ++op) {
        plain_->reduce[t][op](wanted.data(), all.data(), b.data(), all.size());
        tested_->reduce[t][op](out.data(), all.data(), b.data(), all.size());
        compare("op " + std::to_string(op) + " with " + std::to_string(other));
      }
    }
  }
}

TEST_P(SimdTest, ExtremesPropagateNanAndOrderZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, -0.0F, 0.0F, -0.0F, 2, -INFINITY};
  const std::vector<float> b = {1, nan, 0.0F, -0.0F, -0.0F, 2, nan};
  for (const bool least : {true, false}) {
    const auto reduce =
        GetReduceFunction(DataType::kFloat32, least ? ReduceOp::kMin : ReduceOp::kMax);
    // Once as a register and once as what is left over.
    for (const size_t copies : {size_t{1}, size_t{64}}) {
      std::vector<float> x;
      std::vector<float> y;
      for (size_t i = 0; i < copies; ++i) {
        x.insert(x.end(), a.begin(), a.end());
        y.insert(y.end(), b.begin(), b.end());
      }
      std::vector<float> out(x.size());
      reduce(out.data(), x.data(), y.data(), x.size());
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t at = i % a.size();
        if (at < 2 || at == 6) {
          EXPECT_TRUE(std::isnan(out[i])) << at;
        } else {
          EXPECT_EQ(out[i], at == 5 ? 2 : 0) << at;
          if (at < 5) {
            EXPECT_EQ(std::signbit(out[i]), least || at == 4) << at;
          }
        }
      }
    }
  }
}

TEST_P(SimdTest, ScalesLikeThePlainLoops) {
  std::mt19937_64 random(6);
  for (size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    for (const double factor : {0.5, -3.0, 1.0 / 3, 1e6, 1e30, 0.0, HUGE_VAL, std::nan("")}) {
      for (const size_t count : {0, 1, 5, 16, 67, 3001}) {
        Bytes wanted = RandomBytes(type, count, random);
        Bytes out = wanted;
        const Bytes before = wanted;
        if (plain_->scale[t] != nullptr) plain_->scale[t](wanted.data(), count, factor);
        ScaleInPlace(out.data(), count, type, factor);
        ExpectSame(type, wanted.data(), out.data(), count, "times " + std::to_string(factor));
        if (type == DataType::kBool) {
          EXPECT_EQ(out, before);
        }
      }
    }
  }
}

TEST_P(SimdTest, ScaledIntegersSaturate) {
  std::vector<int64_t> wide(9, INT64_MAX / 2 + 1);
  wide[3] = INT64_MIN;
  ScaleInPlace(wide.data(), wide.size(), DataType::kInt64, 2.0);
  for (size_t i = 0; i < wide.size(); ++i) EXPECT_EQ(wide[i], i == 3 ? INT64_MIN : INT64_MAX);
  std::vector<uint8_t> bytes = {200, 3, 255};
  ScaleInPlace(bytes.data(), bytes.size(), DataType::kUint8, 1.5);
  EXPECT_THAT(bytes, ::testing::ElementsAre(255, 4, 255));
  ScaleInPlace(bytes.data(), bytes.size(), DataType::kUint8, -1.0);
  EXPECT_THAT(bytes, ::testing::ElementsAre(0, 0, 0));
}

TEST_P(SimdTest, AdasumTermsAndResultsHaveTheSameBits) {
  std::mt19937_64 random(8);
  for (size_t t = 0; t < kDataTypes; ++t) {
    const auto type = static_cast<DataType>(t);
    ASSERT_EQ(IsAdasumType(type), plain_->dots[t] != nullptr);
    if (!IsAdasumType(type)) continue;
    for (size_t count = 0; count < 300; ++count) {
      Bytes a = RandomBytes(type, count, random);
      Bytes b = RandomBytes(type, count, random);
      const size_t size = ElementBytes(type);
      for (Bytes* bytes : {&a, &b}) {  // One NaN would hide the rest of the sum.
        for (size_t i = 0; i < count; ++i)
          if (unsigned char* at = bytes->data() + i * size; IsNan(type, at) || (at[size - 1] & 64))
            std::memset(at, 0, size);
      }
      const AdasumTerms wanted = plain_->dots[t](a.data(), b.data(), count);
      const AdasumTerms got = AdasumDots(a.data(), b.data(), count, type);
      EXPECT_EQ(std::bit_cast<uint64_t>(wanted.ab), std::bit_cast<uint64_t>(got.ab)) << count;
      EXPECT_EQ(std::bit_cast<uint64_t>(wanted.aa), std::bit_cast<uint64_t>(got.aa)) << count;
      EXPECT_EQ(std::bit_cast<uint64_t>(wanted.bb), std::bit_cast<uint64_t>(got.bb)) << count;
      Bytes model(a.size());
      plain_->combine[t](model.data(), a.data(), b.data(), count, 0.7, -1.3);
      tested_->combine[t](b.data(), a.data(), b.data(), count, 0.7, -1.3);
      ExpectSame(type, model.data(), b.data(), count, "combined over b");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, SimdTest,
                         ::testing::Values(SimdLevel::kScalar, SimdLevel::kAvx2,
                                           SimdLevel::kAvx512),
                         [](const auto& info) { return std::string(SimdLevelName(info.param)); });

}  // namespace
}  // namespace troupe::groups
