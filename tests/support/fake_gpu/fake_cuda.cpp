// The CUDA half of the fake.
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>

#include "tests/support/fake_gpu/state.h"

namespace troupe::fake_gpu {
namespace {

struct Event {
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> came{0};
  std::atomic<void*> stream{nullptr};
};

thread_local CUcontext current = nullptr;

Event& EventOf(CUevent event) { return **reinterpret_cast<std::shared_ptr<Event>*>(event); }
std::shared_ptr<Event> SharedEvent(CUevent event) {
  return *reinterpret_cast<std::shared_ptr<Event>*>(event);
}

CUresult NeedContext(const char* what) {
  if (current != nullptr) return CUDA_SUCCESS;
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  state.Break(std::string(what) + " without a context");
  return CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

bool HasContext() { return current != nullptr; }

void SetFaults(const Faults& faults) {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  state.faults = faults;
  state.counts.operations = 0;
  state.changed.notify_all();
}
Counts Count() {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  return state.counts;
}
void ClearCounts() {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  Counts& c = state.counts;
  c.shrinks_with_abort = c.held_queries = c.most_scaled_sums = 0;
  c.inits = c.shrinks = c.grows = c.revokes = c.aborts = c.operations = c.host_copies = 0;
}
std::string BrokenRule() {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  return state.broken_rule;
}
void ForgetBrokenRule() {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  state.broken_rule.clear();
}

void* Allocate(size_t bytes) {
  State& state = State::Get();
  auto* memory = new char[bytes + 1]();
  std::lock_guard lock(state.mu);
  state.memory[memory] = bytes;
  ++state.counts.allocations;
  return memory;
}
void Free(void* memory) {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  if (state.memory.erase(static_cast<char*>(memory)) == 0) return state.Break("a bad cuMemFree");
  --state.counts.allocations;
  delete[] static_cast<char*>(memory);
}

int CurrentDevice() { return static_cast<int>(reinterpret_cast<intptr_t>(current)) - 1; }

HeldStream::HeldStream() : stream_(new Stream) {
  State& state = State::Get();
  {
    std::lock_guard lock(state.mu);
    state.held.insert(stream_);
  }
  static_cast<Stream*>(stream_)->Enqueue([this, &state] {
    std::unique_lock lock(state.mu);
    state.changed.wait(lock, [this] { return open_; });
  });
}
HeldStream::~HeldStream() {
  Open();
  delete static_cast<Stream*>(stream_);
}
void HeldStream::Open() {
  State& state = State::Get();
  std::lock_guard lock(state.mu);
  open_ = true;
  state.held.erase(stream_);
  state.changed.notify_all();
}

std::string LibraryPath() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&SetFaults), &info) == 0) return "";
  return info.dli_fname;
}

}  // namespace troupe::fake_gpu

using troupe::fake_gpu::Stream;
using troupe::fake_gpu::StreamOf;
using FakeState = troupe::fake_gpu::State;
namespace fake = troupe::fake_gpu;

extern "C" {
#pragma GCC visibility push(default)

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "a fake error";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = fake::kDevices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= fake::kDevices) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  std::memset(uuid->bytes, state.faults.same_device ? 1 : device + 1, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(device + 1));
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
  fake::current = context;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = fake::current;
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult bad = fake::NeedContext("cuStreamCreate"); bad != CUDA_SUCCESS) return bad;
  *stream = reinterpret_cast<CUstream>(new Stream);
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  ++state.counts.streams;
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
  delete reinterpret_cast<Stream*>(stream);
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  --state.counts.streams;
  return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult bad = fake::NeedContext("cuEventCreate"); bad != CUDA_SUCCESS) return bad;
  *event =
      reinterpret_cast<CUevent>(new std::shared_ptr<fake::Event>(std::make_shared<fake::Event>()));
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  ++state.counts.events;
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  delete reinterpret_cast<std::shared_ptr<fake::Event>*>(event);
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  --state.counts.events;
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const std::shared_ptr<fake::Event> shared = fake::SharedEvent(event);
  const uint64_t number = ++shared->recorded;
  shared->stream = stream;
  StreamOf(stream)->Enqueue([shared, number] { shared->came.store(number); });
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
  const fake::Event& e = fake::EventOf(event);
  if (e.came.load() == e.recorded.load()) return CUDA_SUCCESS;
  FakeState& state = FakeState::Get();
  std::lock_guard lock(state.mu);
  if (state.held.contains(e.stream.load())) ++state.counts.held_queries;
  return CUDA_ERROR_NOT_READY;
}
CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  if (const CUresult bad = fake::NeedContext("cuMemAlloc"); bad != CUDA_SUCCESS) return bad;
  *memory = reinterpret_cast<CUdeviceptr>(fake::Allocate(bytes));
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr memory) {
  fake::Free(reinterpret_cast<void*>(memory));
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (const CUresult bad = fake::NeedContext("cuMemcpyAsync"); bad != CUDA_SUCCESS) return bad;
  FakeState& state = FakeState::Get();
  {
    std::lock_guard lock(state.mu);
    const bool here = state.IsDevice(reinterpret_cast<void*>(to), bytes);
    const bool there = state.IsDevice(reinterpret_cast<void*>(from), bytes);
    if (!here && !there) state.Break("a copy between host memory and host memory");
    if (here != there) ++state.counts.host_copies;
  }
  StreamOf(stream)->Enqueue(
      [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return CUDA_SUCCESS;
}

#pragma GCC visibility pop
}
