// The kernels in AVX2; compiled with its flags (CMakeLists.txt), run where the CPU has it.
#include "collective_groups/reduction/internal/reduction_kernels.h"

#if defined(__AVX2__)
#include "collective_groups/reduction/internal/vector_table.h"
#endif

namespace troupe::groups::internal {

const ReductionKernels* Avx2Kernels() {
#if defined(__AVX2__)
  static const ReductionKernels table = MakeTable();
  return &table;
#else
  return nullptr;
#endif
}

}  // namespace troupe::groups::internal
