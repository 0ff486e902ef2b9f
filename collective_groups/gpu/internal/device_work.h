// DeviceWork: an operation on devices, cut into copies and calls of NCCL.
//
// NCCL works on one piece of memory of its own device. Anything else is copied through scratch
// memory there: before from where it is, and back after. Only a result is ever copied back.
// Thread: plain values; they own or copy what they describe, not the buffers themselves.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective_groups/collectives/communicator.h"
#include "collective_groups/gpu/nccl_library.h"

namespace troupe::groups {

// An address, or an offset into scratch memory.
class Place {
 public:
  Place() = default;
  static Place At(const void* pointer) { return {reinterpret_cast<uintptr_t>(pointer), false}; }
  static Place InScratch(size_t offset) { return {offset, true}; }
  [[nodiscard]] Place operator+(size_t bytes) const { return {value_ + bytes, scratch_}; }
  [[nodiscard]] char* In(char* scratch) const {
    return scratch_ ? scratch + value_ : reinterpret_cast<char*>(value_);
  }

 private:
  Place(uintptr_t value, bool scratch) : value_(value), scratch_(scratch) {}
  uintptr_t value_ = 0;
  bool scratch_ = false;
};

struct DeviceCopy {
  Place to;
  Place from;
  size_t bytes = 0;
};

struct DeviceWork {
  size_t scratch_bytes = 0;
  std::vector<DeviceCopy> before;
  // Null: only copies.
  std::function<Status(Nccl&, const Nccl::Comm&, Nccl::Stream, char* scratch)> launch;
  std::vector<DeviceCopy> after;
};

// Whether NCCL does this reduction by itself.
[[nodiscard]] bool NcclReduces(const Nccl& nccl, const ReduceArguments& arguments);

// `direct`: the memory is on NCCL's device.
[[nodiscard]] DeviceWork AllReduceWork(bool direct, std::span<const ConstBuffer> in,
                                       std::span<const MutableBuffer> out,
                                       const ReduceArguments& arguments, int ranks);
[[nodiscard]] DeviceWork ReduceScatterWork(bool direct, const void* in, void* out,
                                           std::span<const size_t> counts,
                                           const ReduceArguments& arguments, int me);
[[nodiscard]] DeviceWork BroadcastWork(bool direct, void* data, size_t bytes, int root, int me);
[[nodiscard]] DeviceWork ExchangeWork(bool direct, std::span<const OutgoingBlock> outgoing,
                                      std::span<const IncomingBlock> incoming);
[[nodiscard]] DeviceWork AllGatherWork(bool direct, const void* in, void* out,
                                       std::span<const size_t> bytes_per_rank, int me);

}  // namespace troupe::groups
