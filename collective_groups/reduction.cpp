#include "collective_groups/reduction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "runtime/assert.h"

namespace troupe::groups {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Boolean {
  uint8_t value;
};

float ToFloat(Brain v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

float ToFloat(Half v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16;
  const uint32_t exponent = (v.bits >> 10) & 0x1f;
  const uint32_t mantissa = v.bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude =
      std::ldexp(static_cast<float>(mantissa), -24);  // Zero and subnormal numbers.
  return sign != 0 ? -magnitude : magnitude;
}

void FromFloat(float value, Brain& out) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    out.bits = static_cast<uint16_t>((bits >> 16) | 0x40);
    return;
  }
  bits += 0x7fff + ((bits >> 16) & 1);  // Round to nearest even.
  out.bits = static_cast<uint16_t>(bits >> 16);
}

void FromFloat(float value, Half& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    out.bits = static_cast<uint16_t>(sign | 0x7e00);
  } else if (magnitude >= 0x477ff000) {  // Rounds to at least 65520: infinity.
    out.bits = static_cast<uint16_t>(sign | 0x7c00);
  } else if (magnitude >= 0x38800000) {  // Normal.
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    out.bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
  } else {  // Subnormal: a multiple of 2^-24.
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    out.bits = static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
}

// Integers wrap around: computed without a sign, since signed overflow is undefined.
template <class T>
auto Operand(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<uint64_t>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <class T>
  static T Apply(T a, T b) {
    return static_cast<T>(Operand(a) + Operand(b));
  }
  static bool ApplyBool(bool a, bool b) { return a || b; }
};
struct Product {
  template <class T>
  static T Apply(T a, T b) {
    return static_cast<T>(Operand(a) * Operand(b));
  }
  static bool ApplyBool(bool a, bool b) { return a && b; }
};
struct Min {
  template <class T>
  static T Apply(T a, T b) {
    return std::min(a, b);
  }
  static bool ApplyBool(bool a, bool b) { return a && b; }
};
struct Max {
  template <class T>
  static T Apply(T a, T b) {
    return std::max(a, b);
  }
  static bool ApplyBool(bool a, bool b) { return a || b; }
};

template <class T, class Op>
void Reduce(void* out, const void* a, const void* b, size_t count) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Boolean>) {
      o[i].value = Op::ApplyBool(x[i].value != 0, y[i].value != 0) ? 1 : 0;
    } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) {
      FromFloat(Op::Apply(ToFloat(x[i]), ToFloat(y[i])), o[i]);
    } else {
      o[i] = Op::Apply(x[i], y[i]);
    }
  }
}

template <class T>
ReduceFunction Pick(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return &Reduce<T, Sum>;
    case ReduceOp::kMin:
      return &Reduce<T, Min>;
    case ReduceOp::kMax:
      return &Reduce<T, Max>;
    case ReduceOp::kProduct:
      return &Reduce<T, Product>;
  }
  return nullptr;
}

template <class T>
void Scale(void* data, size_t count, double factor) {
  auto* values = static_cast<T*>(data);
  for (size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Brain>) {
      FromFloat(ToFloat(values[i]) * static_cast<float>(factor), values[i]);
    } else if constexpr (std::is_same_v<T, float>) {
      values[i] *= static_cast<float>(factor);
    } else {
      values[i] = static_cast<T>(static_cast<double>(values[i]) * factor);
    }
  }
}

constexpr std::array<std::string_view, 10> kNames = {"uint8",   "int8",    "int16",    "int32",
                                                     "int64",   "float16", "bfloat16", "float32",
                                                     "float64", "bool"};
constexpr std::array<size_t, 10> kBytes = {1, 1, 2, 4, 8, 2, 2, 4, 8, 1};

}  // namespace

size_t ElementBytes(DataType type) { return kBytes[static_cast<size_t>(type)]; }
std::string_view DataTypeName(DataType type) { return kNames[static_cast<size_t>(type)]; }

std::optional<DataType> ParseDataType(std::string_view name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end()) return std::nullopt;
  return static_cast<DataType>(it - kNames.begin());
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  if (name == "sum") return ReduceOp::kSum;
  if (name == "min") return ReduceOp::kMin;
  if (name == "max") return ReduceOp::kMax;
  if (name == "product") return ReduceOp::kProduct;
  return std::nullopt;
}

ReduceFunction GetReduceFunction(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kUint8:
      return Pick<uint8_t>(op);
    case DataType::kInt8:
      return Pick<int8_t>(op);
    case DataType::kInt16:
      return Pick<int16_t>(op);
    case DataType::kInt32:
      return Pick<int32_t>(op);
    case DataType::kInt64:
      return Pick<int64_t>(op);
    case DataType::kFloat16:
      return Pick<Half>(op);
    case DataType::kBfloat16:
      return Pick<Brain>(op);
    case DataType::kFloat32:
      return Pick<float>(op);
    case DataType::kFloat64:
      return Pick<double>(op);
    case DataType::kBool:
      return Pick<Boolean>(op);
  }
  TROUPE_ASSERT(false, "unknown data type");
}

void ScaleInPlace(void* data, size_t count, DataType type, double factor) {
  switch (type) {
    case DataType::kUint8:
      return Scale<uint8_t>(data, count, factor);
    case DataType::kInt8:
      return Scale<int8_t>(data, count, factor);
    case DataType::kInt16:
      return Scale<int16_t>(data, count, factor);
    case DataType::kInt32:
      return Scale<int32_t>(data, count, factor);
    case DataType::kInt64:
      return Scale<int64_t>(data, count, factor);
    case DataType::kFloat16:
      return Scale<Half>(data, count, factor);
    case DataType::kBfloat16:
      return Scale<Brain>(data, count, factor);
    case DataType::kFloat32:
      return Scale<float>(data, count, factor);
    case DataType::kFloat64:
      return Scale<double>(data, count, factor);
    case DataType::kBool:
      return;  // Scaling truth values has no meaning.
  }
}

}  // namespace troupe::groups
