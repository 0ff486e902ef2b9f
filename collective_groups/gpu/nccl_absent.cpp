// In place of nccl_library.cpp and cuda_driver.cpp where their headers were not found.
#include "collective_groups/gpu/cuda_driver.h"
#include "collective_groups/gpu/nccl_library.h"

namespace troupe::groups {

Result<std::shared_ptr<CudaDriver>> LoadCudaDriver() {
  return Error{ErrorCode::kUnavailable, "this is a build without NCCL (TROUPE_NCCL)"};
}

Result<std::shared_ptr<Nccl>> LoadNccl() {
  return Error{ErrorCode::kUnavailable, "this is a build without NCCL (TROUPE_NCCL)"};
}

}  // namespace troupe::groups
