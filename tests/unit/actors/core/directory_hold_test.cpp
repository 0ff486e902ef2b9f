// What those tell the directory that an actor works for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/actors/core/directory_rig.h"

namespace troupe::actors::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(DirectoryTest, WhatOthersKnowOfALifeCountsForTheBackOff) {
  ActorSpec spec = Spec("a", -1);
  spec.backoff_ms = 1'000;
  Alive(spec);
  const auto died = [&](uint64_t incarnation) {
    Die("a", incarnation);
    return directory_.next_wake() - now_;
  };
  const auto lives = [&](uint64_t incarnation) {
    Tick(seconds(2));
    Place("a", incarnation);
    Ready("a", incarnation);
  };
  EXPECT_EQ(died(1), Duration{});
  lives(2);
  EXPECT_EQ(died(2), seconds(1));
  directory_.Forgive(now_, "a", 1);  // Another one.
  EXPECT_EQ(directory_.next_wake(), now_ + seconds(1));
  directory_.Forgive(now_, "a", 2);
  EXPECT_EQ(directory_.next_wake(), now_);
  lives(3);
  EXPECT_EQ(died(3), seconds(1)) << "as if the one before had not been";
  lives(4);
  directory_.Proven("a");
  EXPECT_EQ(died(4), Duration{});
}

TEST_F(DirectoryTest, WhoIsHeldBeginsNoLifeAndAsksForNoRoom) {
  ASSERT_TRUE(Create(Spec("a", -1)).ok());
  (void)Done();
  directory_.Hold(now_, "a", actions_);
  EXPECT_THAT(Done(), ElementsAre("drop a#1", "keep a", "tell a"));
  directory_.Hold(now_, "a", actions_);
  Tick(seconds(100));
  EXPECT_THAT(Done(), IsEmpty());
  directory_.Release(now_, "a");
  Tick();
  EXPECT_THAT(Done(), Contains("want a#1"));
  Place("a");
  Ready("a");
  directory_.Hold(now_, "a", actions_);  // The life that there is goes on.
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Die("a");
  (void)Done();
  Tick(seconds(100));
  EXPECT_THAT(Done(), IsEmpty());
  directory_.Release(now_, "a");
  Tick();
  EXPECT_THAT(Done(), Contains("want a#2"));
}

}  // namespace
}  // namespace troupe::actors::testing
