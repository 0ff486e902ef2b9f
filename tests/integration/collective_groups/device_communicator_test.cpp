// Collectives of device memory over a fake NCCL: exact results of every operation, the way through
// host memory, and how a team comes by its communicator from epoch to epoch.
#include "collective_groups/gpu/device_communicator.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "collective_groups/collectives/collectives.h"
#include "collective_groups/collectives/internal/recipe.h"
#include "tests/integration/collective_groups/device_world.h"

namespace troupe::groups {
namespace {

using ::testing::HasSubstr;

class DeviceCommunicatorTest : public FakeGpuTest {};

template <class T>
void ExpectReductions(DeviceWorld& world, DataType type) {
  const int n = static_cast<int>(world.size());
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 1);
  const int product = std::accumulate(ranks.begin(), ranks.end(), 1, std::multiplies<>());
  const std::map<ReduceOp, int> expected = {{ReduceOp::kSum, n * (n + 1) / 2},
                                            {ReduceOp::kMin, 1},
                                            {ReduceOp::kMax, n},
                                            {ReduceOp::kProduct, product}};
  for (const auto& [op, result] : expected) {
    for (const size_t count : {size_t{1}, size_t{5'001}}) {
      world.OnAll([&, op = op, result = result](int rank, Communicator& communicator) {
        const OnDevice<T> data(count, static_cast<T>(rank + 1));
        const ConstBuffer in{data.data(), data.bytes()};
        const MutableBuffer out{data.data(), data.bytes()};
        ReduceArguments arguments;
        arguments.elements = {type, op};
        arguments.count = count;
        const Status s = communicator.AllReduce(world.On(static_cast<size_t>(rank)), {&in, 1},
                                                {&out, 1}, arguments);
        ASSERT_TRUE(s.ok()) << s.error().message;
        EXPECT_EQ(data.values(), std::vector<T>(count, static_cast<T>(result)))
            << DataTypeName(type) << " op " << static_cast<int>(op);
      });
    }
  }
}

TEST_F(DeviceCommunicatorTest, AllReduceIsExactForEveryTypeAndOperation) {
  for (size_t size = 1; size <= 4; ++size) {
    DeviceWorld world(size);
    ExpectReductions<uint8_t>(world, DataType::kUint8);
    ExpectReductions<int8_t>(world, DataType::kInt8);
    ExpectReductions<int32_t>(world, DataType::kInt32);
    ExpectReductions<int64_t>(world, DataType::kInt64);
    ExpectReductions<float>(world, DataType::kFloat32);
    ExpectReductions<double>(world, DataType::kFloat64);
    EXPECT_EQ(fake_gpu::Count().host_copies, 0);
    const int before = NcclOperations();
    ExpectReductions<int16_t>(world, DataType::kInt16);
    EXPECT_EQ(NcclOperations(), before) << "NCCL has no int16; it goes through host memory";
    EXPECT_GT(fake_gpu::Count().host_copies, 0);
    fake_gpu::ClearCounts();
  }
}

// The bits of small whole numbers in the 16-bit floating types.
uint16_t Half(int value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return value == 0 ? 0 : static_cast<uint16_t>((bits >> 13) - ((127U - 15U) << 10));
}
uint16_t Brain(int value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

TEST_F(DeviceCommunicatorTest, SixteenBitAndScaledSumsAreExact) {
  DeviceWorld world(3);
  world.OnAll([&](int r, Communicator& communicator) {
    const auto rank = static_cast<size_t>(r);
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
      const auto bits = type == DataType::kFloat16 ? Half : Brain;
      const OnDevice<uint16_t> in(100, bits(2 << r));
      const OnDevice<uint16_t> out(100);
      const ConstBuffer source{in.data(), in.bytes()};
      const MutableBuffer target{out.data(), out.bytes()};
      ReduceArguments arguments;
      arguments.elements.type = type;
      arguments.count = 100;
      arguments.prescale = 0.5;
      arguments.postscale = 4.0;
      ASSERT_TRUE(
          communicator.AllReduce(world.On(rank), {&source, 1}, {&target, 1}, arguments).ok());
      EXPECT_EQ(out.values(), std::vector<uint16_t>(100, bits((2 + 4 + 8) * 2)));
    }
    const OnDevice<float> in(10, static_cast<float>(3 * r));
    const OnDevice<float> out(10);
    const ConstBuffer source{in.data(), in.bytes()};
    const MutableBuffer target{out.data(), out.bytes()};
    ReduceArguments arguments;
    arguments.count = 10;
    arguments.average = true;
    ASSERT_TRUE(communicator.AllReduce(world.On(rank), {&source, 1}, {&target, 1}, arguments).ok());
    for (const float value : out.values()) EXPECT_NEAR(value, 3.0F, 1e-6);
  });
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, EachRankMayHaveAWeightOfItsOwn) {
  DeviceWorld world(3);
  world.OnAll([&](int rank, Communicator& communicator) {
    const OnDevice<float> data(10, 1.0F);
    const ConstBuffer in{data.data(), data.bytes()};
    const MutableBuffer out{data.data(), data.bytes()};
    ReduceArguments arguments;
    arguments.count = 10;
    arguments.prescale = rank + 1;  // 1 on one of them.
    arguments.weighted = true;
    const Operation operation = world.On(static_cast<size_t>(rank));
    ASSERT_TRUE(communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments).ok());
    EXPECT_EQ(data.values(), std::vector<float>(10, 6.0F));
    // NCCL cannot scale for a maximum, so that none of them uses it.
    arguments.elements.op = ReduceOp::kMax;
    ASSERT_TRUE(communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments).ok());
    EXPECT_EQ(data.values(), std::vector<float>(10, 18.0F));
  });
}

TEST_F(DeviceCommunicatorTest, ManyScalesDoNotUseUpTheLibrary) {
  DeviceWorld world(2);
  world.OnAll([&](int rank, Communicator& communicator) {
    for (int i = 1; i <= 50; ++i) {
      const OnDevice<float> data(1, 1.0F);
      const ConstBuffer in{data.data(), data.bytes()};
      const MutableBuffer out{data.data(), data.bytes()};
      ReduceArguments arguments;
      arguments.count = 1;
      arguments.postscale = i;
      ASSERT_TRUE(
          communicator
              .AllReduce(world.On(static_cast<size_t>(rank)), {&in, 1}, {&out, 1}, arguments)
              .ok());
      EXPECT_EQ(data.values()[0], 2.0F * static_cast<float>(i));
    }
  });
  EXPECT_EQ(fake_gpu::Count().most_scaled_sums, 16) << "they are not kept for ever";
}

TEST_F(DeviceCommunicatorTest, ScaledExtremaAndIntegersGoThroughHostMemory) {
  DeviceWorld world(2);
  world.OnAll([&](int rank, Communicator& communicator) {
    const OnDevice<float> data(10, static_cast<float>(rank));
    const ConstBuffer in{data.data(), data.bytes()};
    const MutableBuffer out{data.data(), data.bytes()};
    ReduceArguments arguments;
    arguments.elements.op = ReduceOp::kMax;
    arguments.count = 10;
    arguments.postscale = 3.0;
    ASSERT_TRUE(
        communicator.AllReduce(world.On(static_cast<size_t>(rank)), {&in, 1}, {&out, 1}, arguments)
            .ok());
    EXPECT_EQ(data.values(), std::vector<float>(10, 3.0F));
  });
  EXPECT_GT(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, PiecesAreOneOperation) {
  DeviceWorld world(2);
  world.ExpectSums(1);
  const int before = NcclOperations();
  world.OnAll([&](int r, Communicator& communicator) {
    const auto rank = static_cast<size_t>(r);
    const OnDevice<float> a(3, static_cast<float>(r + 1));
    const OnDevice<float> b(4, static_cast<float>(10 * (r + 1)));
    const OnDevice<float> whole(7);
    const std::vector<ConstBuffer> in = {{a.data(), a.bytes()}, {b.data(), b.bytes()}};
    const std::vector<MutableBuffer> pieces = {{a.data(), a.bytes()}, {b.data(), b.bytes()}};
    const MutableBuffer one{whole.data(), whole.bytes()};
    ReduceArguments arguments;
    arguments.count = 7;
    ASSERT_TRUE(communicator.AllReduce(world.On(rank), in, {&one, 1}, arguments).ok());
    EXPECT_EQ(whole.values(), (std::vector<float>{3, 3, 3, 30, 30, 30, 30}));
    ASSERT_TRUE(communicator.AllReduce(world.On(rank), in, pieces, arguments).ok());
    EXPECT_EQ(a.values(), std::vector<float>(3, 3.0F));
    EXPECT_EQ(b.values(), std::vector<float>(4, 30.0F));
  });
  EXPECT_EQ(NcclOperations() - before, 2 * 2);
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, ReduceScatterOfEvenAndUnevenBlocks) {
  DeviceWorld world(3);
  for (const std::vector<size_t>& counts :
       {std::vector<size_t>{4, 4, 4}, std::vector<size_t>{5, 0, 2}}) {
    world.OnAll([&](int rank, Communicator& communicator) {
      std::vector<float> values(std::accumulate(counts.begin(), counts.end(), size_t{0}));
      std::iota(values.begin(), values.end(), static_cast<float>(rank));
      const OnDevice<float> in(values);
      const OnDevice<float> out(counts[static_cast<size_t>(rank)], -1.0F);
      const Status s = communicator.ReduceScatter(world.On(static_cast<size_t>(rank)), in.data(),
                                                  out.data(), counts, {});
      ASSERT_TRUE(s.ok()) << s.error().message;
      const size_t first = std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
      std::vector<float> expected;
      for (size_t i = 0; i < out.size(); ++i) {
        expected.push_back(static_cast<float>(3 * (first + i) + 3));
      }
      EXPECT_EQ(out.values(), expected);
    });
  }
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, BroadcastFromEveryRoot) {
  DeviceWorld world(3);
  for (int root = 0; root < 3; ++root) {
    world.OnAll([&](int rank, Communicator& communicator) {
      const OnDevice<float> data(100, rank == root ? 7.0F : 0.0F);
      ASSERT_TRUE(
          communicator
              .Broadcast(world.On(static_cast<size_t>(rank)), data.data(), data.bytes(), root)
              .ok());
      EXPECT_EQ(data.values(), std::vector<float>(100, 7.0F));
    });
  }
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, ExchangeOfUnevenBlocks) {
  DeviceWorld world(3);
  world.OnAll([&](int rank, Communicator& communicator) {
    // Rank r sends r + p bytes to rank p; 0 and 0 never meet.
    std::vector<std::unique_ptr<OnDevice<char>>> memory;
    std::vector<OutgoingBlock> outgoing;
    std::vector<IncomingBlock> incoming;
    std::vector<std::pair<OnDevice<char>*, int>> expected;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      const auto bytes = static_cast<size_t>(rank) + static_cast<size_t>(peer);
      memory.push_back(std::make_unique<OnDevice<char>>(bytes, static_cast<char>('a' + rank)));
      outgoing.push_back({peer, memory.back()->data(), bytes});
      memory.push_back(std::make_unique<OnDevice<char>>(bytes, '-'));
      incoming.push_back({peer, memory.back()->data(), bytes});
      expected.emplace_back(memory.back().get(), peer);
    }
    ASSERT_TRUE(
        communicator.Exchange(world.On(static_cast<size_t>(rank)), outgoing, incoming).ok());
    for (const auto& [block, peer] : expected) {
      EXPECT_EQ(block->values(), std::vector<char>(block->size(), static_cast<char>('a' + peer)));
    }
  });
  // A rank without any block takes no part in what the others do.
  world.OnAll([&](int rank, Communicator& communicator) {
    const OnDevice<char> block(8, rank == 0 ? 'x' : '-');
    const OutgoingBlock out{1, block.data(), 8};
    const IncomingBlock in{0, block.data(), 8};
    ASSERT_TRUE(communicator
                    .Exchange(world.On(static_cast<size_t>(rank)), {&out, size_t{rank == 0}},
                              {&in, size_t{rank == 1}})
                    .ok());
    EXPECT_EQ(block.values(), std::vector<char>(8, rank == 2 ? '-' : 'x'));
  });
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, AllGatherOfEvenAndUnevenBlocks) {
  DeviceWorld world(3);
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{4, 4, 4}, std::vector<size_t>{3, 0, 5}}) {
    world.OnAll([&](int rank, Communicator& communicator) {
      const OnDevice<char> in(sizes[static_cast<size_t>(rank)], static_cast<char>('a' + rank));
      const OnDevice<char> out(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '-');
      const Status s = AllGather(communicator, world.On(static_cast<size_t>(rank)), in.data(),
                                 out.data(), sizes);
      ASSERT_TRUE(s.ok()) << s.error().message;
      std::vector<char> expected;
      for (size_t r = 0; r < 3; ++r)
        expected.insert(expected.end(), sizes[r], static_cast<char>('a' + r));
      EXPECT_EQ(out.values(), expected);
    });
  }
  EXPECT_EQ(fake_gpu::Count().host_copies, 0);
}

