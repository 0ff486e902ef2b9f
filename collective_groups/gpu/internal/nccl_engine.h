// NcclEngine: this process's GPU, NCCL, and the communicators of its teams.
//
// Every call into CUDA and NCCL is made on one watched lane, so that the caller gets away even if
// NCCL does not. Waiting is polling: an event behind the work, the communicator's own state, and
// whether to stop.
// Thread: the lane that runs operations, one call at a time; Mark and `reads_devices` from any.
// Limits: a lane that is lost is replaced once, for copies; NCCL is not used again.
// Owns: the libraries, a stream, scratch memory, and every communicator. What has not come back
// from a call is left behind with all it may touch.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "collective_groups/gpu/device_communicator.h"
#include "collective_groups/gpu/internal/device_work.h"
#include "collective_groups/gpu/internal/nccl_plan.h"
#include "collective_groups/gpu/internal/watched_lane.h"

namespace troupe::groups {

class NcclEngine {
 public:
  using Stop = std::function<bool()>;

  explicit NcclEngine(const DeviceOptions& options);
  ~NcclEngine();
  NcclEngine(const NcclEngine&) = delete;
  NcclEngine& operator=(const NcclEngine&) = delete;

  [[nodiscard]] bool reads_devices();
  Result<Device> Mark(int index, void* stream);

  // What this rank has to say about a team. `device`: of the operation at hand; the first one in
  // device memory decides which device this process uses with NCCL.
  NcclStatement State(uint32_t team, const Device& device, const Stop& stop);
  Result<NcclId> NewId(const Stop& stop);
  Result<NcclId> NewGrowId(uint32_t team, const Stop& stop);

  // The team's communicator becomes a new one. The old one, if any, is freed: before Init, because
  // nothing of it is needed, and after Shrink and Grow. Each is complete when it returns.
  Status Init(uint32_t team, int ranks, const NcclId& id, int rank, const Stop& stop);
  Status Shrink(uint32_t team, const NcclPlan& plan, const Stop& stop);
  // `id`: who gave it, and who is new, which is who has no rank of the old one.
  Status Grow(uint32_t team, int ranks, const NcclId& id, int rank, bool survivor,
              const Stop& stop);
  // A first, tiny sum: NCCL opens its connections then.
  Status Warm(uint32_t team, const Stop& stop);
  void Release(uint32_t team);
  // Releases all but these.
  void ReleaseOthers(const std::set<uint32_t>& teams);
  void CountFailure(uint32_t team);

  // Whether NCCL may work on this memory without a copy.
  [[nodiscard]] bool Direct(const Device& device) const { return device.index == device_; }
  [[nodiscard]] const Nccl* nccl() const;
  // Runs the work with the team's communicator. kPeerGone if that broke, kEpochChanged if `stop`
  // ended it; then nothing touches the buffers any more, unless NCCL did not come back.
  Status Perform(uint32_t team, DeviceWork work, const Device& device, const Stop& stop);
  // Copies between host and devices, without NCCL. `memory` lives as long as they may run.
  Status CopyAll(std::vector<DeviceCopy> copies, const Device& device, const Stop& stop,
                 std::shared_ptr<void> memory);

 private:
  struct Team;
  struct Shared;

  Status OnLane(std::function<Status(Shared&)> work, const Stop& stop);
  Status Open(const Device& device, const Stop& stop);
  void Leave();
  Result<std::shared_ptr<CudaDriver>> Driver();

  const DeviceOptions options_;
  std::mutex mu_;
  std::optional<Result<std::shared_ptr<CudaDriver>>>
      driver_;  // Guarded by mu_; from the first use.
  // From the first use, and once more if they were lost; without NCCL then.
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<WatchedLane> lane_;
  bool lost_ = false;
  int device_ = kHostMemory;
};

}  // namespace troupe::groups
