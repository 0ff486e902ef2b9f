// Nccl: what collectives need of NCCL, which is found and loaded at run time.
//
// TROUPE_NCCL_LIBRARY names the library; else the one that this process has loaded already serves
// (torch brings its own), else libnccl.so.2 of the system. Communicators are non-blocking: what
// starts something returns at once, and Ready tells when it is done. Nothing here waits by itself,
// but NCCL may block in any call; WatchedLane is for that.
// Thread: one at a time per communicator. Nobody may be inside a call when Abort is called.
// Limits: kNcclVersionMin. What came later is in `features`.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective_groups/gpu/cuda_driver.h"
#include "collective_groups/reduction/reduction.h"
#include "runtime/result.h"

namespace troupe::groups {

inline constexpr int kNcclVersionMin = 21400;  // Non-blocking communicators.

struct NcclFeatures {
  int version = 0;       // As NCCL counts it, such as 22703 for 2.27.3.
  bool shrink = false;   // 2.27.3
  bool revoke = false;   // 2.28.7
  bool grow = false;     // 2.29.2
  bool sharing = false;  // 2.30 when told so: ranks of several processes on one GPU.
};

using NcclId = std::array<char, 128>;

class Nccl {
 public:
  struct Communicator;  // One rank's end.
  using Comm = std::shared_ptr<Communicator>;
  enum class Op : uint8_t { kSum, kMin, kMax, kProduct };
  using Stream = CudaDriver::Stream;

  virtual ~Nccl() = default;
  [[nodiscard]] virtual const NcclFeatures& features() const = 0;
  // Whether NCCL reduces elements of this type.
  [[nodiscard]] virtual bool Knows(DataType type) const = 0;

  // ---- forming; on the current device of the thread ----
  virtual Result<NcclId> NewId() = 0;
  virtual Result<Comm> Init(int ranks, const NcclId& id, int rank) = 0;
  // Without the ranks `excluded`, which do not call it. `abort`: operations may be outstanding.
  virtual Result<Comm> Shrink(const Comm& parent, std::vector<int> excluded, bool abort) = 0;
  // For Grow; by one of the parent's ranks.
  virtual Result<NcclId> NewGrowId(const Comm& parent) = 0;
  // A rank of the parent gives the id only if it made it; a new rank gives no parent, and its rank.
  virtual Result<Comm> Grow(const Comm& parent, int ranks, const NcclId* id, int rank) = 0;
  // False while something is under way; an error if the communicator is broken.
  virtual Result<bool> Ready(const Comm& comm) = 0;
  // Ends operations that run; once it is Ready again it can only be shrunk or aborted.
  virtual Status Revoke(const Comm& comm) = 0;
  // Ends operations that run, and frees it. No other call may follow.
  virtual Status Abort(const Comm& comm) = 0;

  // ---- operations: started in a stream; between Begin and End several at once ----
  virtual Status Begin() = 0;
  virtual Status End() = 0;
  // `factor` multiplies what goes into a sum of floating-point elements, and may be each rank's
  // own. Either all ranks give one or none does.
  struct Reduction {
    DataType type = DataType::kFloat32;
    Op op = Op::kSum;
    std::optional<double> factor;
  };
  virtual Status AllReduce(const void* in, void* out, size_t count, const Reduction& reduction,
                           const Comm& comm, Stream stream) = 0;
  virtual Status Reduce(const void* in, void* out, size_t count, const Reduction& reduction,
                        int root, const Comm& comm, Stream stream) = 0;
  // `count` elements for each rank.
  virtual Status ReduceScatter(const void* in, void* out, size_t count, const Reduction& reduction,
                               const Comm& comm, Stream stream) = 0;
  virtual Status Broadcast(void* data, size_t bytes, int root, const Comm& comm, Stream stream) = 0;
  virtual Status AllGather(const void* in, void* out, size_t bytes, const Comm& comm,
                           Stream stream) = 0;
  virtual Status Send(const void* data, size_t bytes, int peer, const Comm& comm,
                      Stream stream) = 0;
  virtual Status Receive(void* data, size_t bytes, int peer, const Comm& comm, Stream stream) = 0;
};

// kUnavailable, with the reason: not built with it, not found, too old, or TROUPE_NCCL=0.
[[nodiscard]] Result<std::shared_ptr<Nccl>> LoadNccl();

}  // namespace troupe::groups
