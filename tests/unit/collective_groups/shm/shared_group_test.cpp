// Two members' ends of shared memory in one process.
#include "collective_groups/shm/internal/shared_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace troupe::groups {
namespace {

constexpr size_t kBytes = 2 * kRingBytes;  // Does not fit into a ring at once.
constexpr uint64_t kKey = 7;

class SharedGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& segment : segments_) {
      Result<std::unique_ptr<SharedSegment>> made = SharedSegment::Create();
      ASSERT_TRUE(made.ok()) << made.error().message;
      segment = std::move(*made);
    }
  }
  std::unique_ptr<SharedGroup> Enter(Epoch epoch, size_t me, int members = 2) const {
    std::vector<SharedGroup::Peer> peers;
    for (int rank = 0; rank < members; ++rank) peers.push_back({rank, segments_[rank]});
    return std::make_unique<SharedGroup>(epoch, std::move(peers), me);
  }
  [[nodiscard]] bool WaitsFor(int member, uint32_t awaited) const {
    const Time deadline = SteadyClock().Now() + seconds(10);
    while (segments_[member]->header().sleeping.load() != awaited) {
      if (SteadyClock().Now() >= deadline) return false;
    }
    return true;
  }
  std::shared_ptr<SharedSegment> segments_[3];
};

TEST_F(SharedGroupTest, AMessageLargerThanItsRingArrives) {
  const auto first = Enter(1, 0);
  const auto second = Enter(1, 1);
  std::vector<char> sent(kBytes, 'x');
  std::vector<char> got(kBytes);
  auto sending = std::async(std::launch::async,
                            [&] { return first->Wait(first->Send(1, kKey, sent.data(), kBytes)); });
  EXPECT_TRUE(second->Wait(second->Receive(0, kKey, got.data(), kBytes)).ok());
  EXPECT_TRUE(sending.get().ok());
  EXPECT_EQ(got, sent);
}

// GM-4: in the middle of a message its sender goes on to the next epoch.
TEST_F(SharedGroupTest, WhoIsLeftBehindTakesNothingOfALaterEpoch) {
  const auto first = Enter(1, 0);
  const auto second = Enter(1, 1);
  std::vector<char> sent(kBytes, 'x');
  std::vector<char> got(kBytes);
  first->Send(1, kKey, sent.data(), kBytes);  // As much as the ring holds.
  auto receiving = std::async(std::launch::async, [&] {
    return second->Wait(second->Receive(0, kKey, got.data(), kBytes));
  });
  const auto& consumed = segments_[1]->header().consumed[0].value;
  const Time deadline = SteadyClock().Now() + seconds(10);
  while ((consumed.load() & 0xffffffff) < kRingBytes && SteadyClock().Now() < deadline) {
  }
  const auto later = Enter(2, 0);
  segments_[1]->RingAlways();
  const Status status = receiving.get();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kEpochChanged);
}

TEST_F(SharedGroupTest, WhoWaitsForAllIsWokenByTheOneItMisses) {
  std::vector<std::future<Status>> barriers;
  const auto arrive = [&](int me) {
    barriers.push_back(std::async(std::launch::async, [this, me] {
      LocalTeam team;
      team.peers = {0, 1, 2};
      team.me = me;
      return Enter(1, static_cast<size_t>(me), 3)->Barrier(team);
    }));
  };
  const uint32_t middle = SharedSegment::NewsOf(1);
  arrive(0);
  ASSERT_TRUE(WaitsFor(0, middle));
  const uint32_t bell = segments_[0]->doorbell().load();
  arrive(2);
  ASSERT_TRUE(WaitsFor(2, middle));
  EXPECT_EQ(segments_[0]->doorbell().load(), bell);
  arrive(1);
  for (auto& barrier : barriers) EXPECT_TRUE(barrier.get().ok());
}

