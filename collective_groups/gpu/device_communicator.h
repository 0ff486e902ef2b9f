// Operations on GPU memory, in front of a communicator for host memory.
//
// At its first operation on devices in an epoch a team decides whether it can use NCCL and how to
// come by its NCCL communicator (internal/nccl_plan.h); the ranks talk about it through the
// communicator for host memory. Where one of them cannot, the buffers of all are copied to host
// memory and back. What NCCL does not know (sums and extrema of int16, scaled integers or extrema)
// goes that way too. All other operations are passed on as they are.
//
// An operation starts when the memory is ready (Device::ready) and returns when its result is
// there, so nothing is left in a stream. Abort ends an operation of NCCL, and the forming of its
// communicator, within the epoch's bound: NCCL is told to stop, and if it does not within
// `abort_limit` its thread is left behind, and this process uses host memory from then on.
// Thread: as Communicator.
// Invariants: NP-1 to NP-3; an operation that was ended leaves its input as it was, unless input
// and output are the same memory.
// Limits: DeviceOptions; kNcclFailuresMax.
#pragma once

#include <functional>
#include <memory>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/gpu/nccl_library.h"

namespace troupe::groups {

struct DeviceOptions {
  Duration form_limit = seconds(120);  // To form a communicator.
  Duration abort_limit = seconds(10);  // For NCCL to stop.
  std::function<Result<std::shared_ptr<CudaDriver>>()> load_driver = LoadCudaDriver;
  std::function<Result<std::shared_ptr<Nccl>>()> load_nccl = LoadNccl;
};

[[nodiscard]] std::unique_ptr<Communicator> MakeDeviceCommunicator(
    std::unique_ptr<Communicator> host, const DeviceOptions& options);

}  // namespace troupe::groups
