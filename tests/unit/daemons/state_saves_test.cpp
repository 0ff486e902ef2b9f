// Of what actors save a bounded number of bytes waits for a store, whatever that does.
#include "daemons/state_saves.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {
namespace {

class StateSavesTest : public ::testing::Test {
 protected:
  ~StateSavesTest() override { lane_.Stop(); }
  // As the head does with what comes.
  bool Offer(const std::string& key, uint64_t version, const std::string& value) {
    if (!saves_.Wants(key, {1, version}, value.size())) return false;
    saves_.Add(key, {1, version}, value, [this, key, version](const Status& status) {
      done_.push_back(key + std::to_string(version) + (status.ok() ? "" : " failed"));
    });
    return true;
  }
  // The store hangs until the promise is kept.
  std::promise<void> Hang() {
    std::promise<void> go;
    (void)lane_.Post([wait = go.get_future().share()] { wait.wait(); });
    return go;
  }
  void Settle() { ASSERT_TRUE(SettleLane(lane_, transport_)); }

  FakeClock clock_;
  ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
  StateSaves saves_{&transport_.loop(), &lane_, &store_, seconds(1000)};
  std::vector<std::string> done_;
};

TEST_F(StateSavesTest, OfAnActorTheNewestIsKeptAndNoRepeatWaits) {
  std::promise<void> go = Hang();
  EXPECT_TRUE(Offer("a", 1, "one"));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Offer("a", 1, "one"));
  for (uint64_t version = 2; version < 50; ++version) {
    EXPECT_TRUE(Offer("a", version, "newer"));
    EXPECT_FALSE(Offer("a", version, "newer"));
  }
  EXPECT_TRUE(Offer("a", 50, "newest"));
  EXPECT_LT(saves_.bytes(), 20U);
  go.set_value();
  Settle();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "a50"}));
  EXPECT_EQ(**store_.Get("a"), "newest");
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, WhatHasNoRoomIsNotTakenAndALargeOneGoesAlone) {
  std::promise<void> go = Hang();
  const std::string large(size_t{10} << 20, 'x');
  EXPECT_TRUE(Offer("a", 1, large));
  for (const char* other : {"b", "c", "d"}) EXPECT_FALSE(Offer(other, 1, large));
  EXPECT_TRUE(Offer("e", 1, "small"));
  EXPECT_LE(saves_.bytes(), kSavesBytesMax);
  go.set_value();
  Settle();
  EXPECT_TRUE(Offer("b", 1, large));
  Settle();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "e1", "b1"}));
}

TEST_F(StateSavesTest, WhoWaitsForTheStoreWaitsForOneSaveAtMost) {
  std::promise<void> go = Hang();
  for (int i = 0; i < 100; ++i) (void)Offer("k" + std::to_string(i), 1, "state");
  size_t before_epoch = 0;
  (void)lane_.Post([&] {
    for (int i = 0; i < 100; ++i)
      before_epoch += store_.Get("k" + std::to_string(i))->has_value() ? 1 : 0;
  });
  go.set_value();
  Settle();
  EXPECT_LE(before_epoch, 1U);
  EXPECT_EQ(done_.size(), 100U);
}

TEST_F(StateSavesTest, AStoreThatIsAwayIsTriedAgainByTheRepeat) {
  store_.SetAvailable(false);
  EXPECT_TRUE(Offer("a", 1, "one"));
  Settle();
  EXPECT_EQ(done_, std::vector<std::string>{"a1 failed"});
  store_.SetAvailable(true);
  EXPECT_TRUE(Offer("a", 1, "one"));
  Settle();
  EXPECT_EQ(done_.back(), "a1");
}

}  // namespace
}  // namespace troupe::daemons::testing
