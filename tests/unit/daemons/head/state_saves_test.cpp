// Of what actors save a bounded number of bytes waits for a store, whatever that does.
#include "daemons/head/state_saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class StateSavesTest : public ::testing::Test {
 protected:
  ~StateSavesTest() override { lane_.Stop(); }
  // As the head does with what comes.
  bool Save(const std::string& key, uint64_t version, const std::string& value) {
    if (!saves_.Takes(key, {1, version}, value.size())) return false;
    saves_.Add(key, {1, version}, value, [this, key, version](const Status& status) {
      done_.push_back(key + std::to_string(version) + (status.ok() ? "" : " failed"));
    });
    return true;
  }
  void Offer(const std::string& key, uint64_t version, size_t bytes = kLarge) {
    saves_.Offer(key, {1, version}, bytes, [this, key, version] {
      sent_for_.push_back(key + std::to_string(version));
      return !gone_.contains(key);
    });
  }
  // What was sent for comes.
  void Come(const std::string& key, uint64_t version, size_t bytes = kLarge) {
    EXPECT_TRUE(Save(key, version, std::string(bytes, 'x'))) << key << version;
  }
  // The store hangs until the promise is kept.
  std::promise<void> Hang() {
    std::promise<void> go;
    (void)lane_.Post([wait = go.get_future().share()] { wait.wait(); });
    return go;
  }
  void Settle() { ASSERT_TRUE(SettleLane(lane_, transport_)); }

  void Pass(Duration d) {
    const Time end = clock_.Now() + d;
    while (transport_.RunTimer(end)) {
    }
  }

  static constexpr size_t kLarge = size_t{10} << 20;
  std::vector<std::string> sent_for_;
  std::set<std::string> gone_;  // Nobody is there who could send it.
  FakeClock clock_;
  ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
  StateSaves saves_{&transport_.loop(), &lane_, &store_, seconds(1000)};
  std::vector<std::string> done_;
};

TEST_F(StateSavesTest, OfAnActorTheNewestIsKeptAndNoRepeatWaits) {
  std::promise<void> go = Hang();
  EXPECT_TRUE(Save("a", 1, "one"));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Save("a", 1, "one"));
  for (uint64_t version = 2; version < 50; ++version) {
    EXPECT_TRUE(Save("a", version, "newer"));
    EXPECT_FALSE(Save("a", version, "newer"));
  }
  EXPECT_TRUE(Save("a", 50, "newest"));
  EXPECT_LT(saves_.bytes(), 20U);
  go.set_value();
  Settle();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "a50"}));
  EXPECT_EQ(**store_.Get("a"), "newest");
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, LargeOnesAreSentForInTheirOrderWhenThereIsRoom) {
  std::promise<void> go = Hang();
  for (const char* key : {"a", "b", "c"}) Offer(key, 1);
  EXPECT_THAT(sent_for_, ElementsAre("a1"));
  Come("a", 1);
  for (int i = 0; i < 100; ++i) {
    for (const char* key : {"a", "b", "c"}) Offer(key, 1);  // Repeats.
  }
  EXPECT_THAT(sent_for_, ElementsAre("a1"));
  EXPECT_LE(saves_.bytes(), kSavesBytesMax);
  go.set_value();
  Settle();
  EXPECT_THAT(sent_for_, ElementsAre("a1", "b1"));
  Come("b", 1);
  Settle();
  Come("c", 1);
  Settle();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "b1", "c1"}));
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, ALargeOneThatNobodySentForIsNotTaken) {
  EXPECT_FALSE(Save("a", 1, std::string(kLarge, 'x')));
  Offer("a", 2);
  EXPECT_FALSE(Save("a", 1, std::string(kLarge, 'x')));
  Come("a", 2);
}

TEST_F(StateSavesTest, SmallOnesHaveRoomBesideLargeOnesAndNotMoreThanTheirs) {
  std::promise<void> go = Hang();
  Offer("large", 1, kSavesBytesMax);
  Come("large", 1, kSavesBytesMax);
  const std::string small(actors::kDirectStateBytesMax, 'x');
  int taken = 0;
  for (int i = 0; i < 1000; ++i) taken += Save("k" + std::to_string(i), 1, small) ? 1 : 0;
  EXPECT_EQ(taken, static_cast<int>(kDirectSavesBytesMax / actors::kDirectStateBytesMax));
  EXPECT_EQ(saves_.bytes(), kSavesBytesMax + kDirectSavesBytesMax);
  go.set_value();
  Settle();
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, WhoIsSentForAndIsSilentOrGoneHoldsNobodyUp) {
  gone_ = {"gone"};
  Offer("silent", 1);
  Offer("gone", 1);
  Offer("a", 1);
  EXPECT_THAT(sent_for_, ElementsAre("silent1"));
  Pass(kSaveComesWithin);
  EXPECT_THAT(sent_for_, ElementsAre("silent1", "gone1", "a1"));
  EXPECT_FALSE(Save("silent", 1, std::string(kLarge, 'x')));  // Too late: it is offered again.
  Come("a", 1);
  Offer("silent", 1);
  Settle();
  EXPECT_EQ(sent_for_.back(), "silent1");
  Come("silent", 1);
  Pass(kSaveComesWithin);  // The time of a promise that was kept means nothing.
  Settle();
  EXPECT_EQ(done_, (std::vector<std::string>{"a1", "silent1"}));
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, AnOfferIsRepeatedUntilTheStateIsHereAndANewerOneTakesItsPlace) {
  Offer("a", 1);
  Offer("a", 1);  // Either message may be lost.
  EXPECT_THAT(sent_for_, ElementsAre("a1", "a1"));
  Offer("a", 2);
  EXPECT_THAT(sent_for_, ElementsAre("a1", "a1", "a2"));
  EXPECT_EQ(saves_.bytes(), kLarge);
  Offer("a", 1);  // Late.
  EXPECT_THAT(sent_for_, SizeIs(3));
  EXPECT_FALSE(Save("a", 1, std::string(kLarge, 'x')));
  Come("a", 2);
  Offer("a", 2);
  EXPECT_THAT(sent_for_, SizeIs(3));
  Settle();
  EXPECT_EQ(done_, std::vector<std::string>{"a2"});
  EXPECT_EQ(saves_.bytes(), 0U);
}

TEST_F(StateSavesTest, TheRoomOfWhatIsNotSentAnyMoreIsForTheNextAtOnce) {
  Offer("a", 1);
  Offer("b", 1);
  EXPECT_THAT(sent_for_, ElementsAre("a1"));
  Offer("a", 2);
  EXPECT_THAT(sent_for_, ElementsAre("a1", "b1"));
  EXPECT_EQ(saves_.bytes(), kLarge);
  Come("b", 1);
  Settle();
  EXPECT_THAT(sent_for_, ElementsAre("a1", "b1", "a2"));
}

TEST_F(StateSavesTest, WhoWaitsForTheStoreWaitsForOneSaveAtMost) {
  std::promise<void> go = Hang();
  for (int i = 0; i < 100; ++i) (void)Save("k" + std::to_string(i), 1, "state");
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
  EXPECT_TRUE(Save("a", 1, "one"));
  Settle();
  EXPECT_EQ(done_, std::vector<std::string>{"a1 failed"});
  store_.SetAvailable(true);
  EXPECT_TRUE(Save("a", 1, "one"));
  Settle();
  EXPECT_EQ(done_.back(), "a1");
}

}  // namespace
}  // namespace troupe::daemons::testing
