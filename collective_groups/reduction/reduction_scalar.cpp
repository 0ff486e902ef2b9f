// Plain loops: for CPUs without vector instructions, and the model that the other sets must equal.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collective_groups/reduction/internal/reduction_kernels.h"

namespace troupe::groups::internal {
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

float Widen(Brain v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

float Widen(Half v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000) << 16;
  const uint32_t exponent = (v.bits >> 10) & 0x1f;
  const uint32_t mantissa = v.bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // Zero and subnormal numbers.
  return sign != 0 ? -magnitude : magnitude;
}

bool Widen(Boolean v) { return v.value != 0; }
template <class T>
T Widen(T v) {
  return v;
}

void Narrow(float value, Brain& out) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) {
    out.bits = static_cast<uint16_t>((bits >> 16) | 0x40);
    return;
  }
  bits += 0x7fff + ((bits >> 16) & 1);  // Round to nearest even.
  out.bits = static_cast<uint16_t>(bits >> 16);
}

void Narrow(float value, Half& out) {
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
  } else {  // Subnormal: a sum with 0.5 is rounded to a multiple of 2^-24.
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    out.bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  }
}

void Narrow(bool value, Boolean& out) { out.value = value ? 1 : 0; }
template <class T>
void Narrow(T value, T& out) {
  out = value;
}

// Element i of memory of any alignment.
template <class T>
auto Get(const void* from, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  return Widen(value);
}
template <class T, class Wide>
void Put(void* to, size_t i, Wide value) {
  T narrow;
  Narrow(value, narrow);
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &narrow, sizeof(T));
}

// IEEE 754-2019 minimum (kLess) and maximum; integers alike.
template <bool kLess, class T>
T Extreme(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (a == b) return std::signbit(a) == kLess ? a : b;  // Differs for -0 and +0.
  }
  return (kLess ? a < b : a > b) ? a : b;
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

template <ReduceOp kOp, class T>
T Apply(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return kOp == ReduceOp::kSum || kOp == ReduceOp::kMax ? a || b : a && b;
  } else if constexpr (kOp == ReduceOp::kSum) {
    return static_cast<T>(Operand(a) + Operand(b));
  } else if constexpr (kOp == ReduceOp::kProduct) {
    return static_cast<T>(Operand(a) * Operand(b));
  } else {
    return Extreme<kOp == ReduceOp::kMin>(a, b);
  }
}

template <class T, ReduceOp kOp>
void Reduce(void* out, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) Put<T>(out, i, Apply<kOp>(Get<T>(a, i), Get<T>(b, i)));
}

template <class T, ReduceOp kOp>
void ReduceMany(void* out, const void* const* inputs, size_t n_inputs, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    auto value = Get<T>(inputs[0], i);
    for (size_t k = 1; k < n_inputs; ++k) value = Apply<kOp>(value, Get<T>(inputs[k], i));
    Put<T>(out, i, value);
  }
}

template <class T>
T Saturated(double value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  // The limit of int64 becomes 2^63 as a double.
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

template <class T>
void Scale(void* data, size_t count, double factor) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = Get<T>(data, i);
    if constexpr (std::is_integral_v<T>) {
      Put<T>(data, i, Saturated<T>(static_cast<double>(value) * factor));
    } else {
      Put<T>(data, i, value * static_cast<std::remove_cv_t<decltype(value)>>(factor));
    }
  }
}

template <class T>
AdasumTerms Dots(const void* a, const void* b, size_t count) {
  std::array<AdasumTerms, kDotLanes> lanes{};
  for (size_t i = 0; i < count; ++i) {
    const double u = Get<T>(a, i);
    const double v = Get<T>(b, i);
    AdasumTerms& lane = lanes[i % kDotLanes];
    lane.ab += u * v;
    lane.aa += u * u;
    lane.bb += v * v;
  }
  AdasumTerms sum;
  for (const AdasumTerms& lane : lanes) {
    sum.ab += lane.ab;
    sum.aa += lane.aa;
    sum.bb += lane.bb;
  }
  return sum;
}

template <class T>
void Combine(void* out, const void* a, const void* b, size_t count, double scale_a,
             double scale_b) {
  for (size_t i = 0; i < count; ++i) {
    const auto x = Get<T>(a, i);
    const auto y = Get<T>(b, i);
    const double value = scale_a * static_cast<double>(x) + scale_b * static_cast<double>(y);
    Put<T>(out, i, static_cast<std::remove_cv_t<decltype(x)>>(value));
  }
}

template <class T, ReduceOp kOp>
void FillOp(ReductionKernels& table, size_t type) {
  table.reduce[type][static_cast<size_t>(kOp)] = &Reduce<T, kOp>;
  table.reduce_many[type][static_cast<size_t>(kOp)] = &ReduceMany<T, kOp>;
}

template <class T>
void Fill(ReductionKernels& table, DataType data_type) {
  const auto type = static_cast<size_t>(data_type);
  FillOp<T, ReduceOp::kSum>(table, type);
  FillOp<T, ReduceOp::kMin>(table, type);
  FillOp<T, ReduceOp::kMax>(table, type);
  FillOp<T, ReduceOp::kProduct>(table, type);
  if constexpr (!std::is_same_v<T, Boolean>) table.scale[type] = &Scale<T>;
  if constexpr (!std::is_integral_v<T> && !std::is_same_v<T, Boolean>) {
    table.dots[type] = &Dots<T>;
    table.combine[type] = &Combine<T>;
  }
}

}  // namespace

const ReductionKernels* ScalarKernels() {
  static const ReductionKernels table = [] {
    ReductionKernels t;
    Fill<uint8_t>(t, DataType::kUint8);
    Fill<int8_t>(t, DataType::kInt8);
    Fill<int16_t>(t, DataType::kInt16);
    Fill<int32_t>(t, DataType::kInt32);
    Fill<int64_t>(t, DataType::kInt64);
    Fill<Half>(t, DataType::kFloat16);
    Fill<Brain>(t, DataType::kBfloat16);
    Fill<float>(t, DataType::kFloat32);
    Fill<double>(t, DataType::kFloat64);
    Fill<Boolean>(t, DataType::kBool);
    return t;
  }();
  return &table;
}

}  // namespace troupe::groups::internal
