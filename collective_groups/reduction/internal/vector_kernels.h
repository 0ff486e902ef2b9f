// The kernels of one instruction set, over the lane types of vector_registers.h; see there why this
// is included by two files only and has no names of its own.
//
// What is left over at the end goes through the same registers, by way of a padded copy: one path
// for all lengths, and results that do not depend on where a buffer was cut.
#pragma once

#include "collective_groups/reduction/internal/narrow_registers.h"

namespace troupe::groups::internal {
namespace {

template <class Lane, ReduceOp kOp>
typename Lane::Register Apply(typename Lane::Register a, typename Lane::Register b) {
  if constexpr (kOp == ReduceOp::kSum) return Lane::Add(a, b);
  if constexpr (kOp == ReduceOp::kProduct) return Lane::Multiply(a, b);
  if constexpr (kOp == ReduceOp::kMin) return Lane::Minimum(a, b);
  if constexpr (kOp == ReduceOp::kMax) return Lane::Maximum(a, b);
}

// The first `count` elements of a register, the rest zero.
template <class Lane>
typename Lane::Register LoadSome(const unsigned char* from, size_t count) {
  unsigned char padded[Lane::kLanes * Lane::kElementBytes] = {};
  __builtin_memcpy(padded, from, count * Lane::kElementBytes);
  return Lane::Load(padded);
}
template <class Lane>
void StoreSome(unsigned char* to, typename Lane::Register value, size_t count) {
  unsigned char padded[Lane::kLanes * Lane::kElementBytes];
  Lane::Store(padded, value);
  __builtin_memcpy(to, padded, count * Lane::kElementBytes);
}

template <class Lane, ReduceOp kOp>
[[gnu::always_inline]] inline void Fold(void* out, const void* const* inputs, size_t n_inputs,
                                        size_t count) {
  using Register = typename Lane::Register;
  constexpr size_t kUnroll = 4;
  constexpr size_t kStride = Lane::kLanes * Lane::kElementBytes;
  auto* to = static_cast<unsigned char*>(out);
  const auto at = [&](size_t k, size_t offset) {
    return static_cast<const unsigned char*>(inputs[k]) + offset;
  };
  const size_t end = count * Lane::kElementBytes;
  size_t offset = 0;
  for (; offset + kUnroll * kStride <= end; offset += kUnroll * kStride) {
    Register sum[kUnroll];
    for (size_t u = 0; u < kUnroll; ++u) sum[u] = Lane::Load(at(0, offset + u * kStride));
    for (size_t k = 1; k < n_inputs; ++k)
      for (size_t u = 0; u < kUnroll; ++u)
        sum[u] = Apply<Lane, kOp>(sum[u], Lane::Load(at(k, offset + u * kStride)));
    for (size_t u = 0; u < kUnroll; ++u) Lane::Store(to + offset + u * kStride, sum[u]);
  }
  for (; offset + kStride <= end; offset += kStride) {
    Register sum = Lane::Load(at(0, offset));
    for (size_t k = 1; k < n_inputs; ++k) sum = Apply<Lane, kOp>(sum, Lane::Load(at(k, offset)));
    Lane::Store(to + offset, sum);
  }
  if (const size_t rest = (end - offset) / Lane::kElementBytes; rest > 0) {
    Register sum = LoadSome<Lane>(at(0, offset), rest);
    for (size_t k = 1; k < n_inputs; ++k)
      sum = Apply<Lane, kOp>(sum, LoadSome<Lane>(at(k, offset), rest));
    StoreSome<Lane>(to + offset, sum, rest);
  }
}

template <class Lane, ReduceOp kOp>
void Reduce(void* out, const void* a, const void* b, size_t count) {
  const void* const inputs[2] = {a, b};
  Fold<Lane, kOp>(out, inputs, 2, count);
}
template <class Lane, ReduceOp kOp>
void ReduceMany(void* out, const void* const* inputs, size_t n_inputs, size_t count) {
  Fold<Lane, kOp>(out, inputs, n_inputs, count);
}

template <class Lane>
void Scale(void* data, size_t count, double factor) {
  using Element = typename Lane::Element;
  constexpr size_t kStride = Lane::kLanes * Lane::kElementBytes;
  auto* at = static_cast<unsigned char*>(data);
  const auto by = Lane::Splat(static_cast<Element>(factor));
  for (; count >= Lane::kLanes; count -= Lane::kLanes, at += kStride)
    Lane::Store(at, Lane::Multiply(Lane::Load(at), by));
  if (count > 0) StoreSome<Lane>(at, Lane::Multiply(LoadSome<Lane>(at, count), by), count);
}

constexpr size_t kDoubles = kVectorBytes / sizeof(double);
using Doubles = Vector<double, kDoubles>;

// Integers by way of double, as many as a register of doubles holds.
template <class T>
struct IntegerLane {
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kLanes = kDoubles;
  using Register = Vector<T, kLanes>;
  static Register Load(const unsigned char* from) { return LoadAs<Register>(from); }
  static void Store(unsigned char* to, Register value) { StoreAs(to, value); }
};

template <class T>
void ScaleInteger(void* data, size_t count, double factor) {
  using Lane = IntegerLane<T>;
  constexpr T kLeast = static_cast<T>(-1) < 0 ? static_cast<T>(T{1} << (sizeof(T) * 8 - 1)) : T{0};
  constexpr T kMost = static_cast<T>(~kLeast);
  auto* at = static_cast<unsigned char*>(data);
  const auto scaled = [factor](typename Lane::Register value) {
    const Doubles least = Doubles{} + static_cast<double>(kLeast);
    const Doubles most = Doubles{} + static_cast<double>(kMost);  // 2^63 for int64.
    Doubles wide = __builtin_convertvector(value, Doubles) * factor;
    wide = NanMask(wide) ? Doubles{} : wide;
    wide = wide < least ? least : wide;
    if constexpr (sizeof(T) < sizeof(double)) {
      return __builtin_convertvector(wide > most ? most : wide, typename Lane::Register);
    } else {
      const Doubles inside = wide >= most ? Doubles{} : wide;
      const auto result = __builtin_convertvector(inside, typename Lane::Register);
      return wide >= most ? typename Lane::Register{} + kMost : result;
    }
  };
  for (; count >= kDoubles; count -= kDoubles, at += kDoubles * sizeof(T))
    Lane::Store(at, scaled(Lane::Load(at)));
  if (count > 0) StoreSome<Lane>(at, scaled(LoadSome<Lane>(at, count)), count);
}

}  // namespace
}  // namespace troupe::groups::internal
