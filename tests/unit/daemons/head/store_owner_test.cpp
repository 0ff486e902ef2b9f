#include "daemons/head/store_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/transport.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons {
namespace {

using ::testing::HasSubstr;

class StoreOwnerTest : public ::testing::Test {
 protected:
  ~StoreOwnerTest() override { lane_.Stop(); }
  void Pass(Duration d) {
    const Time end = clock_.Now() + d;
    while (transport_.RunTimer(end)) ASSERT_TRUE(testing::SettleLane(lane_, transport_));
    ASSERT_TRUE(testing::SettleLane(lane_, transport_));
  }

  FakeClock clock_;
  testing::ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
};

TEST_F(StoreOwnerTest, TheNextHeadOfASupervisorTakesOverAtOnceAndAnotherOneWhenTheLeaseIsOver) {
  EXPECT_TRUE(StoreOwner(&store_, "one", "key").Take().ok());
  EXPECT_TRUE(StoreOwner(&store_, "one", "key").Take().ok());
  StoreOwner standby(&store_, "two", "key");
  EXPECT_THAT(standby.Take().error().message, HasSubstr("another head keeps its records"));
  EXPECT_EQ(standby.Take().error().code, ErrorCode::kUnavailable) << "to be tried again";
  clock_.Advance(kOwnerLease + milliseconds(1));
  EXPECT_TRUE(standby.Take().ok());
}

TEST_F(StoreOwnerTest, AHeadThatLivesKeepsItAndOneThatLostItIsTold) {
  StoreOwner owner(&store_, "one", "key");
  ASSERT_TRUE(owner.Take().ok());
  bool lost = false;
  transport_.loop().Post([&] { owner.Keep(&transport_.loop(), &lane_, [&] { lost = true; }); });
  Pass(seconds(60));
  EXPECT_FALSE(lost);
  EXPECT_FALSE(StoreOwner(&store_, "two", "key").Take().ok());
  store_.SetAvailable(false);
  Pass(seconds(60));
  EXPECT_FALSE(lost) << "nobody else has it";
  store_.SetAvailable(true);
  EXPECT_TRUE(StoreOwner(&store_, "two", "key").Take().ok());
  Pass(seconds(5));
  EXPECT_TRUE(lost);
}

TEST_F(StoreOwnerTest, RecordsOfAnotherClusterAreLeftAlone) {
  ASSERT_TRUE(StoreOwner(&store_, "one", "key").Take().ok());
  clock_.Advance(seconds(1000));
  const Status refused = StoreOwner(&store_, "two", "other key").Take();
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(refused.error().message, HasSubstr("of a cluster with another key"));
}

TEST_F(StoreOwnerTest, ForgettingLeavesWhatOthersKeep) {
  StoreOwner owner(&store_, "one", "key");
  ASSERT_TRUE(owner.Take().ok());
  for (const char* key :
       {"job/a/spec", "actor/b/life", "group/a/epoch", "collective/c", "actor_group/d",
        "placement_group/e", "actor_state/b", "b:job/c/spec", "jobs"})
    ASSERT_TRUE(store_.Put(key, "x", Store::kNoExpiry).ok());
  ASSERT_TRUE(owner.Forget().ok());
  for (const char* key : {"job/a/spec", "actor/b/life", "group/a/epoch", "collective/c",
                          "actor_group/d", "placement_group/e", "actor_state/b", "head/owner"})
    EXPECT_FALSE(store_.Get(key)->has_value()) << key;
  for (const char* key : {"b:job/c/spec", "jobs"}) EXPECT_TRUE(store_.Get(key)->has_value()) << key;
}

}  // namespace
}  // namespace troupe::daemons