TEST_F(DeviceCommunicatorTest, WaitsForTheCallersStream) {
  DeviceWorld world(2);
  world.ExpectSums(1);
  fake_gpu::HeldStream held;
  const int before = NcclOperations();
  const Device device = world[0].Mark(0, held.stream()).value();
  std::thread other([&] {
    const OnDevice<float> data(1, 1.0F);
    EXPECT_TRUE(world.Sum(1, data, data).ok());
  });
  const OnDevice<float> data(1, 2.0F);
  std::thread waiting([&] {
    const ConstBuffer in{data.data(), data.bytes()};
    const MutableBuffer out{data.data(), data.bytes()};
    ReduceArguments arguments;
    arguments.count = 1;
    EXPECT_TRUE(world[0].AllReduce({0, 0, "", device}, {&in, 1}, {&out, 1}, arguments).ok());
  });
  // The other rank has begun; this one may not before the stream has come so far.
  EXPECT_TRUE(
      Eventually([&] { return NcclOperations() > before && fake_gpu::Count().held_queries > 0; }));
  EXPECT_EQ(NcclOperations() - before, 1);
  EXPECT_EQ(data.values()[0], 2.0F);
  held.Open();
  waiting.join();
  other.join();
  EXPECT_EQ(data.values()[0], 3.0F);
}

