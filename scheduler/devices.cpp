#include "scheduler/devices.h"

#include <algorithm>

namespace troupe {
namespace {

int64_t GpuUnits(const ResourceSet& resources) {
  const auto found = resources.units().find("GPU");
  return found == resources.units().end() ? 0 : found->second;
}

}  // namespace

std::vector<uint32_t> IndicesOf(const std::vector<DeviceShare>& devices) {
  std::vector<uint32_t> indices;
  indices.reserve(devices.size());
  for (const DeviceShare& device : devices) indices.push_back(device.index);
  return indices;
}

std::string VisibleDevices(const std::vector<uint32_t>& indices, std::string_view own) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin < own.size();) {
    const size_t end = std::min(own.find(',', begin), own.size());
    names.emplace_back(own.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string text;
  for (const uint32_t index : indices) {
    text += text.empty() ? "" : ",";
    text += index < names.size() ? names[index] : std::to_string(index);
  }
  return text;
}

Status CheckGpuAmount(const ResourceSet& resources) {
  const int64_t units = GpuUnits(resources);
  if (units <= kResourceUnitsPerOne || units % kResourceUnitsPerOne == 0) return Status::Ok();
  return Error{ErrorCode::kInvalidArgument,
               "GPU " + ShowAmount("GPU", resources.Get("GPU")) +
                   ": more than one GPU must be a whole number, less than one is a share of one"};
}

Status CheckNodeGpus(const ResourceSet& total) {
  const int64_t units = GpuUnits(total);
  if (units % kResourceUnitsPerOne == 0 &&
      units / kResourceUnitsPerOne <= static_cast<int64_t>(kDevicesMax)) {
    return Status::Ok();
  }
  return Error{ErrorCode::kInvalidArgument, "GPU " + ShowAmount("GPU", total.Get("GPU")) +
                                                ": a node has whole devices, at most " +
                                                std::to_string(kDevicesMax)};
}

std::vector<DeviceShare> DevicesOf(uint64_t mask, int64_t gpu_units) {
  std::vector<DeviceShare> devices;
  const double share =
      static_cast<double>(std::min(gpu_units, kResourceUnitsPerOne)) / kResourceUnitsPerOne;
  for (uint32_t i = 0; i < kDevicesMax; ++i) {
    if ((mask >> i) & 1) devices.push_back(DeviceShare{i, share});
  }
  return devices;
}

}  // namespace troupe
