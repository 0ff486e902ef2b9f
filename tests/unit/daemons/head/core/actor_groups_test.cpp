// The groups of actors as a state machine. Random lives of their members: tests/sim/actor_groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/unit/daemons/head/core/actor_groups_rig.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ActorGroupsTest, MembersAreWantedTogether) {
  ASSERT_TRUE(Make(2, 3, 5).ok());
  EXPECT_THAT(lives_, SizeIs(3));
  EXPECT_EQ(at_least_, 2U);
  EXPECT_THAT(Events(), ElementsAre("added 0", "added 1", "added 2"));
  AllAlive();
  EXPECT_THAT(Events(3), ElementsAre("alive 0", "alive 1", "alive 2"));
  ASSERT_TRUE(Make(2, 3, 5).ok());  // A repeat.
  EXPECT_THAT(lives_, SizeIs(3));
}

TEST_F(ActorGroupsTest, WhatCannotBeIsRefused) {
  for (const auto& [least, start, most] :
       std::vector<std::array<uint32_t, 3>>{{0, 1, 1}, {2, 1, 2}, {1, 3, 2}, {1, 65, 65}})
    EXPECT_EQ(Make(least, start, most).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(Make(1, 1, 1).ok());
  actors::ActorGroupSpec other = Spec(1, 1, 1, "other");
  other.name = "name of g";
  ActorGroupActions actions;
  EXPECT_EQ(groups_.Create(now_, other, actions).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(groups_.Resize(now_, "nothing", 1, "", kDrainLimit, actions).error().code,
            ErrorCode::kNotFound);
  EXPECT_THAT(Resize(2).error().message, HasSubstr("it has 1 to 1 members"));
  EXPECT_EQ(Drain(7).error().code, ErrorCode::kNotFound);
}

TEST_F(ActorGroupsTest, WhoDiesIsTheSameMemberWhenItIsBack) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  AllAlive();
  const uint64_t since = Look().sequence;
  Die("g-1");
  EXPECT_EQ(Look().members[1].state, GroupMemberState::kRestarting);
  EXPECT_THAT(Look().reason, HasSubstr("killed by signal 9"));
  Say("g-1", ActorState::kAlive);
  EXPECT_THAT(Events(since), ElementsAre("died 1", "below_min", "alive 1"));
  EXPECT_EQ(Look().members[1].incarnation, 2U);
  EXPECT_EQ(Look().reason, "");
  Pass(seconds(10'000));
  EXPECT_FALSE(Look().ended);
}

TEST_F(ActorGroupsTest, WhoLeavesIsFollowedByAnother) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0).ok());
  ASSERT_TRUE(Drain(0).ok());
  EXPECT_THAT(drained_, ElementsAre("g-0"));
  EXPECT_THAT(Numbers(true), ElementsAre(0));
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));  // At once.
  EXPECT_THAT(ended_, IsEmpty());
  Say("g-0", ActorState::kDead, "it was asked to leave");
  EXPECT_EQ(Events().back(), "left 0");
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  EXPECT_TRUE(Drain(0).ok());  // It has.
}

TEST_F(ActorGroupsTest, WhoDoesNotLeaveIsEnded) {
  ASSERT_TRUE(Make(1, 1, 1).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0, seconds(10)).ok());
  Pass(seconds(9));
  EXPECT_THAT(ended_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(ended_, ElementsAre("g-0"));
}

TEST_F(ActorGroupsTest, WhoDiesWhileItLeavesDoesNotComeBack) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  AllAlive();
  ASSERT_TRUE(Drain(1).ok());
  Die("g-1");
  EXPECT_THAT(ended_, ElementsAre("g-1"));
}

TEST_F(ActorGroupsTest, TheYoungestLeaveWhenItShrinks) {
  ASSERT_TRUE(Make(1, 4, 4).ok());
  for (const char* actor : {"g-0", "g-2", "g-3"}) Say(actor, ActorState::kAlive);
  ASSERT_TRUE(Resize(2).ok());
  EXPECT_THAT(ended_, ElementsAre("g-1"));  // It does nothing yet.
  EXPECT_THAT(drained_, ElementsAre("g-3"));
  EXPECT_THAT(Numbers(false), ElementsAre(0, 2));
  ASSERT_TRUE(Resize(4).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(0, 2, 4, 5));
}

TEST_F(ActorGroupsTest, WhoHasEndedForGoodIsLost) {
  ASSERT_TRUE(Make(2, 3, 3).ok());
  AllAlive();
  Say("g-0", ActorState::kDead, "it has exited");
  EXPECT_EQ(Events().back(), "lost 0");
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  ASSERT_TRUE(Resize(3).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2, 3));
}

