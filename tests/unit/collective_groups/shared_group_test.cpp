// Two members' ends of shared memory in one process.
#include "collective_groups/internal/shared_group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <sstream>
#include <string>
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
