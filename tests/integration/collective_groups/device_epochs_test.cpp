// From epoch to epoch over a fake NCCL: what a team keeps of its communicator, aborts in the middle
// of an operation and of forming, and everything that can go wrong in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>

#include "collective_groups/gpu/internal/nccl_plan.h"
#include "tests/integration/collective_groups/device_world.h"
#include "tests/integration/runtime/resources.h"

namespace troupe::groups {
namespace {

using fake_gpu::Count;
using fake_gpu::Faults;
using ::testing::HasSubstr;

// For a busy machine; a fraction of any limit in TestOptions.
constexpr Duration kAbortLimit = seconds(5);

class DeviceEpochsTest : public FakeGpuTest {
 protected:
  // A sum in which `missing` take no part, until the epoch is aborted; each of the others fails.
  static void InterruptedSum(DeviceWorld& world, const std::vector<int>& missing) {
    const auto takes_part = [&](int rank) {
      return std::find(missing.begin(), missing.end(), rank) == missing.end();
    };
    const int before = NcclOperations();
    const int waiting = static_cast<int>(world.size() - missing.size());
    std::thread aborter([&] {
      EXPECT_TRUE(Eventually([&] { return NcclOperations() - before >= waiting; }));
      world.Abort();
    });
    const SteadyClock clock;
    world.OnAll([&](int rank, Communicator&) {
      if (!takes_part(rank)) return;
      const OnDevice<float> in(100, 1.0F);
      const OnDevice<float> out(100, -1.0F);
      const Time begin = clock.Now();
      const Status s = world.Sum(static_cast<size_t>(rank), in, out);
      ASSERT_FALSE(s.ok());
      EXPECT_EQ(s.error().code, ErrorCode::kEpochChanged) << s.error().message;
      EXPECT_LT(clock.Now() - begin, kAbortLimit);
      EXPECT_EQ(in.values(), std::vector<float>(100, 1.0F));
    });
    aborter.join();
  }
  // All but one begin a sum, and somebody aborts at some time.
  static void AbortedSomewhere(DeviceWorld& world, std::mt19937& random) {
    const int missing = static_cast<int>(random() % world.size());
    const auto pause = microseconds(random() % 2000);
    std::thread aborter([&] {
      const SteadyClock clock;
      const Time end = clock.Now() + pause;
      while (clock.Now() < end) std::this_thread::yield();
      world.Abort();
    });
    world.OnAll([&](int rank, Communicator&) {
      if (rank == missing) return;
      const OnDevice<float> in(100, 1.0F);
      const OnDevice<float> out(100, -1.0F);
      const Status s = world.Sum(static_cast<size_t>(rank), in, out);
      ASSERT_FALSE(s.ok());
      EXPECT_EQ(s.error().code, ErrorCode::kEpochChanged) << s.error().message;
    });
    aborter.join();
  }
  static void Next(DeviceWorld& world) {
    world.Relink();
    world.Begin();
  }
};

TEST_F(DeviceEpochsTest, TheCommunicatorIsKeptShrunkAndGrown) {
  DeviceWorld world(3);
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3);
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3) << "nothing has changed";
  world.Lose(1);
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3);
  EXPECT_EQ(Count().shrinks, 2);
  world.Join();
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3);
  EXPECT_EQ(Count().grows, 3);
  world.Lose(1);
  world.Join();
  world.Join();
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().shrinks, 2 + 2);
  EXPECT_EQ(Count().shrinks_with_abort, 0);
  EXPECT_EQ(Count().grows, 3 + 4);
  EXPECT_EQ(Count().inits, 3);
  EXPECT_EQ(Count().host_copies, 0);
}

TEST_F(DeviceEpochsTest, OlderLibrariesBeginAnew) {
  for (const int version : {22702, 22900}) {
    fake_gpu::ClearCounts();
    Faults faults;
    faults.version = version;
    fake_gpu::SetFaults(faults);
    DeviceWorld world(3);
    world.ExpectSums();
    world.Lose(2);
    world.Begin();
    world.ExpectSums();
    EXPECT_EQ(Count().shrinks, version < 22703 ? 0 : 2);
    world.Join();
    world.Begin();
    world.ExpectSums();
    EXPECT_EQ(Count().grows, 0);
    EXPECT_EQ(Count().host_copies, 0);
  }
}

TEST_F(DeviceEpochsTest, WhatCannotBeShrunkOrGrownBeginsAnew) {
  Faults faults;
  faults.shrink_fails = faults.grow_fails = true;
  DeviceWorld world(3);
  world.ExpectSums();
  fake_gpu::SetFaults(faults);
  world.Lose(0);
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().shrinks, 2);
  EXPECT_EQ(Count().inits, 3 + 2);
  world.Join();
  world.Begin();
  world.ExpectSums();
  EXPECT_EQ(Count().grows, 3);
  EXPECT_EQ(Count().inits, 3 + 2 + 3);
  EXPECT_EQ(Count().host_copies, 0);
}