TEST_F(DeviceCommunicatorTest, ARankWithItsMemoryInTheHostTakesPart) {
  DeviceWorld world(3);
  world.ExpectSums(10);
  world.OnAll([&](int rank, Communicator& communicator) {
    if (rank < 2) {
      const OnDevice<float> data(50, 1.0F);
      ASSERT_TRUE(world.Sum(static_cast<size_t>(rank), data, data).ok());
      EXPECT_EQ(data.values(), std::vector<float>(50, 2.0F));
      return;
    }
    // As one that has run out of data.
    ReduceArguments arguments;
    arguments.count = 50;
    const std::string recipe = OnDeviceRecipe(AllReduceRecipe(arguments));
    ASSERT_TRUE(TakePartIn(communicator, {}, recipe).ok());
  });
  EXPECT_EQ(NcclOperations(), 3 * 3) << "one to warm up, one sum of all, one without a share";
}

TEST_F(DeviceCommunicatorTest, MemoryOfAnotherDeviceIsCopied) {
  DeviceWorld world(2);
  world.ExpectSums(10);
  world.OnAll([&](int rank, Communicator& communicator) {
    const OnDevice<float> data(50, 1.0F);
    const ConstBuffer in{data.data(), data.bytes()};
    const MutableBuffer out{data.data(), data.bytes()};
    ReduceArguments arguments;
    arguments.count = 50;
    const Device device = communicator.Mark(5 + rank, nullptr).value();
    ASSERT_TRUE(communicator.AllReduce({0, 0, "", device}, {&in, 1}, {&out, 1}, arguments).ok());
    EXPECT_EQ(data.values(), std::vector<float>(50, 2.0F));
  });
}

