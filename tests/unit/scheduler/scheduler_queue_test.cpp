// Gangs, starvation and promises.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SchedulerQueueTest : public SchedulerTest {
 protected:
  static sched::RequestGang Gang(size_t size, const Amounts& each, PlacementStrategy strategy,
                                 size_t at_least = 1000) {
    sched::RequestGang gang{{}, strategy, at_least};
    for (size_t i = 0; i < size; ++i) gang.leases.push_back(Lease("g" + std::to_string(i), each));
    return gang;
  }
  void Nodes(int count, const Amounts& each) {
    for (int i = 0; i < count; ++i) AddNode(std::string(1, static_cast<char>('a' + i)), each);
  }
  // Keeps short leases coming: one ends and one is asked for, each `every`.
  void Stream(int count, const Amounts& need, Duration every) {
    for (int i = 0; i < count; ++i) {
      Pass(every);
      const std::string id = "s" + std::to_string(++streamed_);
      if (streamed_ > 2) Release("s" + std::to_string(streamed_ - 2));
      if (Ask(id, need) != "waits") Run(id);
    }
  }
  int streamed_ = 0;
};

TEST_F(SchedulerQueueTest, AGangIsGrantedWholeOrNotAtAll) {
  Nodes(2, {{"CPU", 2}});
  Do(Gang(5, {{"CPU", 1}}, PlacementStrategy::kPack));
  EXPECT_THAT(last_.granted, IsEmpty());
  for (const auto& node : scheduler_.Nodes()) EXPECT_TRUE(node.used.empty());
  EXPECT_THAT(Reason("g3"), HasSubstr("impossible on the present nodes: only 4 of 5 fit; the next "
                                      "needs CPU 1; best node a lacks CPU 1 (0 of 2 free)"));
  AddNode("c", {{"CPU", 1}});
  EXPECT_THAT(last_.granted, SizeIs(5));
}

TEST_F(SchedulerQueueTest, AtLeastSoManyAndTheOthersFollow) {
  Nodes(2, {{"CPU", 2}});
  Ask("x", {{"CPU", 2}});
  Do(Gang(4, {{"CPU", 1}}, PlacementStrategy::kPack, 3));
  EXPECT_THAT(last_.granted, IsEmpty());
  AddNode("c", {{"CPU", 1}});
  EXPECT_THAT(last_.granted, SizeIs(3));
  Release("x");
  EXPECT_THAT(last_.granted, SizeIs(1));
}

TEST_F(SchedulerQueueTest, StrictGangs) {
  Nodes(3, {{"CPU", 2}});
  Do(Gang(2, {{"CPU", 1}}, PlacementStrategy::kStrictPack));
  EXPECT_EQ(NodeOf("g0") + NodeOf("g1"), "aa");
  Release("g0");
  Release("g1");
  Do(Gang(4, {{"CPU", 1}}, PlacementStrategy::kStrictSpread, 2));
  EXPECT_EQ(NodeOf("g0") + NodeOf("g1") + NodeOf("g2") + NodeOf("g3"), "abc");
  EXPECT_THAT(Reason("g3"), HasSubstr("already holds one of these"));
  Do(sched::NodeGone{"b", ""});  // Its member had not begun and takes another node.
  EXPECT_EQ(NodeOf("g1"), "");
  AddNode("d", {{"CPU", 2}});
  EXPECT_EQ(NodeOf("g1"), "d");
}

TEST_F(SchedulerQueueTest, TheRestOfAStrictPackFollowsOnlyThere) {
  Nodes(2, {{"CPU", 2}});
  Do(Gang(2, {{"CPU", 1}}, PlacementStrategy::kStrictPack));
  Run("g0");
  now_ = now_ + seconds(10);
  Do(sched::Wake{});  // g1 was not confirmed, so a is quarantined.
  EXPECT_EQ(NodeOf("g1"), "");
  Release("g0");  // Now it is bound to nothing.
  EXPECT_EQ(NodeOf("g1"), "b");
}

TEST_F(SchedulerQueueTest, BadGangsAreRefused) {
  Nodes(1, {{"CPU", 2}});
  Do(Gang(0, {}, PlacementStrategy::kPack));
  EXPECT_THAT(Refusal(), HasSubstr("a gang has 1 to 10000 leases"));
  auto gang = Gang(2, {{"CPU", 1}}, PlacementStrategy::kPack);
  gang.leases[1].priority = 3;
  Do(gang);
  EXPECT_THAT(Refusal(), HasSubstr("have one priority"));
  gang = Gang(2, {{"CPU", 1}}, PlacementStrategy::kPack);
  gang.leases[1].id = "g0";
  Do(gang);
  EXPECT_THAT(Refusal(), HasSubstr("there is another lease \"g0\""));
  gang = Gang(2, {{"CPU", 1}}, PlacementStrategy::kPack);
  gang.leases[1].node = "a";
  Do(gang);
  EXPECT_THAT(Refusal(), HasSubstr("neither a node nor a placement group"));
  EXPECT_THAT(scheduler_.Leases(), IsEmpty());
}

TEST_F(SchedulerQueueTest, ALargeRequestIsNotStarvedBySmallOnes) {
  Nodes(1, {{"CPU", 2}});
  Stream(3, {{"CPU", 1}}, seconds(1));
  EXPECT_EQ(Ask("large", {{"CPU", 2}}), "waits");
  Stream(10, {{"CPU", 1}}, seconds(1));
  EXPECT_EQ(NodeOf("large"), "");
  EXPECT_THAT(scheduler_.Promises(), IsEmpty());
  Stream(20, {{"CPU", 1}}, seconds(1));  // 30 s have passed since it was asked for.
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].lease, "large");
  EXPECT_EQ(Ask("late", {{"CPU", 1}}), "waits");
  EXPECT_THAT(Reason("late"), HasSubstr("busy: needs CPU 1; node a"));
  Stream(3, {{"CPU", 1}}, seconds(1));
  EXPECT_EQ(NodeOf("large"), "a");
  Release("large");
  EXPECT_EQ(NodeOf("late"), "a");
  EXPECT_THAT(scheduler_.Promises(), IsEmpty());
}

