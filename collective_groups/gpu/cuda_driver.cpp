#include "collective_groups/gpu/cuda_driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace troupe::groups {
namespace {

// As is: a formatter makes a staircase of lists like this.
// clang-format off
#define TROUPE_CUDA_FUNCTIONS(X) \
  X(cuInit) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) \
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) \
  X(cuCtxGetCurrent) X(cuStreamCreate) X(cuStreamDestroy) X(cuEventCreate) X(cuEventDestroy) \
  X(cuEventRecord) X(cuEventQuery) X(cuMemAlloc) X(cuMemFree) X(cuMemcpyAsync)
// clang-format on

struct CudaFunctions {
#define TROUPE_DECLARE(name) decltype(&::name) name = nullptr; /* NOLINT(bugprone-macro-*) */
  TROUPE_CUDA_FUNCTIONS(TROUPE_DECLARE)
#undef TROUPE_DECLARE
};

// cuda.h gives many functions a newer name by a macro, which is the name to look up.
#define TROUPE_TEXT(name) #name
#define TROUPE_SYMBOL(name) TROUPE_TEXT(name)

std::string ResolveCuda(void* library, CudaFunctions& f) {
  std::string missing;
#define TROUPE_REQUIRE(name)                                                        \
  f.name = reinterpret_cast<decltype(f.name)>(dlsym(library, TROUPE_SYMBOL(name))); \
  if (f.name == nullptr) missing = TROUPE_SYMBOL(name);
  TROUPE_CUDA_FUNCTIONS(TROUPE_REQUIRE)
#undef TROUPE_REQUIRE
  return missing;
}

class LoadedDriver final : public CudaDriver {
 public:
  LoadedDriver(const CudaFunctions& functions, int devices) : f_(functions), devices_(devices) {}
  ~LoadedDriver() override {
    for (const auto& [device, context] : contexts_) (void)f_.cuDevicePrimaryCtxRelease(device);
  }
  LoadedDriver(const LoadedDriver&) = delete;
  LoadedDriver& operator=(const LoadedDriver&) = delete;

  int devices() const override { return devices_; }

  Result<DeviceUuid> Uuid(int device) override {
    CUdevice handle = 0;
    CUuuid uuid;
    if (Status s = Check("cuDeviceGet", f_.cuDeviceGet(&handle, device)); !s.ok()) return s.error();
    if (Status s = Check("cuDeviceGetUuid", f_.cuDeviceGetUuid(&uuid, handle)); !s.ok()) {
      return s.error();
    }
    DeviceUuid bytes;
    static_assert(sizeof bytes == sizeof uuid.bytes);
    std::memcpy(bytes.data(), uuid.bytes, sizeof uuid.bytes);
    return bytes;
  }

  Status Use(int device) override {
    std::lock_guard lock(mu_);
    CUdevice handle = 0;
    if (Status s = Check("cuDeviceGet", f_.cuDeviceGet(&handle, device)); !s.ok()) return s;
    if (!contexts_.contains(handle)) {
      CUcontext context = nullptr;
      Status s = Check("cuDevicePrimaryCtxRetain", f_.cuDevicePrimaryCtxRetain(&context, handle));
      if (!s.ok()) return s;
      contexts_[handle] = context;
    }
    return Check("cuCtxSetCurrent", f_.cuCtxSetCurrent(contexts_[handle]));
  }

  Result<Stream> NewStream() override {
    CUstream stream = nullptr;
    Status s = Check("cuStreamCreate", f_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (!s.ok()) return s.error();
    return Stream{stream};
  }
  void FreeStream(Stream stream) override { (void)f_.cuStreamDestroy(Cuda(stream)); }
  Result<Event> NewEvent() override {
    CUevent event = nullptr;
    Status s = Check("cuEventCreate", f_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    if (!s.ok()) return s.error();
    return Event{event};
  }
  void FreeEvent(Event event) override { (void)f_.cuEventDestroy(static_cast<CUevent>(event)); }
  Status Record(Event event, Stream stream) override {
    return Check("cuEventRecord", f_.cuEventRecord(static_cast<CUevent>(event), Cuda(stream)));
  }
  Result<Event> Mark(int device, Stream stream) override {
    CUcontext before = nullptr;
    (void)f_.cuCtxGetCurrent(&before);
    Status s = Use(device);
    Result<Event> event = s.ok() ? NewEvent() : Result<Event>(s.error());
    if (event.ok()) s = Record(*event, stream);
    (void)f_.cuCtxSetCurrent(before);
    if (s.ok()) return event;
    if (event.ok()) FreeEvent(*event);
    return s.error();
  }
  Result<bool> Came(Event event) override {
    const CUresult result = f_.cuEventQuery(static_cast<CUevent>(event));
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (Status s = Check("the work before an event", result); !s.ok()) return s.error();
    return true;
  }

  Result<void*> Allocate(size_t bytes) override {
    CUdeviceptr memory = 0;
    if (Status s = Check("cuMemAlloc", f_.cuMemAlloc(&memory, bytes)); !s.ok()) return s.error();
    return reinterpret_cast<void*>(memory);
  }
  void Free(void* memory) override { (void)f_.cuMemFree(reinterpret_cast<CUdeviceptr>(memory)); }
  Status Copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return Check("cuMemcpyAsync",
                 f_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                  reinterpret_cast<CUdeviceptr>(from), bytes, Cuda(stream)));
  }

 private:
  static CUstream Cuda(Stream stream) { return static_cast<CUstream>(stream); }
  [[nodiscard]] Status Check(const char* what, CUresult result) const {
    if (result == CUDA_SUCCESS) return Status::Ok();
    const char* text = nullptr;
    (void)f_.cuGetErrorString(result, &text);
    const std::string reason = text != nullptr ? text : "error " + std::to_string(result);
    const bool memory = result == CUDA_ERROR_OUT_OF_MEMORY;
    return Error{memory ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable,
                 std::string("CUDA: ") + what + ": " + reason};
  }

  const CudaFunctions f_;
  const int devices_;
  std::mutex mu_;
  std::map<CUdevice, CUcontext> contexts_;  // Guarded by mu_.
};

}  // namespace

Result<std::shared_ptr<CudaDriver>> LoadCudaDriver() {
  const char* named = std::getenv("TROUPE_CUDA_LIBRARY");
  const char* name = named != nullptr && *named != '\0' ? named : "libcuda.so.1";
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);  // Never closed: it keeps threads.
  if (library == nullptr) {
    return Error{ErrorCode::kUnavailable, std::string("there is no CUDA driver: ") + dlerror()};
  }
  CudaFunctions functions;
  if (const std::string missing = ResolveCuda(library, functions); !missing.empty()) {
    return Error{ErrorCode::kUnavailable,
                 std::string("the CUDA driver ") + name + " is too old: it has no " + missing};
  }
  int devices = 0;
  const CUresult result = functions.cuInit(0);
  if (result == CUDA_SUCCESS) (void)functions.cuDeviceGetCount(&devices);
  if (devices == 0) {
    const char* text = nullptr;
    if (result != CUDA_SUCCESS) (void)functions.cuGetErrorString(result, &text);
    return Error{ErrorCode::kUnavailable, std::string("the CUDA driver finds no GPU") +
                                              (text ? std::string(": ") + text : "")};
  }
  return std::shared_ptr<CudaDriver>(std::make_shared<LoadedDriver>(functions, devices));
}

}  // namespace troupe::groups
