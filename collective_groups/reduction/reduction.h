// Element types and reductions of collectives, with vector instructions where the CPU has them.
//
// float16 and bfloat16 are reduced in float32 and rounded to nearest even, once per call.
// Integers wrap around. bool: sum and max are "or", product and min are "and", answers are 0 or 1.
// Min and max of floating types are those of IEEE 754-2019 (minimum, maximum): a NaN in either
// operand gives a NaN, and -0 is less than +0. Both are therefore commutative and associative.
//
// Every instruction set gives the same bits, except that the payload of a NaN may differ.
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace troupe::groups {

enum class DataType : uint8_t {
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kBool
};
enum class ReduceOp : uint8_t { kSum, kMin, kMax, kProduct };

// The type of a C++ element.
template <class T>
[[nodiscard]] constexpr DataType ElementType() {
  if constexpr (std::is_same_v<T, uint8_t>)
    return DataType::kUint8;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DataType::kInt8;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DataType::kInt16;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DataType::kInt32;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DataType::kInt64;
  else if constexpr (std::is_same_v<T, float>)
    return DataType::kFloat32;
  else {
    static_assert(std::is_same_v<T, double>, "no element type of collectives");
    return DataType::kFloat64;
  }
}

[[nodiscard]] size_t ElementBytes(DataType type);
[[nodiscard]] std::string_view DataTypeName(DataType type);
[[nodiscard]] std::optional<DataType> ParseDataType(std::string_view name);
[[nodiscard]] std::optional<ReduceOp> ParseReduceOp(std::string_view name);

// out[i] = a[i] op b[i]; out may be a or b, but may not overlap them otherwise. Pointers need no
// alignment, here and below.
using ReduceFunction = void (*)(void* out, const void* a, const void* b, size_t count);
[[nodiscard]] ReduceFunction GetReduceFunction(DataType type, ReduceOp op);

// out[i] = inputs[0][i] op inputs[1][i] op ... in this order, in one pass: n_inputs reads and one
// write per element. n_inputs is at least 1. out may be one of the inputs. float16 and bfloat16 are
// accumulated in float32 over all inputs and rounded once, so their sum is closer to the true one
// than that of n_inputs - 1 calls of a ReduceFunction; other types give the bits of those calls.
using ReduceManyFunction = void (*)(void* out, const void* const* inputs, size_t n_inputs,
                                    size_t count);
[[nodiscard]] ReduceManyFunction GetReduceManyFunction(DataType type, ReduceOp op);

// data[i] *= factor, unless that is 1. float16, bfloat16 and float32 are multiplied in float32.
// Integers are multiplied in double, truncated towards zero and saturated; NaN becomes 0. bool
// stays as it is.
void ScaleInPlace(void* data, size_t count, DataType type, double factor);

// Instruction sets. The best one that the CPU has is in use, unless the environment variable
// TROUPE_SIMD (scalar, avx2, avx512), read once, names another.
//   kAvx2    AVX2, F16C and FMA
//   kAvx512  AVX-512 F, BW, VL and DQ. Not BF16: its conversion flushes subnormal numbers to zero.
enum class SimdLevel : uint8_t { kScalar, kAvx2, kAvx512 };

[[nodiscard]] std::string_view SimdLevelName(SimdLevel level);
[[nodiscard]] bool IsSimdLevelSupported(SimdLevel level);
[[nodiscard]] SimdLevel ActiveSimdLevel();
// For tests and benchmarks: functions got from here on are of this set, which must be supported.
void ForceSimdLevel(SimdLevel level);

}  // namespace troupe::groups
