// SC-11: CPU that is lent while its process waits, and taken back.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SchedulerLendingTest : public SchedulerTest {
 protected:
  void Lend(const std::string& id) { Do(sched::Lend{id}); }
  void TakeBack(const std::string& id) { Do(sched::TakeBack{id}); }
  double UsedCpu() const { return scheduler_.Nodes()[0].used.Get("CPU"); }
};

TEST_F(SchedulerLendingTest, LentCpuGoesToWhoWaits) {
  AddNode("a", {{"CPU", 1}});
  ASSERT_EQ(Ask("parent", {{"CPU", 1}}), "a");
  Run("parent");
  ASSERT_EQ(Ask("child", {{"CPU", 1}}), "waits");
  Lend("parent");
  EXPECT_THAT(Granted(), ElementsAre("child"));
  Lend("parent");  // A repeat.
  EXPECT_EQ(UsedCpu(), 1);
}

TEST_F(SchedulerLendingTest, ATakenBackCpuMayOvercommitAndNothingThatNeedsCpuComesThen) {
  AddNode("a", {{"CPU", 2}});
  ASSERT_EQ(Ask("parent", {{"CPU", 2}}), "a");
  Run("parent");
  Lend("parent");
  ASSERT_EQ(Ask("child", {{"CPU", 1}}), "a");
  Run("child");
  TakeBack("parent");
  TakeBack("parent");
  EXPECT_EQ(UsedCpu(), 3);
  EXPECT_EQ(Ask("next", {{"CPU", 1}}), "waits");
  EXPECT_THAT(Reason("next"), HasSubstr("0 of 2 free"));
  EXPECT_EQ(Ask("idle", {}), "a");  // It needs none.
  Release("child");
  EXPECT_THAT(Granted(), IsEmpty());
  Release("parent");
  EXPECT_THAT(Granted(), ElementsAre("next"));
  EXPECT_EQ(UsedCpu(), 1);
}

TEST_F(SchedulerLendingTest, OnlyCpuIsLent) {
  AddNode("a", {{"CPU", 1}, {"GPU", 1}, {"memory", 10}, {"licence", 1}});
  ASSERT_EQ(Ask("x", {{"CPU", 1}, {"GPU", 1}, {"memory", 10}, {"licence", 1}}), "a");
  Run("x");
  ASSERT_EQ(Ask("gpu", {{"GPU", 1}}), "waits");
  ASSERT_EQ(Ask("memory", {{"memory", 1}}), "waits");
  ASSERT_EQ(Ask("licence", {{"licence", 1}}), "waits");
  Lend("x");
  EXPECT_THAT(Granted(), IsEmpty());
}

TEST_F(SchedulerLendingTest, WhatIsLentInABundleStaysInIt) {
  AddNode("a", {{"CPU", 1}});
  Do(Group("g", 1, {{"CPU", 1}}, PlacementStrategy::kPack));
  ASSERT_EQ(Ask(InGroup("parent", {{"CPU", 1}}, "g", 0)), "a");
  Run("parent");
  ASSERT_EQ(Ask("stranger", {{"CPU", 1}}), "waits");
  ASSERT_EQ(Ask(InGroup("child", {{"CPU", 1}}, "g")), "waits");
  Lend("parent");
  EXPECT_THAT(Granted(), ElementsAre("child"));
  TakeBack("parent");
  EXPECT_EQ(Ask(InGroup("second", {{"CPU", 1}}, "g")), "waits");
  Release("child");
  EXPECT_THAT(Granted(), IsEmpty());
  Release("parent");
  EXPECT_THAT(Granted(), ElementsAre("second"));
}

TEST_F(SchedulerLendingTest, WhoIsOverOrWaitsAgainLendsNothing) {
  AddNode("a", {{"CPU", 1}});
  ASSERT_EQ(Ask("x", {{"CPU", 1}}), "a");
  Lend("x");  // Granted only: its constructor may wait.
  Do(sched::NodeGone{"a", "power"});
  EXPECT_EQ(NodeOf("x"), "");
  Lend("x");  // Late.
  AddNode("a", {{"CPU", 1}});
  EXPECT_EQ(NodeOf("x"), "a");
  EXPECT_EQ(UsedCpu(), 1);
  Lend("x");
  Release("x");
  EXPECT_EQ(UsedCpu(), 0);
  TakeBack("x");
  EXPECT_EQ(UsedCpu(), 0);
}

TEST_F(SchedulerLendingTest, WhoWaitsForRoomIsNamedUnlessItIsImpossible) {
  AddNode("a", {{"CPU", 1}});
  ASSERT_EQ(Ask("x", {{"CPU", 1}}), "a");
  EXPECT_THAT(scheduler_.WaitingForRoom(9), IsEmpty());
  (void)Ask("huge", {{"CPU", 100}});
  (void)Ask("one", {{"CPU", 1}});
  (void)Ask("like-one", {{"CPU", 1}});
  Do(Group("g", 1, {{"CPU", 1}}, PlacementStrategy::kPack));
  EXPECT_THAT(scheduler_.WaitingForRoom(9), ElementsAre("one", "g"));
  EXPECT_THAT(scheduler_.WaitingForRoom(2), ElementsAre("one"));
}

// The parent waited and the child ran when the head ended: both go on.
TEST_F(SchedulerLendingTest, AfterARestartAllThatRunsIsClaimed) {
  Do(sched::Recover{now_ + seconds(5)});
  AddNode("a", {{"CPU", 1}});
  Do(sched::Claim{Lease("parent", {{"CPU", 1}}), "a", sched::kAnyBundle, {}});
  Do(sched::Claim{Lease("child", {{"CPU", 1}}), "a", sched::kAnyBundle, {}});
  EXPECT_EQ(Refusal(), "");
  Do(sched::Recover{now_});
  EXPECT_EQ(UsedCpu(), 2);
  Lend("parent");
  EXPECT_EQ(UsedCpu(), 1);
}

}  // namespace
}  // namespace troupe
