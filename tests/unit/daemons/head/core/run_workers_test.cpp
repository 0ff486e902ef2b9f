// The workers of a run as a group of actors: what is special about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemons/head/core/actor_groups_rig.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class WorkersTest : public ActorGroupsTest {
 protected:
  void Make(uint32_t min_size, uint32_t size, uint32_t max_size, uint32_t first = 0) {
    actors::ActorGroupSpec spec = Spec(min_size, size, max_size);
    spec.of_run = true;
    spec.strategy = "strict_spread";
    ASSERT_TRUE(
        Did([&](ActorGroupActions& a) { return groups_.Create(now_, spec, a, first); }).ok());
  }
  template <class F>
  void Tell(F change) {
    (void)Did([&](ActorGroupActions& actions) {
      change(actions);
      return Status::Ok();
    });
  }
  void Close(bool closed) {
    Tell([&](auto& actions) { groups_.SetClosed("g", closed, actions); });
  }
};

TEST_F(WorkersTest, HaveNamesOfTheirOwnAndAreWantedTogether) {
  Make(2, 3, 4, 7);
  EXPECT_TRUE(lives_.contains("g/w7") && lives_.contains("g/w9"));
  EXPECT_EQ(at_least_, 2U);
  EXPECT_EQ(together_, "strict_spread");
  EXPECT_THAT(groups_.WaitingIn("g"), ElementsAre("g/w7", "g/w8", "g/w9"));
}

TEST_F(WorkersTest, WhoIsLostIsFollowedByAnotherHoweverFewAreLeft) {
  Make(2, 2, 2);
  AllAlive();
  Say("g/w0", ActorState::kDead, "killed as an actor");
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  Say("g/w1", ActorState::kDead, "killed as an actor");
  EXPECT_THAT(Numbers(false), ElementsAre(2, 3));
  Pass(seconds(10'000));
  EXPECT_FALSE(Look().ended);
  Say("g/w3", ActorState::kDead, "it can have no place");
  EXPECT_THAT(Numbers(false), ElementsAre(2)) << "it would be asked for again and again";
  Pass(seconds(1));
  EXPECT_THAT(Numbers(false), ElementsAre(2, 4));
}

// Its run knows how far it has come.
TEST_F(WorkersTest, WhoHasAProcessIsAskedToLeave) {
  Make(1, 3, 3);
  Say("g/w1", ActorState::kStarting);
  ASSERT_TRUE(Resize(1).ok());
  EXPECT_THAT(drained_, ElementsAre("g/w1"));
  EXPECT_THAT(ended_, ElementsAre("g/w2"));
  Die("g/w1");
  EXPECT_EQ(ended_.back(), "g/w1");
}

TEST_F(WorkersTest, AShrinkByNameIsFollowedByNobody) {
  Make(1, 3, 3);
  AllAlive();
  const auto shrink = [&](uint32_t member, Duration limit) {
    return Did(
        [&](ActorGroupActions& a) { return groups_.Shrink(now_, "g", member, "asked", limit, a); });
  };
  ASSERT_TRUE(shrink(0, kNoDrainLimit).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  Pass(seconds(10'000));
  EXPECT_THAT(ended_, IsEmpty()) << "it has all the time there is";
  ASSERT_TRUE(shrink(0, milliseconds(1'500)).ok());
  EXPECT_EQ(Look().size, 2U) << "it has left already";
  Pass(seconds(2));
  EXPECT_THAT(ended_, ElementsAre("g/w0"));
  EXPECT_TRUE(overdue_);
  EXPECT_EQ(why_ended_,
            "ended by force: it was still there 1.5 s after it was asked to leave: asked");
  ASSERT_TRUE(shrink(1, kNoDrainLimit).ok());
  EXPECT_EQ(shrink(2, kNoDrainLimit).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(WorkersTest, WhoLeavesByItselfTakesItsTimeAndIsFollowed) {
  Make(1, 2, 2);
  AllAlive();
  Tell([&](auto& actions) { groups_.Left("g/w0", "it has left", actions); });
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  Pass(seconds(10'000));
  EXPECT_THAT(drained_, IsEmpty());
  EXPECT_THAT(ended_, IsEmpty());
  Die("g/w0");
  EXPECT_THAT(ended_, ElementsAre("g/w0"));
}

TEST_F(WorkersTest, Ag7WhoHasFinishedStaysAndHasNoOtherLife) {
  Make(1, 3, 3);
  AllAlive();
  Tell([&](auto& actions) { groups_.Finished("g/w2", actions); });
  ASSERT_TRUE(Drain(2).ok());
  ASSERT_TRUE(Resize(1).ok());  // It is not in the way, and is none of those that may leave.
  EXPECT_THAT(drained_, ElementsAre("g/w1", "g/w0"));
  Die("g/w2");
  EXPECT_THAT(ended_, ElementsAre("g/w2"));
  Say("g/w2", ActorState::kDead);
  EXPECT_TRUE(groups_.MemberOf("g/w2"));
  Tell([&](auto& actions) { groups_.Missing(now_, "g/w2", actions); });
  EXPECT_TRUE(groups_.MemberOf("g/w2"));
}

TEST_F(WorkersTest, Ag7NobodyJoinsAClosedGroup) {
  Make(1, 3, 4);
  for (const char* actor : {"g/w0", "g/w1"}) Say(actor, ActorState::kAlive);
  Close(true);
  EXPECT_THAT(held_, ElementsAre("g/w2"));
  Die("g/w1");
  EXPECT_THAT(held_, ElementsAre("g/w1", "g/w2"));
  ASSERT_TRUE(Resize(4).ok());
  EXPECT_THAT(lives_, SizeIs(3));
  Close(false);
  EXPECT_THAT(held_, IsEmpty());
  EXPECT_THAT(lives_, SizeIs(4));
}

TEST_F(WorkersTest, TheYoungestLifeLeavesWhenItShrinks) {
  Make(1, 3, 3);
  AllAlive();
  Die("g/w0");
  Say("g/w0", ActorState::kAlive);
  ASSERT_TRUE(Resize(2).ok());
  EXPECT_THAT(drained_, ElementsAre("g/w0"));
}

TEST_F(WorkersTest, WhoIsMissingAfterARestartIsFollowedByAnother) {
  Make(1, 2, 2);
  const ActorGroupRecord record = *kept_;
  groups_ = ActorGroups();
  Tell([&](auto& actions) {
    groups_.Restore(now_, record, actions);
    for (const char* actor : {"g/w0", "g/w1"}) groups_.Missing(now_, actor, actions);
  });
  Pass(seconds(1));
  EXPECT_THAT(Numbers(false), ElementsAre(2, 3));
  EXPECT_EQ(at_least_, 1U) << "they are the first ones";
}

}  // namespace
}  // namespace troupe::daemons::testing