TEST_F(DeviceEpochsTest, AnAbortedOperationEndsAndTheSurvivorsShrink) {
  DeviceWorld world(3);
  world.ExpectSums();
  InterruptedSum(world, {1});
  EXPECT_EQ(Count().revokes, 2);
  world.Lose(1);
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().shrinks_with_abort, 2);
  EXPECT_EQ(Count().inits, 3);
}

TEST_F(DeviceEpochsTest, AnAbortedOperationWithoutALossBeginsAnew) {
  DeviceWorld world(3);
  world.ExpectSums();
  InterruptedSum(world, {2});
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3 + 3);
  EXPECT_EQ(Count().shrinks, 0);
}

TEST_F(DeviceEpochsTest, WithoutRevokeAnAbortedOperationEndsWithItsCommunicator) {
  Faults faults;
  faults.version = 22703;
  fake_gpu::SetFaults(faults);
  DeviceWorld world(3);
  world.ExpectSums();
  InterruptedSum(world, {0});
  EXPECT_EQ(Count().aborts, 2);
  world.Lose(0);
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3 + 2);
}

TEST_F(DeviceEpochsTest, AnAbortWhileTheInputIsNotReadyLeavesTheCommunicatorWhole) {
  DeviceWorld world(2);
  world.ExpectSums();
  fake_gpu::HeldStream held;
  const OnDevice<float> data(1, 2.0F);
  const ConstBuffer in{data.data(), data.bytes()};
  const MutableBuffer out{data.data(), data.bytes()};
  ReduceArguments arguments;
  arguments.count = 1;
  const Device device = world[0].Mark(0, held.stream()).value();
  std::thread waiting([&] {
    const Status s = world[0].AllReduce({0, 0, "", device}, {&in, 1}, {&out, 1}, arguments);
    EXPECT_EQ(s.error().code, ErrorCode::kEpochChanged);
  });
  EXPECT_TRUE(Eventually([] { return Count().held_queries > 0; }));
  world.Abort();
  waiting.join();
  held.Open();
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 2);
  EXPECT_EQ(data.values()[0], 2.0F);
}

TEST_F(DeviceEpochsTest, AnAbortReleasesWhoeverFormsACommunicator) {
  Faults faults;
  faults.init_never_ends = true;
  fake_gpu::SetFaults(faults);
  DeviceWorld world(3);
  std::thread aborter([&] {
    EXPECT_TRUE(Eventually([] { return Count().inits >= 3; }));
    world.Abort();
  });
  const SteadyClock clock;
  const Time begin = clock.Now();
  world.OnAll([&](int rank, Communicator&) {
    const OnDevice<float> data(10, 1.0F);
    const Status s = world.Sum(static_cast<size_t>(rank), data, data);
    EXPECT_EQ(s.error().code, ErrorCode::kEpochChanged) << s.error().message;
  });
  aborter.join();
  EXPECT_LT(clock.Now() - begin, kAbortLimit);
  EXPECT_EQ(Count().communicators, 0);
  fake_gpu::SetFaults({});
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().host_copies, 0);
}

TEST_F(DeviceEpochsTest, AFormingThatDoesNotEndInTimeGoesThroughHostMemoryAndGivesUpInTheEnd) {
  Faults faults;
  faults.init_never_ends = true;
  fake_gpu::SetFaults(faults);
  DeviceOptions options = TestOptions();
  options.form_limit = milliseconds(50);
  DeviceWorld world(2, options);
  for (uint32_t failure = 1; failure <= kNcclFailuresMax; ++failure) {
    world.ExpectSums();
    EXPECT_EQ(Count().inits, static_cast<int>(2 * failure));
    EXPECT_EQ(NcclOperations(), 0);
    world.Begin();
  }
  fake_gpu::SetFaults({});
  world.ExpectSums();
  EXPECT_EQ(Count().inits, static_cast<int>(2 * kNcclFailuresMax)) << "it has given up";
}

TEST_F(DeviceEpochsTest, ARankThatFailsToFormTakesTheOthersAlong) {
  Faults faults;
  faults.init_fails_on = 1;
  fake_gpu::SetFaults(faults);
  DeviceOptions options = TestOptions();
  options.form_limit = milliseconds(100);
  DeviceWorld world(3, options);
  world.ExpectSums();
  EXPECT_EQ(NcclOperations(), 0);
  fake_gpu::SetFaults({});
  world.Begin();
  world.ExpectSums();
  EXPECT_GT(NcclOperations(), 0);
}

