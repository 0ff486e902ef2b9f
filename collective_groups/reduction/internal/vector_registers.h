// Registers of one instruction set, for reduction_avx2.cpp and reduction_avx512.cpp only, whose
// flags decide the width. Everything is in an unnamed namespace: a function that both files share
// by name would be merged by the linker, and one would run with the other's instructions. For the
// same reason nothing of the standard library with code is used here.
//
// A lane type says how elements lie in memory (Load, Store), what they are computed in (Register),
// and how the four operations go.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "collective_groups/reduction/internal/reduction_kernels.h"

namespace troupe::groups::internal {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#else
constexpr size_t kVectorBytes = 32;
#endif

template <class T, size_t kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * kCount)));
};
template <class T, size_t kCount>
using Vector = typename VectorOf<T, kCount>::Type;

template <class V>
V LoadAs(const unsigned char* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class V>
void StoreAs(unsigned char* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// All bits set where a value is NaN.
template <class V>
auto NanMask(V value) {
  return value != value;  // NOLINT(misc-redundant-expression): only NaN differs from itself.
}

template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using Type = uint8_t;
};
template <>
struct UnsignedOf<2> {
  using Type = uint16_t;
};
template <>
struct UnsignedOf<4> {
  using Type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using Type = uint64_t;
};

// Native integers (kFloating false: they wrap around) and floating-point numbers.
template <class T, bool kFloating>
struct Native {
  using Element = T;
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kLanes = kVectorBytes / sizeof(T);
  using Register = Vector<T, kLanes>;
  using Bits = Vector<typename UnsignedOf<sizeof(T)>::Type, kLanes>;

  static Register Load(const unsigned char* from) { return LoadAs<Register>(from); }
  static void Store(unsigned char* to, Register value) { StoreAs(to, value); }
  static Register Splat(T value) { return Register{} + value; }
  static Register Add(Register a, Register b) {
    if constexpr (kFloating) return a + b;
    return (Register)((Bits)a + (Bits)b);
  }
  static Register Multiply(Register a, Register b) {
    if constexpr (kFloating) return a * b;
    return (Register)((Bits)a * (Bits)b);
  }
  // Of -0 and +0, which are equal, the "or" is -0 and the "and" is +0. A NaN in b is what a
  // comparison that fails selects; one in a is selected last.
  static Register Minimum(Register a, Register b) {
    const Register less = a < b ? a : b;
    if constexpr (!kFloating) return less;
    const Register zero_aware = a == b ? (Register)((Bits)a | (Bits)b) : less;
    return NanMask(a) ? a : zero_aware;
  }
  static Register Maximum(Register a, Register b) {
    const Register greater = a > b ? a : b;
    if constexpr (!kFloating) return greater;
    const Register zero_aware = a == b ? (Register)((Bits)a & (Bits)b) : greater;
    return NanMask(a) ? a : zero_aware;
  }
};

using Float = Native<float, true>;
using Double = Native<double, true>;

}  // namespace
}  // namespace troupe::groups::internal
