// Collectives that are made of the operations of a Communicator.
//
// Each rank of the team calls the same one. Positions are those of the team.
// Thread: as the Communicator.
#pragma once

#include <span>

#include "collective_groups/collectives/communicator.h"

namespace troupe::groups {

// `out` = the blocks of all ranks in order; sizes may differ and be zero.
Status AllGather(Communicator& communicator, const Operation& operation, const void* in, void* out,
                 std::span<const size_t> bytes_per_rank);

// Combines the ranks' vectors pairwise, tensor by tensor and in place: what two vectors share
// counts once, what they do not share adds up. float16, bfloat16, float32, float64.
// Source: Maleki et al.: Scaling Distributed Training with Adaptive Summation, MLSys 2021.
Status Adasum(Communicator& communicator, const Operation& operation,
              std::span<const MutableBuffer> tensors, DataType type);

}  // namespace troupe::groups
