// The functions of one instruction set, by DataType and ReduceOp. Each set is compiled in a file of
// its own with its own flags; reduction.cpp picks one.
#pragma once

#include <cstddef>

#include "collective_groups/collectives/adasum.h"
#include "collective_groups/reduction/reduction.h"

namespace troupe::groups::internal {

inline constexpr size_t kDataTypes = 10;
inline constexpr size_t kReduceOps = 4;
// Products of AdasumDots go to partial sums by index modulo this, which are then added in order:
// the same order of additions in every instruction set.
inline constexpr size_t kDotLanes = 16;

struct ReductionKernels {
  ReduceFunction reduce[kDataTypes][kReduceOps] = {};
  ReduceManyFunction reduce_many[kDataTypes][kReduceOps] = {};
  void (*scale[kDataTypes])(void* data, size_t count, double factor) = {};
  // Null but for floating types.
  AdasumTerms (*dots[kDataTypes])(const void* a, const void* b, size_t count) = {};
  // out = scale_a * a + scale_b * b
  void (*combine[kDataTypes])(void* out, const void* a, const void* b, size_t count, double scale_a,
                              double scale_b) = {};
};

// Null where the compiler had no such instructions.
const ReductionKernels* ScalarKernels();
const ReductionKernels* Avx2Kernels();
const ReductionKernels* Avx512Kernels();
// Those in use.
const ReductionKernels& ActiveKernels();

}  // namespace troupe::groups::internal
