// A group on fake GPUs: each rank, a thread of the test, has a device of its own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "collective_groups/gpu/device_communicator.h"
#include "tests/integration/collective_groups/communicator_world.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace troupe::groups {

// Memory of a fake device, which a test may look into.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values)
      : count_(values.size()), data_(static_cast<T*>(fake_gpu::Allocate(bytes()))) {
    std::copy(values.begin(), values.end(), data_);
  }
  explicit OnDevice(size_t count, T value = {}) : OnDevice(std::vector<T>(count, value)) {}
  ~OnDevice() { fake_gpu::Free(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] size_t bytes() const { return count_ * sizeof(T); }
  [[nodiscard]] std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  const size_t count_;
  T* const data_;
};

// Waits for what another thread brings about; false if it does not within a test's patience.
inline bool Eventually(const std::function<bool()>& condition) {
  const SteadyClock clock;
  const Time end = clock.Now() + seconds(20);
  while (!condition()) {
    if (clock.Now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Limits are those of a test: far above what anything takes, far below its own time-out.
inline DeviceOptions TestOptions() {
  DeviceOptions options;
  options.form_limit = seconds(20);
  options.abort_limit = seconds(10);
  return options;
}

class DeviceWorld : public World {
 public:
  explicit DeviceWorld(size_t size, const DeviceOptions& options = TestOptions(),
                       Kind kind = Kind::kLocal)
      : World(kind, size, [options](std::unique_ptr<Communicator> host) {
          return MakeDeviceCommunicator(std::move(host), options);
        }) {}

  [[nodiscard]] Device DeviceOf(size_t rank) {
    return (*this)[rank].Mark(static_cast<int>(slot(rank)) % fake_gpu::kDevices, nullptr).value();
  }
  [[nodiscard]] Operation On(size_t rank, const std::string& text = "") {
    const uint64_t signature = text.empty() ? 0 : std::hash<std::string>()(text) | 1;
    return {0, signature, text, DeviceOf(rank)};
  }
  Status Sum(size_t rank, const OnDevice<float>& in, const OnDevice<float>& out,
             const std::string& text = "") {
    const ConstBuffer source{in.data(), in.bytes()};
    const MutableBuffer target{out.data(), out.bytes()};
    ReduceArguments arguments;
    arguments.count = in.size();
    return (*this)[rank].AllReduce(On(rank, text), {&source, 1}, {&target, 1}, arguments);
  }
  // Distinct powers of two: the sum is exact, and shows who took part.
  void ExpectSums(size_t count = 1000) {
    OnAll([&](int rank, Communicator&) {
      const OnDevice<float> in(count, static_cast<float>(1 << rank));
      const OnDevice<float> out(count, -1.0F);
      const Status status = Sum(static_cast<size_t>(rank), in, out);
      ASSERT_TRUE(status.ok()) << status.error().message;
      EXPECT_EQ(out.values(), std::vector<float>(count, static_cast<float>((1 << size()) - 1)));
      EXPECT_EQ(in.values(), std::vector<float>(count, static_cast<float>(1 << rank)));
    });
  }
};

// Loads the fake instead of the real libraries, and looks at the end whether the rules of both were
// kept and nothing is left.
class FakeGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = fake_gpu::LibraryPath();
    setenv("TROUPE_CUDA_LIBRARY", path.c_str(), 1);
    setenv("TROUPE_NCCL_LIBRARY", path.c_str(), 1);
    fake_gpu::SetFaults({});
    fake_gpu::ClearCounts();
    fake_gpu::ForgetBrokenRule();
  }
  void TearDown() override {
    EXPECT_EQ(fake_gpu::BrokenRule(), "");
    const fake_gpu::Counts counts = fake_gpu::Count();
    EXPECT_EQ(counts.communicators, 0);
    EXPECT_EQ(counts.streams, 0);
    EXPECT_EQ(counts.events, 0);
    EXPECT_EQ(counts.allocations, 0);
    fake_gpu::SetFaults({});
    unsetenv("TROUPE_CUDA_LIBRARY");
    unsetenv("TROUPE_NCCL_LIBRARY");
  }
  static int NcclOperations() { return fake_gpu::Count().operations; }
};

}  // namespace troupe::groups
