// Registers of one instruction set, for reduction_avx2.cpp and reduction_avx512.cpp only, whose
// flags decide the width. Everything is in an unnamed namespace: a function that both files share by
// name would be merged by the linker, and one would run with the other's instructions. For the same
// reason nothing of the standard library with code is used here.
//
// A lane type says how elements lie in memory (Load, Store), what they are computed in (Register),
// and how the four operations go.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "collective_groups/internal/reduction_kernels.h"

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
    return a != a ? a : zero_aware;
  }
  static Register Maximum(Register a, Register b) {
    const Register greater = a > b ? a : b;
    if constexpr (!kFloating) return greater;
    const Register zero_aware = a == b ? (Register)((Bits)a & (Bits)b) : greater;
    return a != a ? a : zero_aware;
  }
};

using Float = Native<float, true>;
using Double = Native<double, true>;

// With AVX-512 the zeroing forms under a full mask: the plain ones make g++ 12 warn in its own header.
struct Half : Float {
  static constexpr uint16_t kAll = 0xffff;
  static constexpr size_t kElementBytes = 2;
  template <size_t kCount>
  static Vector<float, kCount> Widen(const unsigned char* from) {
    if constexpr (kCount == 4)
      return (Vector<float, 4>)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)from));
    if constexpr (kCount == 8)
      return (Vector<float, 8>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#if defined(__AVX512F__)
    if constexpr (kCount == 16)
      return (Vector<float, 16>)_mm512_maskz_cvtph_ps(kAll,
                                                      _mm256_loadu_si256((const __m256i*)from));
#endif
  }
  template <size_t kCount>
  static void Narrow(unsigned char* to, Vector<float, kCount> value) {
    constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (kCount == 4)
      _mm_storel_epi64((__m128i*)to, _mm_cvtps_ph((__m128)value, kNearestEven));
    if constexpr (kCount == 8)
      _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph((__m256)value, kNearestEven));
#if defined(__AVX512F__)
    if constexpr (kCount == 16)
      _mm256_storeu_si256((__m256i*)to, _mm512_maskz_cvtps_ph(kAll, (__m512)value, kNearestEven));
#endif
  }
  static Register Load(const unsigned char* from) { return Widen<kLanes>(from); }
  static void Store(unsigned char* to, Register value) { Narrow<kLanes>(to, value); }
};

struct Brain : Float {
  static constexpr size_t kElementBytes = 2;
  template <size_t kCount>
  static Vector<float, kCount> Widen(const unsigned char* from) {
    const auto narrow = LoadAs<Vector<uint16_t, kCount>>(from);
    return (Vector<float, kCount>)(__builtin_convertvector(narrow, Vector<uint32_t, kCount>) << 16);
  }
  template <size_t kCount>
  static void Narrow(unsigned char* to, Vector<float, kCount> value) {
    const auto bits = (Vector<uint32_t, kCount>)value;
    const Vector<uint32_t, kCount> rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Vector<uint32_t, kCount> quiet = bits | 0x400000;
    const Vector<uint32_t, kCount> chosen = value != value ? quiet : rounded;
    StoreAs(to, __builtin_convertvector(chosen >> 16, Vector<uint16_t, kCount>));
  }
  static Register Load(const unsigned char* from) { return Widen<kLanes>(from); }
  static void Store(unsigned char* to, Register value) { Narrow<kLanes>(to, value); }
};

// Truth values, 0 or 1 in the register.
struct Boolean : Native<uint8_t, false> {
  static Register Load(const unsigned char* from) {
    return (Register)(LoadAs<Register>(from) != 0) & 1;
  }
  static Register Add(Register a, Register b) { return a | b; }
  static Register Multiply(Register a, Register b) { return a & b; }
  static Register Minimum(Register a, Register b) { return a & b; }
  static Register Maximum(Register a, Register b) { return a | b; }
};

}  // namespace
}  // namespace troupe::groups::internal
