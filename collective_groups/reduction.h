// Element types and reductions of collectives.
//
// float16 and bfloat16 are reduced in float32 per pair of operands and rounded to nearest even.
// bool: sum and max are "or", product and min are "and".
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

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

[[nodiscard]] size_t ElementBytes(DataType type);
[[nodiscard]] std::string_view DataTypeName(DataType type);
[[nodiscard]] std::optional<DataType> ParseDataType(std::string_view name);
[[nodiscard]] std::optional<ReduceOp> ParseReduceOp(std::string_view name);

// out[i] = a[i] op b[i]; out may be a or b.
using ReduceFunction = void (*)(void* out, const void* a, const void* b, size_t count);
[[nodiscard]] ReduceFunction GetReduceFunction(DataType type, ReduceOp op);

// data[i] *= factor, for floating types; integers are multiplied in double and truncated towards
// zero.
void ScaleInPlace(void* data, size_t count, DataType type, double factor);

}  // namespace troupe::groups
