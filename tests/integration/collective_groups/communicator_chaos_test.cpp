// Epochs that end at any moment of any collective: whoever was inside comes out with an error or
// with the right result, and the next epoch is clean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>

#include "tests/integration/collective_groups/communicator_world.h"

namespace troupe::groups {
namespace {

constexpr int kRounds = 60;
constexpr int kRanks = 4;

// Every rank knows what must come out; a wrong result is a failure, an error is not.
using Collective = std::function<Status(Communicator&, int rank, size_t count)>;

float Value(int rank, size_t i) {
  return static_cast<float>((i % 7) + 1) * static_cast<float>(1 << rank);
}

std::vector<float> Input(int rank, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = Value(rank, i);
  return data;
}

Status AllReduceOnce(Communicator& c, int rank, size_t count) {
  const std::vector<float> in = Input(rank, count);
  std::vector<float> out(count);
  const ConstBuffer source{in.data(), count * sizeof(float)};
  const MutableBuffer target{out.data(), count * sizeof(float)};
  ReduceArguments arguments;
  arguments.count = count;
  Status s = c.AllReduce(kUnnamed, {&source, 1}, {&target, 1}, arguments);
  EXPECT_EQ(in, Input(rank, count)) << "the input was changed";
  for (size_t i = 0; s.ok() && i < count; ++i) {
    const float wanted = static_cast<float>((i % 7) + 1) * static_cast<float>((1 << kRanks) - 1);
    if (out[i] != wanted) {
      ADD_FAILURE() << "element " << i << " is " << out[i] << ", not " << wanted;
      break;
    }
  }
  return s;
}

Status ReduceScatterOnce(Communicator& c, int rank, size_t count) {
  const std::vector<float> in = Input(rank, count * kRanks);
  std::vector<float> out(count);
  const std::vector<size_t> counts(kRanks, count);
  Status s = c.ReduceScatter(kUnnamed, in.data(), out.data(), counts, ReduceArguments{});
  for (size_t i = 0; s.ok() && i < count; ++i) {
    const size_t at = static_cast<size_t>(rank) * count + i;
    const float wanted = static_cast<float>((at % 7) + 1) * static_cast<float>((1 << kRanks) - 1);
    if (out[i] != wanted) {
      ADD_FAILURE() << "element " << i << " is " << out[i] << ", not " << wanted;
      break;
    }
  }
  return s;
}

Status BroadcastOnce(Communicator& c, int rank, size_t count) {
  std::vector<float> data = rank == 1 ? Input(1, count) : std::vector<float>(count);
  Status s = c.Broadcast(kUnnamed, data.data(), count * sizeof(float), 1);
  if (s.ok()) {
    EXPECT_TRUE(data == Input(1, count));
  }
  return s;
}

Status AllGatherOnce(Communicator& c, int rank, size_t count) {
  const std::vector<float> in = Input(rank, count);
  std::vector<float> out(count * kRanks);
  const std::vector<size_t> bytes(kRanks, count * sizeof(float));
  Status s = AllGather(c, kUnnamed, in.data(), out.data(), bytes);
  for (int peer = 0; s.ok() && peer < kRanks; ++peer) {
    const auto begin = out.begin() + static_cast<ptrdiff_t>(count) * peer;
    EXPECT_TRUE(
        std::equal(begin, begin + static_cast<ptrdiff_t>(count), Input(peer, count).begin()));
  }
  return s;
}

Status TransferOnce(Communicator& c, int rank, size_t count) {
  std::vector<float> data = rank < 2 ? Input(0, count) : std::vector<float>(count);
  const MutableBuffer buffer{data.data(), count * sizeof(float)};
  const std::vector<int> sources{0, 1};
  const std::vector<int> receivers{2, 3};
  const Result<uint64_t> sent = c.Transfer(sources, receivers, {&buffer, 1});
  if (!sent.ok()) return sent.error();
  EXPECT_TRUE(data == Input(0, count));
  return Status::Ok();
}

Status BarrierOnce(Communicator& c, int, size_t) { return c.Barrier(kUnnamed); }

class ChaosTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, ChaosTest,
                         ::testing::Values(Kind::kMemory, Kind::kGloo, Kind::kLevels, Kind::kUneven,
                                           Kind::kLocal),
                         [](const auto& info) { return KindName(info.param); });

TEST_P(ChaosTest, AnEpochMayEndAtAnyMomentOfAnyCollective) {
  const std::vector<Collective> collectives = {AllReduceOnce, ReduceScatterOnce, BroadcastOnce,
                                               AllGatherOnce, TransferOnce,      BarrierOnce};
  World world(GetParam(), kRanks);
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    const Collective& collective = collectives[static_cast<size_t>(round) % collectives.size()];
    const size_t count = std::vector<size_t>{1, 5'000, 300'000}[random() % 3];
    const auto pause = microseconds(random() % (count < 10'000 ? 200 : 3000));
    // Not all abort at once, and one of them may never have begun.
    const int absent = random() % 4 == 0 ? static_cast<int>(random() % kRanks) : -1;
    std::atomic<int> failed{0};
    std::thread coordinator([&] {
      std::this_thread::sleep_for(pause);
      world.Abort();
    });
    world.OnAll([&](int rank, Communicator& c) {
      if (rank == absent) return;
      Status s;
      while (s.ok()) s = collective(c, rank, count);
      EXPECT_TRUE(s.error().code == ErrorCode::kEpochChanged ||
                  s.error().code == ErrorCode::kPeerGone)
          << s.error().message;
      ++failed;
    });
    coordinator.join();
    EXPECT_EQ(failed, absent < 0 ? kRanks : kRanks - 1);
    world.Relink();
    world.Begin();
    world.ExpectSums(100'000);
  }
}

// One collective after the other, of all kinds and sizes, without anything that keeps the ranks
// together: who is ahead must not disturb who is behind, whatever follows on what.
TEST_P(ChaosTest, CollectivesInARandomOrderAreExactWhoeverIsSlow) {
  using Step = std::function<Status(Communicator&, int rank, size_t count, int root)>;
  const auto any_root = [](Communicator& c, int rank, size_t count, int root) {
    std::vector<float> data = rank == root ? Input(root, count) : std::vector<float>(count);
    Status s = c.Broadcast(kUnnamed, data.data(), count * sizeof(float), root);
    if (s.ok()) {
      EXPECT_TRUE(data == Input(root, count));
    }
    return s;
  };
  const auto plain = [](const Collective& one) -> Step {
    return [one](Communicator& c, int rank, size_t count, int) { return one(c, rank, count); };
  };
  const std::vector<Step> steps = {any_root,
                                   any_root,
                                   any_root,
                                   any_root,
                                   plain(AllReduceOnce),
                                   plain(AllReduceOnce),
                                   plain(ReduceScatterOnce),
                                   plain(AllGatherOnce),
                                   plain(BarrierOnce)};
  // Threads that take turns on few cores make every message between hosts wait for a slice.
  const int collectives = GetParam() == Kind::kMemory ? 150 : 40;
  World world(GetParam(), kRanks);
  world.OnAll([&](int rank, Communicator& c) {
    std::mt19937 same(3);                                   // Alike on all ranks,
    std::mt19937 own(static_cast<uint32_t>(rank) * 7 + 1);  // and of each one.
    for (int i = 0; i < collectives; ++i) {
      for (uint32_t turns = own() % 4 == 0 ? own() % 500 : 0; turns > 0; --turns)
        std::this_thread::yield();
      const Step& step = steps[same() % steps.size()];
      const size_t count = same() % 2 == 0 ? 1 + same() % 50'000 : 1 + same() % 100;
      const auto root = static_cast<int>(same() % kRanks);
      const Status status = step(c, rank, count, root);
      ASSERT_TRUE(status.ok()) << "collective " << i << ": " << status.error().message;
    }
  });
}

TEST_P(ChaosTest, MembersComeAndGoBetweenCollectives) {
  World world(GetParam(), 2);
  std::mt19937 random(11);
  for (int round = 0; round < 30; ++round) {
    const bool grow = world.size() == 1 || (world.size() < 6 && random() % 2 == 0);
    if (grow) {
      world.Join();
    } else {
      world.Abort();
      world.Lose(random() % world.size());
      world.Relink();
    }
    world.Begin();
    world.ExpectSums(random() % 2 == 0 ? 10 : 50'000);
  }
}

}  // namespace
}  // namespace troupe::groups