TEST_F(SchedulerQueueTest, WhatIsPromisedIsKeptAndWhatIsNotIsFree) {
  AddNode("a", {{"CPU", 4}, {"memory", 100}});
  Ask("runs", {{"CPU", 2}});
  Run("runs");
  Ask("large", {{"CPU", 3}});
  Pass(seconds(30));
  EXPECT_EQ(Ask("cpu", {{"CPU", 1}}), "waits");
  EXPECT_THAT(Reason("cpu"), HasSubstr("node a is promised: it waits behind large (priority 0)"));
  EXPECT_EQ(Ask("memory", {{"memory", 90}}), "a");
  EXPECT_EQ(Ask("urgent", {{"CPU", 1}}, 1), "a");  // A higher priority is not bound.
  Do(sched::Cancel{"large"});
  EXPECT_THAT(Granted(), ElementsAre("cpu"));
  EXPECT_THAT(scheduler_.Promises(), IsEmpty());
}

TEST_F(SchedulerQueueTest, AllThatComeBackAreHeldAgainstWhatIsPromisedToALaterOne) {
  AddNode("a", {{"CPU", 4}});
  AddNode("b", {{"CPU", 2}});
  Ask("runs", {{"CPU", 2}});
  Run("runs");
  Ask("large", {{"CPU", 4}});
  Pass(seconds(30));
  EXPECT_EQ(Ask("h1", {{"CPU", 1}}, 5) + Ask("h2", {{"CPU", 1}}, 5), "bb");
  EXPECT_EQ(Ask("low", {{"CPU", 1}}), "waits");  // It is bound by the promise, h1 and h2 are not.
  Pass(seconds(10));                             // They are not confirmed on b.
  EXPECT_EQ(NodeOf("h1") + NodeOf("h2") + NodeOf("low"), "aa");
}

TEST_F(SchedulerQueueTest, APartlyUsedGpuIsKeptToBecomeWhole) {
  AddNode("a", {{"GPU", 2}});
  Ask("whole", {{"GPU", 1}});
  Ask("share", {{"GPU", 0.5}});
  Run("whole");
  Run("share");
  Ask("large", {{"GPU", 2}});
  Pass(seconds(30));
  EXPECT_EQ(Ask("more", {{"GPU", 0.5}}), "waits");
  Release("share");
  EXPECT_EQ(NodeOf("more"), "");
  Release("whole");
  EXPECT_EQ(NodeOf("large"), "a");
}

TEST_F(SchedulerQueueTest, APromiseMovesWhenItsNodeIsLost) {
  Nodes(2, {{"CPU", 2}});
  for (int i = 0; i < 4; ++i) {
    Ask("r" + std::to_string(i), {{"CPU", 1}});
    Run("r" + std::to_string(i));
  }
  Ask("large", {{"CPU", 2}});
  Pass(seconds(30));
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].node, "a");
  Do(sched::NodeGone{"a", ""});
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].node, "b");
}

TEST_F(SchedulerQueueTest, ANodeThatFitsNearlyIsPromised) {
  Nodes(2, {{"CPU", 4}});
  AddNode("tiny", {{"CPU", 1}});
  Ask("a4", {{"CPU", 4}});
  Ask("b4", {{"CPU", 3}});
  Run("a4");
  Run("b4");
  Ask("large", {{"CPU", 2}});
  Pass(seconds(30));
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].node, "b");
}

TEST_F(SchedulerQueueTest, TheImpossibleIsPromisedNothingAndHoldsNobodyUp) {
  Nodes(1, {{"CPU", 2}});
  Ask("runs", {{"CPU", 1}});
  Run("runs");
  Ask("impossible", {{"CPU", 3}});
  Ask("large", {{"CPU", 2}});
  Pass(seconds(30));
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].lease, "large");
}

TEST_F(SchedulerQueueTest, AGroupIsPromisedANodeForEachBundle) {
  Nodes(2, {{"CPU", 2}});
  for (int i = 0; i < 4; ++i) {
    Ask("r" + std::to_string(i), {{"CPU", 1}});
    Run("r" + std::to_string(i));
  }
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kStrictSpread));
  Pass(seconds(30));
  EXPECT_THAT(scheduler_.Promises(), SizeIs(2));
  Ask("small", {{"CPU", 1}});
  for (int i = 0; i < 4; ++i) Release("r" + std::to_string(i));
  EXPECT_EQ(Places("g"), "a b");
  EXPECT_EQ(NodeOf("small"), "");
}

TEST_F(SchedulerQueueTest, InsideOfABundleToo) {
  Nodes(1, {{"CPU", 2}});
  Do(Group("g", 1, {{"CPU", 2}}, PlacementStrategy::kPack));
  Ask(InGroup("a", {{"CPU", 1}}, "g"));
  Ask(InGroup("b", {{"CPU", 1}}, "g"));
  Run("a");
  Run("b");
  Ask(InGroup("large", {{"CPU", 2}}, "g"));
  Pass(seconds(30));
  ASSERT_THAT(scheduler_.Promises(), SizeIs(1));
  EXPECT_EQ(scheduler_.Promises()[0].in_group, "g");
  Ask(InGroup("small", {{"CPU", 1}}, "g"));
  Release("a");
  EXPECT_EQ(NodeOf("small"), "");
  Release("b");
  EXPECT_EQ(NodeOf("large"), "a");
}

}  // namespace
}  // namespace troupe
