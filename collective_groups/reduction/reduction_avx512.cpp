// The kernels in AVX-512; compiled with its flags (CMakeLists.txt), run where the CPU has it.
#include "collective_groups/reduction/internal/reduction_kernels.h"

#if defined(__AVX512F__)
#include "collective_groups/reduction/internal/vector_table.h"
#endif

namespace troupe::groups::internal {

const ReductionKernels* Avx512Kernels() {
#if defined(__AVX512F__)
  static const ReductionKernels table = MakeTable();
  return &table;
#else
  return nullptr;
#endif
}

}  // namespace troupe::groups::internal