TEST_F(DeviceCommunicatorTest, RanksThatDisagreeAllHearOfBothSides) {
  for (const bool first : {true, false}) {
    DeviceWorld world(3);
    if (!first) world.ExpectSums(10);
    world.OnAll([&](int rank, Communicator& communicator) {
      const OnDevice<float> on_device(5, 1.0F);
      std::vector<float> on_host(5);
      const bool host = rank == 1;
      const ConstBuffer in{host ? on_host.data() : on_device.data(), on_device.bytes()};
      const MutableBuffer out{host ? on_host.data() : on_device.data(), on_device.bytes()};
      ReduceArguments arguments;
      arguments.count = 5;
      Operation operation = world.On(static_cast<size_t>(rank), "sum on cuda");
      if (host) operation = {0, 77, "sum", {}};
      const Status s = communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments);
      ASSERT_FALSE(s.ok());
      EXPECT_EQ(s.error().code, ErrorCode::kMismatch) << s.error().message;
      EXPECT_THAT(s.error().message, HasSubstr("ranks 0, 2: sum on cuda; rank 1: sum"));
    });
    world.Begin();
    world.OnAll([&](int rank, Communicator&) {
      const OnDevice<float> data(5, 1.0F);
      const char* text = rank == 2 ? "maximum on cuda" : "sum on cuda";
      const Status s = world.Sum(static_cast<size_t>(rank), data, data, text);
      ASSERT_FALSE(s.ok());
      EXPECT_THAT(s.error().message, HasSubstr("ranks 0, 1: sum on cuda; rank 2: maximum on cuda"));
    });
  }
}

