// CudaDriver: what collectives need of the CUDA driver, which is found and loaded at run time.
//
// libcuda.so.1 (TROUPE_CUDA_LIBRARY names another) comes with the GPU's driver; where there is none
// there is no CudaDriver. Addresses may be of host or device memory wherever a copy is meant.
// Thread: any; everything but `devices`, `Uuid` and `Mark` works in the context of the device that
// the calling thread has chosen by Use (or another library has made current).
// Owns: a reference to the primary context of each device that was used, until it is destroyed.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "runtime/result.h"

namespace troupe::groups {

using DeviceUuid = std::array<unsigned char, 16>;

class CudaDriver {
 public:
  using Stream = void*;
  using Event = void*;

  virtual ~CudaDriver() = default;

  [[nodiscard]] virtual int devices() const = 0;
  // Of the GPU, or of the slice of one that is this device.
  virtual Result<DeviceUuid> Uuid(int device) = 0;
  virtual Status Use(int device) = 0;

  virtual Result<Stream> NewStream() = 0;
  virtual void FreeStream(Stream stream) = 0;
  virtual Result<Event> NewEvent() = 0;
  virtual void FreeEvent(Event event) = 0;
  // The event comes when all that is in the stream now is done.
  virtual Status Record(Event event, Stream stream) = 0;
  // A new event, recorded in a stream of `device`; the thread's own choice of a device stays.
  virtual Result<Event> Mark(int device, Stream stream) = 0;
  // An error is one of the work before the event too.
  virtual Result<bool> Came(Event event) = 0;

  virtual Result<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Starts a copy between any two kinds of memory.
  virtual Status Copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
};

// kUnavailable, with the reason, where there is no driver or no GPU.
[[nodiscard]] Result<std::shared_ptr<CudaDriver>> LoadCudaDriver();

}  // namespace troupe::groups
