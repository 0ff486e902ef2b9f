// GPU devices of a grant, and how a process is told of them.
//
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"
#include "scheduler/resources.h"

namespace troupe {

inline constexpr size_t kDevicesMax = 64;  // Of one node.
inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

struct DeviceShare {
  uint32_t index = 0;  // As the node counts its devices, from 0.
  double share = 1;    // Of the device; 1: all of it.
  friend bool operator==(const DeviceShare&, const DeviceShare&) = default;
};

[[nodiscard]] std::vector<uint32_t> IndicesOf(const std::vector<DeviceShare>& devices);

// The value of CUDA_VISIBLE_DEVICES for these, "0,3"; empty, which hides every device, for none.
// `own`: its value in the process that counts them, which may have been given "4,5" or names.
[[nodiscard]] std::string VisibleDevices(const std::vector<uint32_t>& indices,
                                         std::string_view own = {});

// A request has 0 GPU, a share of one device, or whole ones: 1.5 is refused.
[[nodiscard]] Status CheckGpuAmount(const ResourceSet& resources);
// What a node has must be whole devices, at most kDevicesMax.
[[nodiscard]] Status CheckNodeGpus(const ResourceSet& total);

// Bits of a device mask as shares of `gpu_units` (in 1/10000) over all of them.
[[nodiscard]] std::vector<DeviceShare> DevicesOf(uint64_t mask, int64_t gpu_units);

}  // namespace troupe
