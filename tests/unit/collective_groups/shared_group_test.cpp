// Two members' ends of shared memory in one process.
#include "collective_groups/internal/shared_group.h"

#include <gtest/gtest.h>

#include <future>
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
  const uint32_t bell = segments_[0]->header().doorbell.load();
  arrive(2);
  ASSERT_TRUE(WaitsFor(2, middle));
  EXPECT_EQ(segments_[0]->header().doorbell.load(), bell);
  arrive(1);
  for (auto& barrier : barriers) EXPECT_TRUE(barrier.get().ok());
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