TEST_F(ActorGroupsTest, ItEndsWithTooFewMembers) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  AllAlive();
  Say("g-0", ActorState::kDead, "it raised in its constructor");
  EXPECT_TRUE(Look().ended);
  EXPECT_THAT(Look().reason, HasSubstr("it raised in its constructor"));
  EXPECT_THAT(ended_, ElementsAre("g-1"));
  EXPECT_FALSE(kept_);
  EXPECT_EQ(Resize(2).error().code, ErrorCode::kPeerGone);
  Pass(actors::kDeadKept + seconds(2));
  EXPECT_EQ(groups_.StatusOf("g", 0).error().code, ErrorCode::kNotFound);
}

TEST_F(ActorGroupsTest, ItEndsWhenItIsTooSmallForTooLong) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  Pass(seconds(10'000));
  EXPECT_FALSE(Look().ended);  // It waits for room as long as it takes.
  AllAlive();
  Die("g-1");
  Pass(seconds(599));
  EXPECT_FALSE(Look().ended);
  Pass(seconds(2));
  EXPECT_THAT(Look().reason, HasSubstr("1 of at least 2 members are alive"));
  EXPECT_TRUE(Look().ended);
}

TEST_F(ActorGroupsTest, NobodyWaitsForThoseThatHaveReturned) {
  ASSERT_TRUE(Make(1, 3, 3).ok());
  AllAlive();
  const auto begin = [&] {
    (void)Did([&](ActorGroupActions& actions) {
      groups_.RunBegins("g", actions);
      return Status::Ok();
    });
  };
  begin();
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
  groups_.Returned(now_, "g", 1);
  Pass(kReturnGrace - seconds(1));
  groups_.Returned(now_, "g", 2);
  EXPECT_THAT(dismissed_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(dismissed_, ElementsAre("g-0"));
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, ElementsAre("g-0"));  // Once.
  begin();
  EXPECT_THAT(dismissed_, IsEmpty());
  for (const uint32_t member : {0U, 1U, 2U}) groups_.Returned(now_, "g", member);
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
  begin();
  ASSERT_TRUE(Drain(0, seconds(1'000)).ok());
  groups_.Returned(now_, "g", 0);  // As it was told to; the others go on.
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
}

TEST_F(ActorGroupsTest, ItEndsWithItsOwner) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  (void)Did([&](ActorGroupActions& actions) {
    groups_.OwnerGone(now_, "driver/2", actions);
    return Status::Ok();
  });
  EXPECT_FALSE(Look().ended);
  (void)Did([&](ActorGroupActions& actions) {
    groups_.OwnerGone(now_, "driver/1", actions);
    return Status::Ok();
  });
  EXPECT_TRUE(Look().ended);
  EXPECT_THAT(ended_, SizeIs(2));
  EXPECT_TRUE(Make(1, 2, 2).ok());  // A late repeat makes no other one.
  EXPECT_THAT(lives_, SizeIs(2));
}

TEST_F(ActorGroupsTest, AnotherHeadGoesOn) {
  ASSERT_TRUE(Make(1, 2, 4).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0).ok());
  const uint64_t since = Look().sequence;
  const ActorGroupRecord record = *kept_;
  groups_ = ActorGroups();
  ActorGroupActions actions;
  groups_.Restore(now_, record, actions);
  EXPECT_GT(Look().sequence, since);
  EXPECT_THAT(Numbers(true), ElementsAre(0));
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  drained_.clear();
  Say("g-0", ActorState::kAlive);
  EXPECT_THAT(drained_, ElementsAre("g-0"));  // The word may have been lost with the other head.
  ASSERT_TRUE(Resize(4).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2, 3, 4));
}

TEST_F(ActorGroupsTest, WhoIsLateIsToldWhatItHasMissed) {
  ASSERT_TRUE(Make(1, 1, 2).ok());
  AllAlive();
  for (size_t i = 0; i < kGroupEventsKept; ++i) {
    Die("g-0");
    Say("g-0", ActorState::kAlive);
  }
  const ActorGroupStatus all = Look(2);
  EXPECT_THAT(all.events, SizeIs(kGroupEventsKept));
  EXPECT_EQ(all.missed, all.sequence - 2 - kGroupEventsKept);
  EXPECT_EQ(Look(all.sequence).missed, 0U);
}

}  // namespace
}  // namespace troupe::daemons::testing