// A stray pointer in one member must not change what another one has published.
TEST_F(SharedGroupTest, APeerCanRingTheDoorbellAndWriteNothingElse) {
  const auto peer = SharedSegment::Map(segments_[0]->address()).value();
  segments_[0]->stage(0, 0)[0] = 'a';
  EXPECT_EQ(peer->stage(0, 0)[0], 'a');
  peer->RingAlways();
  EXPECT_EQ(segments_[0]->doorbell().load(), 1u);
  EXPECT_EXIT(peer->stage(0, 0)[0] = 'b', ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(const_cast<SharedHeader&>(peer->header()).staged[0].value.store(1),
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(SharedGroupTest, NobodyCanMapASegmentForWriting) {
  std::istringstream words(segments_[0]->address());
  std::string pid;
  std::string number;
  words >> pid >> number;
  const int fd = ::open(("/proc/" + pid + "/fd/" + number).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(::ftruncate(fd, 0), 0) << "whoever reads it would get SIGBUS";
  ::close(fd);
}

// A root waits for nobody, so it is further when the others look at what it has put there.
TEST_F(SharedGroupTest, NobodyTakesWhatARootThatHasGoneOnMeantOtherwise) {
  const auto first = Enter(1, 0);
  const auto second = Enter(1, 1);
  LocalTeam root;
  root.peers = {0, 1};
  LocalTeam receiver = root;
  receiver.me = 1;
  float value = 1.5F;
  for (const uint64_t signature : {7, 8}) {
    root.signature = signature;
    ASSERT_TRUE(first->Broadcast(root, &value, sizeof value, 0, nullptr).ok());
  }
  receiver.signature = 9;
  int32_t got = -1;
  auto receiving = std::async(std::launch::async, [&] {
    return second->Broadcast(receiver, &got, sizeof got, 0, nullptr);
  });
  EXPECT_TRUE(WaitsFor(1, SharedSegment::NewsOf(0)));
  second->Abort();
  EXPECT_FALSE(receiving.get().ok());
  EXPECT_EQ(got, -1);
}

// As a barrier, which waits for all, among whom one is the root of a broadcast.
TEST_F(SharedGroupTest, WhoWaitsForAllDoesNotCountARootOfSomethingElse) {
  const auto first = Enter(1, 0);
  const auto second = Enter(1, 1);
  LocalTeam root;
  root.peers = {0, 1};
  LocalTeam other = root;
  other.me = 1;
  float value = 1.5F;
  for (const uint64_t signature : {7, 8}) {
    root.signature = signature;
    ASSERT_TRUE(first->Broadcast(root, &value, sizeof value, 0, nullptr).ok());
  }
  other.signature = 9;
  auto waiting = std::async(std::launch::async, [&] { return second->Barrier(other); });
  EXPECT_TRUE(WaitsFor(1, SharedSegment::NewsOf(0)));
  second->Abort();
  EXPECT_FALSE(waiting.get().ok());
}

// Two broadcasts take a root as far ahead as it may go; what comes next must not take the place of
// the first one, which the other member has not read.
TEST_F(SharedGroupTest, AQuickRootLeavesWhatASlowMemberStillNeeds) {
  const auto first = Enter(1, 0);
  const auto second = Enter(1, 1);
  constexpr size_t kCount = 1 << 16;  // Of float: several chunks.
  const auto run = [&](SharedGroup& group, int me) -> std::vector<float> {
    LocalTeam team;
    team.peers = {0, 1};
    team.me = me;
    float one = me == 0 ? 1.5F : 0;
    float two = me == 0 ? 2.5F : 0;
    std::vector<float> values(kCount, 1.0F + static_cast<float>(me));
    team.signature = 7;
    if (!group.Broadcast(team, &one, sizeof one, 0, nullptr).ok()) return {};
    team.signature = 8;
    if (!group.Broadcast(team, &two, sizeof two, 0, nullptr).ok()) return {};
    team.signature = 9;
    const ConstBuffer in{values.data(), kCount * sizeof(float)};
    const MutableBuffer out{values.data(), kCount * sizeof(float)};
    SharedGroup::Reduction reduction;
    reduction.members = 2;
    if (!group.AllReduce(team, {&in, 1}, {&out, 1}, kCount, reduction).ok()) return {};
    return {one, two, values.front(), values.back()};
  };
  auto quick = std::async(std::launch::async, [&] { return run(*first, 0); });
  EXPECT_TRUE(WaitsFor(0, SharedSegment::NewsOf(1)));
  auto slow = std::async(std::launch::async, [&] { return run(*second, 1); });
  if (slow.wait_for(seconds(10)) == std::future_status::timeout) {
    ADD_FAILURE() << "the slow member waits for what is not there any more";
    first->Abort();
    second->Abort();
  }
  const std::vector<float> expected{1.5F, 2.5F, 3.0F, 3.0F};
  EXPECT_EQ(quick.get(), expected);
  EXPECT_EQ(slow.get(), expected);
}

// Operations of all kinds and sizes in a random order, each member quick and slow by turns.
TEST_F(SharedGroupTest, RandomOperationsAreExactWhoeverIsSlow) {
  constexpr int kMembers = 3;
  constexpr int kOperations = 400;
  const auto run = [&](SharedGroup& group, int me, uint32_t seed) -> std::string {
    std::mt19937 same(seed);                                     // The same on all members,
    std::mt19937 own(seed * 7 + static_cast<uint32_t>(me) + 1);  // and each one's own.
    LocalTeam team;
    team.peers = {0, 1, 2};
    team.me = me;
    for (int i = 0; i < kOperations; ++i) {
      team.signature = 100 + static_cast<uint64_t>(i);
      // Not by giving its turn away: on a busy machine that takes ten thousand times as long.
      if (own() % 8 == 0) std::this_thread::sleep_for(microseconds(own() % 200));
      const uint32_t kind = same() % 4;
      const auto root = static_cast<int>(same() % kMembers);
      const size_t count = kind == 1 ? 1 + same() % 64 : 1 + same() % 60'000;
      const auto base = static_cast<float>(i % 1000);
      std::vector<float> values(count, base + static_cast<float>(me));
      const size_t bytes = count * sizeof(float);
      float expected = 3 * base + 3;
      Status status;
      if (kind == 0) {
        status = group.Broadcast(team, values.data(), bytes, root, nullptr);
        expected = base + static_cast<float>(root);
      } else if (kind == 3) {
        status = group.Barrier(team);
        expected = base + static_cast<float>(me);
      } else {
        const ConstBuffer in{values.data(), bytes};
        const MutableBuffer out{values.data(), bytes};
        SharedGroup::Reduction reduction;
        reduction.members = kMembers;
        status = group.AllReduce(team, {&in, 1}, {&out, 1}, count, reduction);
      }
      const std::string where = "operation " + std::to_string(i) + " of seed ";
      if (!status.ok()) return where + std::to_string(seed) + ": " + status.error().message;
      for (const float value : values) {
        if (value != expected) return where + std::to_string(seed) + ": a wrong value";
      }
    }
    return "";
  };
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    std::vector<std::unique_ptr<SharedGroup>> groups;
    for (int me = 0; me < kMembers; ++me)
      groups.push_back(Enter(seed, static_cast<size_t>(me), kMembers));
    std::vector<std::future<std::string>> running;
    for (int me = 0; me < kMembers; ++me) {
      running.push_back(
          std::async(std::launch::async, [&, me] { return run(*groups[me], me, seed); }));
    }
    for (auto& one : running) {
      if (one.wait_for(seconds(20)) == std::future_status::timeout)
        for (auto& group : groups) group->Abort();
      EXPECT_EQ(one.get(), "");
    }
  }
}

TEST_F(SharedGroupTest, NothingIsSentToWhoHasGoneOn) {
  const auto first = Enter(1, 0);
  std::vector<char> sent(kBytes, 'x');
  const Channel::Ticket ticket = first->Send(1, kKey, sent.data(), kBytes);
  const auto later = Enter(2, 1);
  const Status status = first->Wait(ticket);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kEpochChanged);
}

}  // namespace
}  // namespace troupe::groups
