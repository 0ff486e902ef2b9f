// Device: where the memory of a collective is.
#pragma once

#include <memory>

namespace troupe::groups {

inline constexpr int kHostMemory = -1;
// The other ranks' memory is on devices; this rank has, or wants, a copy in host memory.
inline constexpr int kHostCopy = -2;

struct Device {
  int index = kHostMemory;  // Of this process, as CUDA counts.
  // Comes when what was in the caller's stream at the call is done; null: now. Communicator::Mark
  // makes it.
  std::shared_ptr<void> ready;

  // Whether all ranks must treat it as an operation on devices.
  [[nodiscard]] bool used() const { return index != kHostMemory; }
  // Whether the buffers are in device memory.
  [[nodiscard]] bool here() const { return index >= 0; }
};

}  // namespace troupe::groups
