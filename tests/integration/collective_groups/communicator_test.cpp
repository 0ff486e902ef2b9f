// The communicator over every kind of link, with each rank on a thread of this process: exact
// results, aborts that release whoever is blocked, epochs with lost and new members, nothing left
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "collective_groups/collectives/collectives.h"
#include "tests/integration/collective_groups/communicator_world.h"
#include "tests/integration/runtime/resources.h"

// Gloo loses an addrinfo when it cannot bind. The leak checker of a sanitizer build, which is a
// shared library and so needs to see the name, asks for this.
extern "C" __attribute__((visibility("default"))) const char*
__lsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "leak:gloo::transport::tcp::CreateDeviceAttr";
}
// Gloo counts who still uses a buffer, and waits for its loop, in code that is not instrumented.
extern "C" __attribute__((visibility("default"))) const char*
__tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:gloo::transport::tcp::UnboundBuffer\nrace:GlooLinks\n";
}

namespace troupe::groups {
namespace {

// An abort takes 0.3 ms; this is for a busy machine, and far from kCollectiveTimeout.
constexpr Duration kAbortLimit = seconds(2);

class CommunicatorTest : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  static Kind KindOf() { return std::get<0>(GetParam()); }
  static int Ranks() { return std::get<1>(GetParam()); }
  static size_t Size() { return static_cast<size_t>(Ranks()); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, CommunicatorTest,
                         ::testing::Combine(::testing::Values(Kind::kMemory, Kind::kGloo,
                                                              Kind::kLevels, Kind::kUneven,
                                                              Kind::kLocal),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::string(KindName(std::get<0>(info.param))) +
                                  std::to_string(std::get<1>(info.param));
                         });

// The bytes of a small whole number.
std::string Element(DataType type, int value) {
  const auto bytes = [](auto typed) {
    return std::string(reinterpret_cast<const char*>(&typed), sizeof typed);
  };
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  switch (type) {
    case DataType::kUint8:
      return bytes(static_cast<uint8_t>(value));
    case DataType::kInt8:
      return bytes(static_cast<int8_t>(value));
    case DataType::kInt16:
      return bytes(static_cast<int16_t>(value));
    case DataType::kInt32:
      return bytes(static_cast<int32_t>(value));
    case DataType::kInt64:
      return bytes(static_cast<int64_t>(value));
    case DataType::kFloat16:  // Normal numbers: the exponent's bias is 15, not 127.
      return bytes(static_cast<uint16_t>((bits >> 13) - ((127U - 15U) << 10)));
    case DataType::kBfloat16:
      return bytes(static_cast<uint16_t>(bits >> 16));
    case DataType::kFloat32:
      return bytes(static_cast<float>(value));
    default:
      return bytes(static_cast<double>(value));
  }
}

std::string Repeat(const std::string& element, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += element;
  return all;
}

TEST_P(CommunicatorTest, AllReduceIsExactForEveryTypeOperationAndSize) {
  World world(KindOf(), Size());
  const int n = Ranks();
  const std::map<ReduceOp, int> expected = {{ReduceOp::kSum, n * (n + 1) / 2},
                                            {ReduceOp::kMin, 1},
                                            {ReduceOp::kMax, n},
                                            {ReduceOp::kProduct, n == 4   ? 24
                                                                 : n == 3 ? 6
                                                                          : n}};
  for (const char* name :
       {"uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}) {
    const std::optional<DataType> type = ParseDataType(name);
    ASSERT_TRUE(type.has_value()) << name;
    for (const auto& [op, result] : expected) {
      for (const size_t count : {size_t{1}, size_t{7}, size_t{70'001}}) {
        world.OnAll([&, op = op, result = result](int rank, Communicator& communicator) {
          std::string data = Repeat(Element(*type, rank + 1), count);
          ASSERT_TRUE(Reduce(communicator, data.data(), count, *type, op).ok());
          EXPECT_TRUE(data == Repeat(Element(*type, result), count))
              << name << " op " << static_cast<int>(op) << " count " << count;
        });
      }
    }
  }
}

TEST_P(CommunicatorTest, AllRanksEndWithTheSameBits) {
  World world(KindOf(), Size());
  for (const size_t count : {size_t{100}, size_t{100'000}}) {
    std::vector<std::vector<float>> data(Size());
    for (size_t rank = 0; rank < Size(); ++rank) {
      std::mt19937 random(static_cast<uint32_t>(rank));
      for (size_t i = 0; i < count; ++i) {
        data[rank].push_back(std::normal_distribution<float>(0, 1)(random));
      }
    }
    world.OnAll([&](int rank, Communicator& communicator) {
      auto& mine = data[static_cast<size_t>(rank)];
      ASSERT_TRUE(
          Reduce(communicator, mine.data(), count, DataType::kFloat32, ReduceOp::kSum).ok());
    });
    for (const auto& other : data) EXPECT_TRUE(other == data[0]);
  }
}

// The bytes of `data`, cut after so many elements, and after those again.
template <class Buffer>
std::vector<Buffer> Cut(std::vector<float>& data, size_t first, size_t second) {
  const size_t rest = data.size() - first - second;
  return {{data.data(), first * sizeof(float)},
          {data.data(), 0},
          {data.data() + first, second * sizeof(float)},
          {data.data() + first + second, rest * sizeof(float)}};
}

// So large that it is filled, sent, scaled and handed out in parts.
TEST_P(CommunicatorTest, AllReduceOfManyBuffersIntoOthersIsScaledOnce) {
  World world(KindOf(), Size());
  const size_t most =
      KindOf() == Kind::kGloo ? 9'000'001 : 700'001;  // More than the ring's window.
  for (const size_t count : {size_t{10}, size_t{300'000}, most}) {
    world.OnAll([&](int rank, Communicator& communicator) {
      std::vector<float> data(count);
      for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 97) + rank;
      const std::vector<float> before = data;
      std::vector<float> result(count);
      const auto in = Cut<ConstBuffer>(data, 1, count / 3);
      const auto out = Cut<MutableBuffer>(result, count / 2, 3);
      ReduceArguments arguments{{DataType::kFloat32, ReduceOp::kSum}, count};
      arguments.prescale = 2;
      arguments.postscale = 0.25;
      ASSERT_TRUE(communicator.AllReduce(kUnnamed, in, out, arguments).ok());
      EXPECT_TRUE(data == before);
      const int n = Ranks();
      const int ranks = n * (n - 1) / 2;
      size_t wrong = 0;
      for (size_t i = 0; i < count; ++i) {
        const auto sum = static_cast<float>(n * static_cast<int>(i % 97) + ranks);
        wrong += result[i] == sum / 2 ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0U) << "of " << count;
    });
  }
}

TEST_P(CommunicatorTest, BroadcastFromEveryRoot) {
  World world(KindOf(), Size());
  for (int root = 0; root < Ranks(); ++root) {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{3} << 20}) {
      const std::string sent(bytes, static_cast<char>('a' + root));
      world.OnAll([&](int rank, Communicator& communicator) {
        std::string data = rank == root ? sent : std::string(bytes, '-');
        ASSERT_TRUE(communicator.Broadcast(kUnnamed, data.data(), bytes, root).ok());
        EXPECT_TRUE(data == sent) << "root " << root << " rank " << rank;
      });
    }
  }
}

TEST_P(CommunicatorTest, AllGatherOfUnequalBlocks) {
  World world(KindOf(), Size());
  for (const size_t unit : {size_t{0}, size_t{1}, size_t{100'000}}) {
    std::vector<size_t> bytes;
    std::string expected;
    for (size_t rank = 0; rank < Size(); ++rank) {
      bytes.push_back(unit * rank);  // Rank 0 gives nothing.
      expected += std::string(bytes.back(), static_cast<char>('a' + rank));
    }
    world.OnAll([&](int rank, Communicator& communicator) {
      const std::string mine(bytes[static_cast<size_t>(rank)], static_cast<char>('a' + rank));
      std::string all(expected.size(), '-');
      ASSERT_TRUE(AllGather(communicator, kUnnamed, mine.data(), all.data(), bytes).ok());
      EXPECT_TRUE(all == expected);
    });
  }
}

TEST_P(CommunicatorTest, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  World world(KindOf(), Size());
  std::atomic<int> reached{0};
  for (int round = 1; round <= 50; ++round) {
    world.OnAll([&](int, Communicator& communicator) {
      ++reached;
      ASSERT_TRUE(communicator.Barrier(kUnnamed).ok());
      EXPECT_EQ(reached, round * Ranks());
      ASSERT_TRUE(communicator.Barrier(kUnnamed).ok());
    });
  }
}

// The youngest have the state, the others receive it; with every number of sources.
TEST_P(CommunicatorTest, TransferReachesEveryReceiverFromAnyNumberOfSources) {
  World world(KindOf(), Size());
  const size_t mega = size_t{1} << 20;
  const std::vector<size_t> sizes = {0, 5, mega, 5 * mega + 17};
  const size_t total = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  for (int count = 1; count < Ranks(); ++count) {
    std::vector<int> sources;
    std::vector<int> receivers;
    for (int rank = Ranks() - 1; rank >= 0; --rank) {
      (static_cast<int>(sources.size()) < count ? sources : receivers).push_back(rank);
    }
    std::atomic<uint64_t> all_sent{0};
    world.OnAll([&](int rank, Communicator& communicator) {
      const bool has = rank >= Ranks() - count;
      std::vector<std::string> data;
      std::vector<MutableBuffer> buffers;
      for (const size_t bytes : sizes) {
        data.emplace_back(bytes, '-');
        for (size_t i = 0; has && i < bytes; ++i) {
          data.back()[i] = static_cast<char>('a' + (i / 1000 + i) % 23);
        }
      }
      std::string expected = sizes.back() > 0 ? std::string(sizes.back(), '-') : "";
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = static_cast<char>('a' + (i / 1000 + i) % 23);
      }
      for (std::string& one : data) buffers.push_back({one.data(), one.size()});
      const Result<uint64_t> sent = communicator.Transfer(sources, receivers, buffers);
      ASSERT_TRUE(sent.ok()) << sent.error().message;
      all_sent += *sent;
      for (const std::string& one : data) EXPECT_TRUE(one == expected.substr(0, one.size()));
    });
    EXPECT_EQ(all_sent, total * receivers.size());
  }
}

// Ranks 1 and 3 are on one host: nothing of it goes over the network.
TEST(TransferTest, StateComesFromASourceOnTheReceiversHost) {
  World world(Kind::kLevels, 4);
  const std::vector<int> sources{0, 1};
  const std::vector<int> receivers{3};
  const std::string state(100'000, 's');
  world.OnAll([&](int rank, Communicator& communicator) {
    std::string data = rank < 2 ? state : std::string(state.size(), '-');
    const MutableBuffer buffer{data.data(), data.size()};
    if (rank == 2) return;
    const Result<uint64_t> sent = communicator.Transfer(sources, receivers, {&buffer, 1});
    ASSERT_TRUE(sent.ok()) << sent.error().message;
    EXPECT_EQ(*sent, rank == 1 ? state.size() : 0);
    EXPECT_EQ(data, state);
  });
}

TEST_P(CommunicatorTest, TwoOfThemPassMessagesBesideTheOrderOfTheOthers) {
  World world(KindOf(), Size());
  const int last = Ranks() - 1;
  if (last == 0) {
    EXPECT_EQ(world[0].Send({0, 1, "to itself"}, nullptr, 0, 0).error().code,
              ErrorCode::kInvalidArgument);
    return;
  }
  for (const size_t bytes : {size_t{1}, size_t{0}, size_t{3'000'001}}) {
    world.OnAll([&](int rank, Communicator& communicator) {
      const Operation there{0, 7 + bytes, "there"};
      const Operation back{0, 8 + bytes, "back"};
      std::string mine(bytes, static_cast<char>('a' + rank));
      if (rank == 0) {
        ASSERT_TRUE(communicator.Send(there, mine.data(), bytes, last).ok());
        ASSERT_TRUE(communicator.Receive(back, mine.data(), bytes, last).ok());
        EXPECT_TRUE(mine == std::string(bytes, 'b'));
      } else if (rank == last) {
        ASSERT_TRUE(communicator.Receive(there, mine.data(), bytes, 0).ok());
        EXPECT_TRUE(mine == std::string(bytes, 'a'));
        mine.assign(bytes, 'b');
        ASSERT_TRUE(communicator.Send(back, mine.data(), bytes, 0).ok());
      }
      ASSERT_TRUE(communicator.Barrier(kUnnamed).ok());
    });
    world.ExpectSums();
  }
}

TEST_P(CommunicatorTest, ASendAndAReceiveThatDoNotMatchFailOnBothSides) {
  if (Ranks() == 1) return;
  World world(KindOf(), Size());
  world.OnAll([&](int rank, Communicator& communicator) {
    char data[8] = {};
    if (rank > 1) return;
    const Status s = rank == 0 ? communicator.Send({0, 1, "send of 8"}, data, 8, 1)
                               : communicator.Receive({0, 2, "send of 4"}, data, 4, 0);
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.error().code, ErrorCode::kMismatch);
    EXPECT_THAT(s.error().message, ::testing::HasSubstr("rank 0: send of 8; rank 1: send of 4"));
  });
  world.ExpectSums();
}

TEST_P(CommunicatorTest, SomeRanksAgreeOnANumberByThemselves) {
  World world(KindOf(), Size());
  for (int round = 0; round < 3; ++round) {
    world.OnAll([&](int rank, Communicator& communicator) {
      // The even ranks and the odd ones at once, then those at both ends, between sums of all.
      std::vector<int> mine;
      for (int other = rank % 2; other < Ranks(); other += 2) mine.push_back(other);
      const Result<uint64_t> highest = communicator.HighestAmong(kUnnamed, mine, 10 * rank);
      ASSERT_TRUE(highest.ok()) << highest.error().message;
      EXPECT_EQ(*highest, static_cast<uint64_t>(10 * mine.back()));
      const int last = Ranks() - 1;
      if (last > 0 && (rank == 0 || rank == last)) {
        const std::vector<int> ends{0, last};
        EXPECT_EQ(*communicator.HighestAmong(kUnnamed, ends, 7 - rank), 7U);
      }
      const Result<uint64_t> stranger = communicator.HighestAmong(kUnnamed, {{rank + 1}}, 1);
      ASSERT_FALSE(stranger.ok());
      EXPECT_EQ(stranger.error().code, ErrorCode::kInvalidArgument);
    });
    world.ExpectSums();
  }
}

TEST_P(CommunicatorTest, EpochsFollowOneAnotherOverTheSameLinks) {
  World world(KindOf(), Size());
  for (int epoch = 0; epoch < 20; ++epoch) {
    world.ExpectSums();
    world.Abort();  // Nothing is in flight: the links stay good.
    world.Begin();
  }
  world.ExpectSums(100'000);
}

// ---- aborts ----

using Blocking = std::function<Status(Communicator&)>;
struct BlockedCase {
  const char* name;
  Blocking call;
};
void PrintTo(const BlockedCase& blocked, std::ostream* out) { *out << blocked.name; }

class AbortTest : public ::testing::TestWithParam<std::tuple<Kind, BlockedCase>> {
 protected:
  // Returns when the thread sleeps in the kernel.
  static void WaitUntilAsleep(pid_t thread) {
    const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
    const Time deadline = SteadyClock().Now() + seconds(20);
    std::string state;
    while (state != "S") {
      ASSERT_LT(SteadyClock().Now(), deadline) << state;
      std::string skipped;
      std::ifstream(path) >> skipped >> skipped >> state;
    }
  }
};

std::vector<char>& Big() {
  static thread_local std::vector<char> big(size_t{4} << 20);
  return big;
}
INSTANTIATE_TEST_SUITE_P(
    Calls, AbortTest,
    ::testing::
        Combine(
            ::testing::Values(Kind::kMemory, Kind::kGloo, Kind::kLocal),
            ::testing::Values(
                BlockedCase{"SmallAllReduce",
                            [](Communicator& c) {
                              float x = 1;
                              return Reduce(c, &x, 1, DataType::kFloat32, ReduceOp::kSum);
                            }},
                BlockedCase{"LargeAllReduce",
                            [](Communicator& c) {
                              return Reduce(c, Big().data(), Big().size() / 4, DataType::kFloat32,
                                            ReduceOp::kSum);
                            }},
                BlockedCase{"BroadcastReceive",
                            [](Communicator& c) {
                              return c.Broadcast(kUnnamed, Big().data(), Big().size(), 1);
                            }},
                BlockedCase{"AllGather",
                            [](Communicator& c) {
                              const std::vector<size_t> bytes{1, 1};
                              char out[2];
                              return AllGather(c, kUnnamed, "x", out, bytes);
                            }},
                BlockedCase{"Barrier", [](Communicator& c) { return c.Barrier(kUnnamed); }},
                BlockedCase{
                    "Transfer",
                    [](Communicator& c) -> Status {
                      const std::vector<int> sources{1};
                      const std::vector<int> receivers{0};
                      const std::vector<MutableBuffer> buffers{{Big().data(), Big().size()}};
                      const auto sent = c.Transfer(sources, receivers, buffers);
                      return sent.ok() ? Status::Ok() : Status(sent.error());
                    }})),
    [](const auto& info) {
      return std::string(KindName(std::get<0>(info.param))) + std::get<1>(info.param).name;
    });
INSTANTIATE_TEST_SUITE_P(
    Sends, AbortTest,
    ::testing::Combine(::testing::Values(Kind::kMemory, Kind::kGloo),
                       ::testing::Values(BlockedCase{
                           "Broadcast",
                           [](Communicator& c) {
                             // More than the sockets buffer, so that the sender blocks.
                             static thread_local std::vector<char> huge(size_t{64} << 20);
                             return c.Broadcast(kUnnamed, huge.data(), huge.size(), 0);
                           }})),
    [](const auto& info) { return std::string(KindName(std::get<0>(info.param))); });

TEST_P(AbortTest, ReleasesWhoeverIsBlockedAndTheNextEpochIsClean) {
  World world(std::get<0>(GetParam()), 2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<pid_t> thread{0};
    Status status;
    std::atomic<int64_t> returned_ns{0};
    std::thread blocked([&] {
      thread = ::gettid();
      status = std::get<1>(GetParam()).call(world[0]);
      returned_ns = SteadyClock().Now().ns;
    });
    while (thread == 0) std::this_thread::yield();
    WaitUntilAsleep(thread);
    const Time aborted = SteadyClock().Now();
    world.Abort();
    blocked.join();
    EXPECT_EQ(status.error().code, ErrorCode::kEpochChanged) << status.error().message;
    EXPECT_LT(Time{returned_ns} - aborted, kAbortLimit);
    world.Relink();
    world.Begin();
    world.ExpectSums();
  }
}

class EpochTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, EpochTest,
                         ::testing::Values(Kind::kMemory, Kind::kGloo, Kind::kLevels),
                         [](const auto& info) { return KindName(info.param); });

TEST_P(EpochTest, AnAbortIsForItsEpochAndOlderOnesOnly) {
  World world(GetParam(), 2);
  world.Begin();
  world[0].Abort(world.epoch() - 1);
  world.ExpectSums();
  world[0].Abort(world.epoch());
  EXPECT_EQ(world[0].Barrier(kUnnamed).error().code, ErrorCode::kEpochChanged);
  world[1].Abort(world.epoch() + 1);
  EXPECT_EQ(world[1].Barrier(kUnnamed).error().code, ErrorCode::kEpochChanged);
}

TEST_P(EpochTest, ALostMemberIsAnErrorAndTheOthersGoOn) {
  for (size_t lost = 0; lost < 3; ++lost) {
    World world(GetParam(), 3);
    world.ExpectSums();
    world.Lose(lost);
    std::vector<Status> statuses(2);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        std::vector<float> data(100'000, 1);
        statuses[i] =
            Reduce(world[i], data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
        if (!statuses[i].ok()) world.Abort();  // As the coordinator would.
      });
    }
    if (GetParam() != Kind::kGloo) world.Abort();  // On one host the node tells of a death.
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) {
      ASSERT_FALSE(status.ok());
      EXPECT_TRUE(status.error().code == ErrorCode::kPeerGone ||
                  status.error().code == ErrorCode::kEpochChanged);
    }
    world.Relink();
    world.Begin();
    world.ExpectSums();
    world.Join();
    world.Begin();
    world.ExpectSums(100'000);
  }
}

TEST_P(EpochTest, ManyEpochsLeaveNothingBehind) {
  World world(GetParam(), 2);
  const auto epoch = [&] {
    world.Join();
    world.Begin();
    world.ExpectSums(100);
    world.Lose(1);
    world.Abort();
    world.Relink();
    world.Begin();
    world.ExpectSums(100);
  };
  for (int i = 0; i < 3; ++i) epoch();
  const size_t descriptors = tests::OpenDescriptors();
  const size_t threads = tests::Threads();
  for (int i = 0; i < 100; ++i) epoch();  // Two epochs each.
  EXPECT_EQ(tests::OpenDescriptors(), descriptors);
  EXPECT_EQ(tests::Threads(), threads);
}

}  // namespace
}  // namespace troupe::groups
