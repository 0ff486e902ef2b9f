// Lane types whose elements are computed in another form than they are stored in; see
// vector_registers.h for what a lane type is, and why this has no names of its own.
#pragma once

#include "collective_groups/reduction/internal/vector_registers.h"

namespace troupe::groups::internal {
namespace {

// With AVX-512 the zeroing forms under a full mask: the plain ones make g++ 12 warn in its own
// header.
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

// 32-bit words of two numbers each: the one in the upper half is a float32 as it is, the lower one
// after a shift. That is half the work of widening and packing 16-bit lanes.
struct Brain {
  using Element = float;
  using Words = Vector<uint32_t, kVectorBytes / 4>;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kLanes = kVectorBytes / 2;
  static constexpr uint32_t kUpper = 0xffff0000;
  struct Register {
    Float::Register low;
    Float::Register high;
  };

  template <class Bits, class Value>
  static Bits Rounded(Value value) {  // To nearest even, in the upper half; the rest is to drop.
    const Bits bits = (Bits)value;
    const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return NanMask(value) ? bits | 0x400000 : rounded;
  }
  template <size_t kCount>
  static Vector<float, kCount> Widen(const unsigned char* from) {
    const auto narrow = LoadAs<Vector<uint16_t, kCount>>(from);
    return (Vector<float, kCount>)(__builtin_convertvector(narrow, Vector<uint32_t, kCount>) << 16);
  }
  template <size_t kCount>
  static void Narrow(unsigned char* to, Vector<float, kCount> value) {
    const auto bits = Rounded<Vector<uint32_t, kCount>>(value);
    StoreAs(to, __builtin_convertvector(bits >> 16, Vector<uint16_t, kCount>));
  }
  static Register Load(const unsigned char* from) {
    const auto words = LoadAs<Words>(from);
    return {(Float::Register)(words << 16), (Float::Register)(words & kUpper)};
  }
  static void Store(unsigned char* to, Register value) {
    StoreAs(to, (Rounded<Words>(value.low) >> 16) | (Rounded<Words>(value.high) & kUpper));
  }
  static Register Splat(float value) { return {Float::Splat(value), Float::Splat(value)}; }
  static Register Add(Register a, Register b) {
    return {Float::Add(a.low, b.low), Float::Add(a.high, b.high)};
  }
  static Register Multiply(Register a, Register b) {
    return {Float::Multiply(a.low, b.low), Float::Multiply(a.high, b.high)};
  }
  static Register Minimum(Register a, Register b) {
    return {Float::Minimum(a.low, b.low), Float::Minimum(a.high, b.high)};
  }
  static Register Maximum(Register a, Register b) {
    return {Float::Maximum(a.low, b.low), Float::Maximum(a.high, b.high)};
  }
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
