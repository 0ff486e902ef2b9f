// The arithmetic of Adasum (Maleki et al., "Scaling Distributed Training with Adaptive Summation",
// MLSys 2021): gradients that agree are averaged, orthogonal ones are added.
//
//   Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// float16, bfloat16, float32 and float64. Products and sums are those of float64; results are
// rounded to nearest even (16-bit types: by way of float32). Every instruction set gives the same
// bits. Where a vector is spread over ranks, each computes the dots of its part, these are summed
// over the ranks, and each applies the sums to its part.
// Thread: any.
#pragma once

#include <cstddef>

#include "collective_groups/reduction/reduction.h"

namespace troupe::groups {

struct AdasumTerms {
  double ab = 0;  // a.b
  double aa = 0;  // |a|^2
  double bb = 0;  // |b|^2
};

[[nodiscard]] bool IsAdasumType(DataType type);
// The type must be one of IsAdasumType in all of these.
[[nodiscard]] AdasumTerms AdasumDots(const void* a, const void* b, size_t count, DataType type);
// out may be a or b. A vector of norm zero adds nothing, and the other one is left as it is.
void AdasumApply(void* out, const void* a, const void* b, size_t count, DataType type,
                 const AdasumTerms& terms);
// out = Adasum(a, b) of vectors that are here as a whole. out may be a or b.
void AdasumCombine(void* out, const void* a, const void* b, size_t count, DataType type);

}  // namespace troupe::groups