TEST_F(DeviceCommunicatorTest, AMarkLeavesTheThreadsChoiceOfADevice) {
  DeviceWorld world(1);
  ASSERT_TRUE(world[0].Mark(3, nullptr).ok());
  EXPECT_EQ(fake_gpu::CurrentDevice(), -1);
  EXPECT_EQ(world[0].Mark(fake_gpu::kDevices, nullptr).error().code, ErrorCode::kUnavailable);
}

TEST_F(DeviceCommunicatorTest, ATeamForSomeRanksHasItsOwnCommunicator) {
  DeviceWorld world(3);
  world.ExpectSums(10);
  world.OnAll([&](int rank, Communicator& communicator) {
    if (rank == 1) return;
    Team team{1, {0, 2}, rank == 0 ? 0 : 1};
    ASSERT_TRUE(communicator.AddTeam(team).ok());
    const OnDevice<float> data(5, static_cast<float>(rank + 1));
    const ConstBuffer in{data.data(), data.bytes()};
    const MutableBuffer out{data.data(), data.bytes()};
    ReduceArguments arguments;
    arguments.count = 5;
    Operation operation = world.On(static_cast<size_t>(rank));
    operation.team = 1;
    ASSERT_TRUE(communicator.AllReduce(operation, {&in, 1}, {&out, 1}, arguments).ok());
    EXPECT_EQ(data.values(), std::vector<float>(5, 4.0F));
  });
  EXPECT_EQ(fake_gpu::Count().communicators, 3 + 2);
  // It goes with its team.
  world.Begin();
  EXPECT_EQ(fake_gpu::Count().communicators, 3);
}

// ---- through host memory ----