TEST_F(DeviceEpochsTest, ABrokenOperationIsToldAndTheNextEpochBeginsAnew) {
  DeviceWorld world(3);
  world.ExpectSums();
  Faults faults;
  faults.break_operation = 3;  // After the first, tiny one, and two sums.
  faults.break_on = 1;
  fake_gpu::SetFaults(faults);
  world.ExpectSums();
  std::atomic<int> gone{0};
  world.OnAll([&](int rank, Communicator& communicator) {
    const OnDevice<float> data(10, 1.0F);
    const Status s = world.Sum(static_cast<size_t>(rank), data, data);
    ASSERT_FALSE(s.ok());
    if (s.error().code == ErrorCode::kPeerGone) {
      ++gone;
      EXPECT_EQ(rank, 1) << s.error().message;
      EXPECT_THAT(s.error().message, HasSubstr("NCCL"));
      world.Abort();  // As the group does when a member reports it.
    } else {
      EXPECT_EQ(s.error().code, ErrorCode::kEpochChanged) << s.error().message;
    }
  });
  EXPECT_EQ(gone, 1);
  fake_gpu::SetFaults({});
  Next(world);
  world.ExpectSums();
  EXPECT_EQ(Count().inits, 3 + 3);
  EXPECT_EQ(Count().host_copies, 0);
}

TEST_F(DeviceEpochsTest, ABrokenFirstOperationFallsBackOnAllRanks) {
  Faults faults;
  faults.break_operation = 0;
  faults.break_on = 0;
  fake_gpu::SetFaults(faults);
  DeviceOptions options = TestOptions();
  options.form_limit = milliseconds(100);
  DeviceWorld world(2, options);
  world.ExpectSums();
  EXPECT_GT(Count().host_copies, 0);
}

TEST_F(DeviceEpochsTest, AnNcclThatDoesNotStopIsLeftBehind) {
  for (const bool comes_back_in_time : {false, true}) {
    fake_gpu::ClearCounts();
    Faults faults;
    faults.version = 22703;  // Operations end by an abort.
    fake_gpu::SetFaults(faults);
    DeviceOptions options = TestOptions();
    options.abort_limit = milliseconds(100);
    {
      DeviceWorld world(2, options);
      world.ExpectSums();
      faults.stuck_abort = true;
      fake_gpu::SetFaults(faults);
      InterruptedSum(world, {1});
      Next(world);
      world.ExpectSums();
      EXPECT_GT(Count().host_copies, 0) << "rank 0 has no lane for NCCL any more";
      if (comes_back_in_time) {
        fake_gpu::SetFaults({});
        EXPECT_TRUE(Eventually([] { return Count().aborts >= 2; }));
      }
    }
    fake_gpu::SetFaults({});
    // What was left behind is freed once the library has come back.
    const auto left = [] { return Count().communicators + Count().streams + Count().allocations; };
    EXPECT_TRUE(Eventually([&] { return left() == 0; }))
        << left() << ", comes back in time: " << comes_back_in_time;
  }
}

TEST_F(DeviceEpochsTest, NothingIsLeftOfManyEpochs) {
  DeviceWorld world(2);
  world.ExpectSums(10);
  const size_t descriptors = tests::OpenDescriptors();
  const size_t threads = tests::Threads();
  for (int i = 0; i < 30; ++i) {
    InterruptedSum(world, {i % 2});
    Next(world);
    world.ExpectSums(10);
    EXPECT_EQ(Count().communicators, 2);
    EXPECT_EQ(Count().events, 2);
  }
  EXPECT_EQ(tests::OpenDescriptors(), descriptors);
  EXPECT_EQ(tests::Threads(), threads);
}

TEST_F(DeviceEpochsTest, AnyOrderOfLossesJoinersAndAbortsKeepsSumsExact) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](int n) {
      return std::uniform_int_distribution<int>(0, n - 1)(random) == 0;
    };
    Faults faults;
    faults.version = std::array{23102, 22900, 22703, 21400}[seed % 4];
    fake_gpu::SetFaults(faults);
    DeviceWorld world(3);
    for (int epoch = 0; epoch < 15; ++epoch) {
      if (!one_of(5)) world.ExpectSums(20);
      const bool interrupted = world.size() > 1 && one_of(2);
      // An epoch may end in the middle of its first operation too.
      if (interrupted) AbortedSomewhere(world, random);
      if (world.size() > 1 && one_of(2)) world.Lose(random() % world.size());
      world.Relink();
      while (world.size() < 2 || (world.size() < 5 && one_of(3))) world.Join();
      world.Begin();
    }
    world.ExpectSums(20);
    if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_EQ(Count().host_copies, 0);
}

}  // namespace
}  // namespace troupe::groups
