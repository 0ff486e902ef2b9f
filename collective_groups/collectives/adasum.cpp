#include "collective_groups/collectives/adasum.h"

#include "collective_groups/reduction/internal/reduction_kernels.h"
#include "runtime/assert.h"

namespace troupe::groups {
namespace {

// 1 - ab / (2 norm), and 1 for the zero vector. Halving before dividing cannot overflow.
double ShareOf(double ab, double norm) { return norm > 0 ? 1 - ab / 2 / norm : 1; }

}  // namespace

bool IsAdasumType(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

AdasumTerms AdasumDots(const void* a, const void* b, size_t count, DataType type) {
  TROUPE_ASSERT(IsAdasumType(type), DataTypeName(type));
  return internal::ActiveKernels().dots[static_cast<size_t>(type)](a, b, count);
}

void AdasumApply(void* out, const void* a, const void* b, size_t count, DataType type,
                 const AdasumTerms& terms) {
  TROUPE_ASSERT(IsAdasumType(type), DataTypeName(type));
  internal::ActiveKernels().combine[static_cast<size_t>(type)](
      out, a, b, count, ShareOf(terms.ab, terms.aa), ShareOf(terms.ab, terms.bb));
}

void AdasumCombine(void* out, const void* a, const void* b, size_t count, DataType type) {
  AdasumApply(out, a, b, count, type, AdasumDots(a, b, count, type));
}

}  // namespace troupe::groups