TEST_F(DeviceCommunicatorTest, OneRankWithoutNcclTakesAllThroughHostMemory) {
  auto made = std::make_shared<std::atomic<int>>(0);
  DeviceOptions options = TestOptions();
  options.load_nccl = [made]() -> Result<std::shared_ptr<Nccl>> {
    if (made->fetch_add(1) == 0) return Error{ErrorCode::kUnavailable, "not here"};
    return LoadNccl();
  };
  DeviceWorld world(3, options);
  world.ExpectSums();
  world.OnAll([&](int rank, Communicator& communicator) {
    const auto r = static_cast<size_t>(rank);
    const std::vector<size_t> counts{2, 0, 1};
    const OnDevice<float> data(3, static_cast<float>(rank));
    const OnDevice<float> share(counts[r]);
    ASSERT_TRUE(
        communicator.ReduceScatter(world.On(r), data.data(), share.data(), counts, {}).ok());
    EXPECT_EQ(share.values(), std::vector<float>(counts[r], 3.0F));
    ASSERT_TRUE(communicator.Broadcast(world.On(r), data.data(), data.bytes(), 2).ok());
    EXPECT_EQ(data.values(), std::vector<float>(3, 2.0F));
    const OnDevice<char> mine(2, static_cast<char>('a' + rank));
    const OnDevice<char> all(6);
    const std::vector<size_t> sizes{2, 2, 2};
    ASSERT_TRUE(AllGather(communicator, world.On(r), mine.data(), all.data(), sizes).ok());
    EXPECT_EQ(all.values(), (std::vector<char>{'a', 'a', 'b', 'b', 'c', 'c'}));
    const OnDevice<char> from(2);
    const OutgoingBlock out{(rank + 1) % 3, mine.data(), 2};
    const IncomingBlock in{(rank + 2) % 3, from.data(), 2};
    ASSERT_TRUE(communicator.Exchange(world.On(r), {&out, 1}, {&in, 1}).ok());
    EXPECT_EQ(from.values(), std::vector<char>(2, static_cast<char>('a' + (rank + 2) % 3)));
  });
  EXPECT_EQ(NcclOperations(), 0);
  EXPECT_EQ(fake_gpu::Count().inits, 0);
}

TEST_F(DeviceCommunicatorTest, RanksOnOneGpuGoThroughHostMemory) {
  fake_gpu::Faults faults;
  faults.same_device = true;
  fake_gpu::SetFaults(faults);
  DeviceWorld world(2);
  world.ExpectSums();
  EXPECT_EQ(NcclOperations(), 0);
}

TEST_F(DeviceCommunicatorTest, AnOldLibraryIsRefusedAndAnOlderOneServes) {
  fake_gpu::Faults faults;
  faults.version = 21300;
  fake_gpu::SetFaults(faults);
  const Result<std::shared_ptr<Nccl>> old = LoadNccl();
  ASSERT_FALSE(old.ok());
  EXPECT_THAT(old.error().message, HasSubstr("2.13.0; wanted is 2.14.0 or newer"));
  faults.version = 21400;
  fake_gpu::SetFaults(faults);
  {
    DeviceWorld world(2);
    world.ExpectSums();
    world.Begin();
    world.ExpectSums();
    EXPECT_EQ(fake_gpu::Count().inits, 2) << "kept over the epoch";
  }
  setenv("TROUPE_NCCL", "0", 1);
  EXPECT_THAT(LoadNccl().error().message, HasSubstr("TROUPE_NCCL=0"));
  unsetenv("TROUPE_NCCL");
  setenv("TROUPE_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
  EXPECT_THAT(LoadNccl().error().message, HasSubstr("/nowhere/libnccl.so"));
  setenv("TROUPE_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
  EXPECT_THAT(LoadCudaDriver().error().message, HasSubstr("/nowhere/libcuda.so"));
}

TEST_F(DeviceCommunicatorTest, WithoutADriverDevicesAreRefused) {
  setenv("TROUPE_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
  DeviceWorld world(2);
  EXPECT_FALSE(world[0].devices());
  EXPECT_FALSE(world[0].Mark(0, nullptr).ok());
  // Copies in host memory go their way, as do operations on host memory.
  world.OnAll([&](int rank, Communicator& communicator) {
    std::vector<float> data(10, static_cast<float>(rank + 1));
    const ConstBuffer in{data.data(), 40};
    const MutableBuffer out{data.data(), 40};
    ReduceArguments arguments;
    arguments.count = 10;
    ASSERT_TRUE(
        communicator.AllReduce({0, 0, "", {kHostCopy, nullptr}}, {&in, 1}, {&out, 1}, arguments)
            .ok());
    EXPECT_EQ(data, std::vector<float>(10, 3.0F));
  });
  world.World::ExpectSums();
}

}  // namespace
}  // namespace troupe::groups
