// Adasum's kernels of one instruction set and the table of all its kernels; see vector_registers.h
// for why this is included by two files only and has no names of its own.
#pragma once

#include "collective_groups/reduction/internal/vector_kernels.h"

namespace troupe::groups::internal {
namespace {

template <class Lane>
Doubles LoadDoubles(const unsigned char* from) {
  if constexpr (Lane::kElementBytes == 8) {
    return LoadAs<Doubles>(from);
  } else if constexpr (Lane::kElementBytes == 4) {
    return __builtin_convertvector((LoadAs<Vector<float, kDoubles>>(from)), Doubles);
  } else {
    return __builtin_convertvector(Lane::template Widen<kDoubles>(from), Doubles);
  }
}

template <class Lane>
void StoreDoubles(unsigned char* to, Doubles value) {
  if constexpr (Lane::kElementBytes == 8) {
    StoreAs(to, value);
  } else {
    const auto single = __builtin_convertvector(value, Vector<float, kDoubles>);
    if constexpr (Lane::kElementBytes == 4) {
      StoreAs(to, single);
    } else {
      Lane::template Narrow<kDoubles>(to, single);
    }
  }
}

template <class Lane>
AdasumTerms Dots(const void* a, const void* b, size_t count) {
  constexpr size_t kRegisters = kDotLanes / kDoubles;
  constexpr size_t kStride = kDoubles * Lane::kElementBytes;
  Doubles ab[kRegisters] = {};
  Doubles aa[kRegisters] = {};
  Doubles bb[kRegisters] = {};
  const auto add = [&](const unsigned char* x, const unsigned char* y) {
    for (size_t r = 0; r < kRegisters; ++r) {
      const Doubles u = LoadDoubles<Lane>(x + r * kStride);
      const Doubles v = LoadDoubles<Lane>(y + r * kStride);
      ab[r] += u * v;
      aa[r] += u * u;
      bb[r] += v * v;
    }
  };
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  constexpr size_t kBlock = kRegisters * kStride;
  for (; count >= kDotLanes; count -= kDotLanes, x += kBlock, y += kBlock) add(x, y);
  if (count > 0) {  // Zeros change no sum.
    unsigned char last_x[kBlock] = {};
    unsigned char last_y[kBlock] = {};
    __builtin_memcpy(last_x, x, count * Lane::kElementBytes);
    __builtin_memcpy(last_y, y, count * Lane::kElementBytes);
    add(last_x, last_y);
  }
  AdasumTerms sum;
  for (size_t i = 0; i < kDotLanes; ++i) {
    sum.ab += ab[i / kDoubles][i % kDoubles];
    sum.aa += aa[i / kDoubles][i % kDoubles];
    sum.bb += bb[i / kDoubles][i % kDoubles];
  }
  return sum;
}

template <class Lane>
void Combine(void* out, const void* a, const void* b, size_t count, double scale_a,
             double scale_b) {
  constexpr size_t kStride = kDoubles * Lane::kElementBytes;
  auto* to = static_cast<unsigned char*>(out);
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  const auto one = [&](unsigned char* o, const unsigned char* u, const unsigned char* v) {
    StoreDoubles<Lane>(o, scale_a * LoadDoubles<Lane>(u) + scale_b * LoadDoubles<Lane>(v));
  };
  for (; count >= kDoubles; count -= kDoubles, to += kStride, x += kStride, y += kStride)
    one(to, x, y);
  if (count > 0) {
    unsigned char last_x[kStride] = {};
    unsigned char last_y[kStride] = {};
    unsigned char result[kStride];
    __builtin_memcpy(last_x, x, count * Lane::kElementBytes);
    __builtin_memcpy(last_y, y, count * Lane::kElementBytes);
    one(result, last_x, last_y);
    __builtin_memcpy(to, result, count * Lane::kElementBytes);
  }
}

template <class Lane, ReduceOp kOp>
void FillOp(ReductionKernels& table, size_t type) {
  table.reduce[type][static_cast<size_t>(kOp)] = &Reduce<Lane, kOp>;
  table.reduce_many[type][static_cast<size_t>(kOp)] = &ReduceMany<Lane, kOp>;
}
template <class Lane>
size_t FillOps(ReductionKernels& table, DataType data_type) {
  const auto type = static_cast<size_t>(data_type);
  FillOp<Lane, ReduceOp::kSum>(table, type);
  FillOp<Lane, ReduceOp::kMin>(table, type);
  FillOp<Lane, ReduceOp::kMax>(table, type);
  FillOp<Lane, ReduceOp::kProduct>(table, type);
  return type;
}
template <class T>
void FillInteger(ReductionKernels& table, DataType data_type) {
  table.scale[FillOps<Native<T, false>>(table, data_type)] = &ScaleInteger<T>;
}
template <class Lane>
void FillFloating(ReductionKernels& table, DataType data_type) {
  const size_t type = FillOps<Lane>(table, data_type);
  table.scale[type] = &Scale<Lane>;
  table.dots[type] = &Dots<Lane>;
  table.combine[type] = &Combine<Lane>;
}

ReductionKernels MakeTable() {
  ReductionKernels table;
  FillInteger<uint8_t>(table, DataType::kUint8);
  FillInteger<int8_t>(table, DataType::kInt8);
  FillInteger<int16_t>(table, DataType::kInt16);
  FillInteger<int32_t>(table, DataType::kInt32);
  FillInteger<int64_t>(table, DataType::kInt64);
  FillFloating<Half>(table, DataType::kFloat16);
  FillFloating<Brain>(table, DataType::kBfloat16);
  FillFloating<Float>(table, DataType::kFloat32);
  FillFloating<Double>(table, DataType::kFloat64);
  FillOps<Boolean>(table, DataType::kBool);
  return table;
}

}  // namespace
}  // namespace troupe::groups::internal
