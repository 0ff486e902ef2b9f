// Placement groups: strategies, atomicity, resizing, loss of nodes, requests inside of them.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SchedulerGroupTest : public SchedulerTest {
 protected:
  void ThreeNodes() {
    for (const char* node : {"a", "b", "c"}) AddNode(node, {{"CPU", 4}});
  }
  static sched::ResizeGroup Resize(uint64_t number, size_t add, std::vector<uint32_t> remove) {
    sched::ResizeGroup resize;
    resize.group = "g";
    resize.number = number;
    resize.add.assign(add, sched::BundleSpec{Of({{"CPU", 2}}), {}});
    resize.remove = std::move(remove);
    return resize;
  }
};

TEST_F(SchedulerGroupTest, EachStrategy) {
  ThreeNodes();
  Do(Group("pack", 3, {{"CPU", 1}}, PlacementStrategy::kPack));
  EXPECT_EQ(Places("pack"), "a a a");
  ASSERT_EQ(last_.groups.size(), 1u);
  EXPECT_EQ(last_.groups[0].state, sched::GroupState::kPlaced);
  EXPECT_EQ(last_.groups[0].bundles[2].node, "a");
  Do(Group("spread", 3, {{"CPU", 1}}, PlacementStrategy::kSpread));
  EXPECT_EQ(Places("spread"), "b c a");
  Do(Group("strict_pack", 3, {{"CPU", 1}}, PlacementStrategy::kStrictPack));
  EXPECT_EQ(Places("strict_pack"), "b b b");
  Do(Group("strict_spread", 3, {{"CPU", 1}}, PlacementStrategy::kStrictSpread));
  EXPECT_EQ(Places("strict_spread"), "- - -");  // a and b are full.
  Do(sched::RemoveGroup{"spread"});
  EXPECT_EQ(Places("strict_spread"), "c a b");
}

TEST_F(SchedulerGroupTest, AllOrNothing) {
  ThreeNodes();
  Do(Group("g", 7, {{"CPU", 2}}, PlacementStrategy::kPack));
  EXPECT_EQ(State("g"), "pending");
  for (const auto& node : scheduler_.Nodes()) EXPECT_TRUE(node.used.empty());
  const auto status = scheduler_.FindGroup("g");
  EXPECT_EQ(status->reason,
            "impossible on the present nodes: only 6 of 7 fit; the next needs CPU 2; best "
            "node a lacks CPU 2 (0 of 4 free); node b lacks CPU 2 (0 of 4 free); node c lacks CPU "
            "2 (0 of 4 free)");
  EXPECT_TRUE(status->impossible);
  AddNode("d", {{"CPU", 4}});
  EXPECT_EQ(State("g"), "placed");
}

TEST_F(SchedulerGroupTest, StrictSpreadSaysHowManyFit) {
  ThreeNodes();
  Ask("x", {{"CPU", 3}});
  Do(Group("g", 3, {{"CPU", 2}}, PlacementStrategy::kStrictSpread));
  EXPECT_EQ(State("g"), "pending");
  const auto status = scheduler_.FindGroup("g");
  EXPECT_FALSE(status->impossible);
  EXPECT_THAT(status->reason,
              HasSubstr("only 2 of 3 fit on a node each; the next needs CPU 2; best node "));
  EXPECT_THAT(status->reason, HasSubstr("already holds one of these"));
  EXPECT_THAT(status->reason, HasSubstr("node a lacks CPU 1 (1 of 4 free)"));
}

TEST_F(SchedulerGroupTest, GpuBundlesKeepTheirDevices) {
  AddNode("a", {{"CPU", 8}, {"GPU", 4}});
  Ask("x", {{"GPU", 1}});
  Do(Group("g", 2, {{"CPU", 1}, {"GPU", 1}}, PlacementStrategy::kPack));
  Do(Group("h", 1, {{"GPU", 0.5}}, PlacementStrategy::kPack));
  EXPECT_EQ(Ask(InGroup("i", {{"GPU", 1}}, "g", 1)), "a");
  EXPECT_EQ(Visible("i"), "2");
  EXPECT_EQ(Ask(InGroup("j", {{"GPU", 0.5}}, "g")), "a");
  EXPECT_EQ(Ask(InGroup("k", {{"GPU", 0.5}}, "g")), "a");
  EXPECT_EQ(Visible("j") + Visible("k"), "11");
  EXPECT_EQ(Ask(InGroup("l", {{"GPU", 0.3}}, "h")), "a");
  EXPECT_EQ(Visible("l"), "3");
  EXPECT_EQ(Ask(InGroup("m", {{"GPU", 0.3}}, "h")), "waits");
  EXPECT_THAT(Reason("m"), HasSubstr("bundle 0 has no GPU with 0.3 free (at most 0.2 on one)"));
}

TEST_F(SchedulerGroupTest, RequestsDrawFromBundlesOnly) {
  ThreeNodes();
  Do(Group("g", 2, {{"CPU", 1}}, PlacementStrategy::kStrictSpread));
  EXPECT_EQ(Ask(InGroup("any0", {{"CPU", 1}}, "g")), "a");
  EXPECT_EQ(last_.granted[0].bundle, 0);
  EXPECT_EQ(Ask(InGroup("any1", {{"CPU", 1}}, "g")), "b");
  EXPECT_EQ(Ask(InGroup("any2", {{"CPU", 1}}, "g")), "waits");
  EXPECT_THAT(Reason("any2"), HasSubstr("busy: needs CPU 1 of placement group g; bundle 0 lacks "
                                        "CPU 1 (0 of 1 free)"));
  EXPECT_EQ(scheduler_.Nodes()[0].used, Of({{"CPU", 1}}));
  Release("any1");
  EXPECT_THAT(Granted(), ElementsAre("any2"));
  EXPECT_EQ(NodeOf("any2"), "b");
  auto labelled = InGroup("x", {}, "g");
  labelled.labels = Select("a=b");
  EXPECT_THAT(Ask(labelled), HasSubstr("runs where its bundle is"));
  EXPECT_THAT(Ask(InGroup("x", {}, "g", 9)), HasSubstr("has no bundle 9"));
}

TEST_F(SchedulerGroupTest, RequestsToAPendingGroupWaitWithItsReason) {
  AddNode("a", {{"CPU", 2}});
  Ask("runs", {{"CPU", 1}});
  Do(Group("g", 1, {{"CPU", 2}}, PlacementStrategy::kPack));
  EXPECT_EQ(Ask(InGroup("x", {{"CPU", 2}}, "g")), "waits");
  EXPECT_EQ(Reason("x"),
            "placement group g is pending: busy: only 0 of 1 fit; the next needs "
            "CPU 2; node a lacks CPU 1 (1 of 2 free)");
  Release("runs");
  EXPECT_THAT(Granted(), ElementsAre("x"));
}

TEST_F(SchedulerGroupTest, GrowingLeavesWhatIsPlaced) {
  ThreeNodes();
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kPack));
  EXPECT_EQ(Places("g"), "a a");
  Ask(InGroup("x", {{"CPU", 2}}, "g", 1));
  Do(Resize(1, 2, {}));
  EXPECT_EQ(Places("g"), "a a b b");
  Do(Resize(1, 2, {}));  // A repeat.
  EXPECT_EQ(Places("g"), "a a b b");
  Do(Resize(2, 3, {}));  // Only two fit.
  EXPECT_EQ(Places("g"), "a a b b - - -");
  EXPECT_EQ(State("g"), "resizing");
  EXPECT_TRUE(scheduler_.Nodes()[2].used.empty());
  EXPECT_EQ(NodeOf("x"), "a");
  Do(Resize(3, 0, {4}));
  EXPECT_EQ(Places("g"), "a a b b c c");
  EXPECT_EQ(State("g"), "placed");
}

TEST_F(SchedulerGroupTest, ShrinkingRevokesWhatIsInside) {
  ThreeNodes();
  Do(Group("g", 3, {{"CPU", 2}}, PlacementStrategy::kSpread));
  Ask(InGroup("in0", {{"CPU", 2}}, "g", 0));
  Ask(InGroup("in1", {{"CPU", 2}}, "g", 1));
  Ask(InGroup("waits1", {{"CPU", 2}}, "g", 1));
  Run("in1");
  Do(Resize(1, 0, {1, 77}));
  EXPECT_THAT(Revoked(), UnorderedElementsAre("in1", "waits1"));
  EXPECT_EQ(last_.revoked[0].reason, "bundle 1 of placement group g was removed");
  EXPECT_FALSE(last_.revoked[0].waits_again);
  EXPECT_EQ(Places("g"), "a c");
  EXPECT_TRUE(scheduler_.Nodes()[1].used.empty());
  Do(Resize(2, 1, {}));  // Numbers are not used again.
  EXPECT_EQ(scheduler_.FindGroup("g")->bundles.back().place.number, 3u);
}

TEST_F(SchedulerGroupTest, StrictPackGrowsOnItsNodeOnly) {
  ThreeNodes();
  Do(Group("g", 1, {{"CPU", 2}}, PlacementStrategy::kStrictPack));
  Do(Resize(1, 1, {}));
  EXPECT_EQ(Places("g"), "a a");
  Do(Resize(2, 1, {}));
  EXPECT_EQ(Places("g"), "a a -");
}

TEST_F(SchedulerGroupTest, OnlyLostBundlesMove) {
  ThreeNodes();
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kStrictSpread));
  EXPECT_EQ(Places("g"), "a b");
  Ask(InGroup("in0", {{"CPU", 2}}, "g", 0));
  Ask(InGroup("in1", {{"CPU", 1}}, "g", 1));
  Ask(InGroup("fresh1", {{"CPU", 1}}, "g", 1));
  Run("in0");
  Run("in1");
  Do(sched::NodeGone{"b", "power"});
  EXPECT_EQ(Places("g"), "a c");
  EXPECT_EQ(NodeOf("in0"), "a");
  ASSERT_THAT(Revoked(), UnorderedElementsAre("in1", "fresh1"));
  EXPECT_EQ(last_.revoked[0].reason, "node b is gone: power");
  EXPECT_EQ(NodeOf("in1"), "gone");  // It ran.
  EXPECT_EQ(NodeOf("fresh1"), "c");  // It had not begun.
  ASSERT_EQ(last_.groups.size(), 1u);
  EXPECT_EQ(last_.groups[0].reason, "node b is gone: power");
  Do(sched::NodeGone{"c", ""});
  EXPECT_EQ(Places("g"), "a -");
  EXPECT_EQ(State("g"), "rescheduling");
  EXPECT_THAT(
      Reason("fresh1"),
      HasSubstr(
          "placement group g is rescheduling: impossible on the present nodes: only 0 of 1 fit "
          "on a node each; the next needs CPU 2; node a already holds one of these"));
  AddNode("d", {{"CPU", 4}});
  EXPECT_EQ(Places("g"), "a d");
  EXPECT_EQ(NodeOf("fresh1"), "d");
}

TEST_F(SchedulerGroupTest, RemovingEndsEverythingInside) {
  ThreeNodes();
  Do(Group("g", 1, {{"CPU", 2}}, PlacementStrategy::kPack));
  Ask(InGroup("in", {{"CPU", 2}}, "g"));
  Ask(InGroup("waits", {{"CPU", 2}}, "g"));
  Run("in");
  Do(sched::RemoveGroup{"g"});
  EXPECT_THAT(Revoked(), UnorderedElementsAre("in", "waits"));
  EXPECT_EQ(last_.revoked[0].reason, "placement group g was removed");
  EXPECT_EQ(last_.groups[0].state, sched::GroupState::kRemoved);
  Do(sched::RemoveGroup{"g"});
  EXPECT_THAT(last_.groups, IsEmpty());
  EXPECT_THAT(scheduler_.Leases(), IsEmpty());
  for (const auto& node : scheduler_.Nodes()) EXPECT_TRUE(node.used.empty());
}

TEST_F(SchedulerGroupTest, ARepeatIsAnsweredAndAnotherIsRefused) {
  ThreeNodes();
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kPack));
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kPack));
  ASSERT_EQ(last_.groups.size(), 1u);
  EXPECT_EQ(last_.groups[0].state, sched::GroupState::kPlaced);
  Do(Group("g", 2, {{"CPU", 3}}, PlacementStrategy::kPack));
  EXPECT_THAT(Refusal(), HasSubstr("there is another placement group \"g\""));
  Do(Group("h", 0, {}, PlacementStrategy::kPack));
  EXPECT_THAT(Refusal(), HasSubstr("at least one bundle"));
  Do(Group("h", kBundlesMax + 1, {}, PlacementStrategy::kPack));
  EXPECT_THAT(Refusal(), HasSubstr("at most 10000 bundles"));
  auto unknown = Resize(1, 1, {});
  unknown.group = "nobody";
  Do(unknown);
  EXPECT_THAT(Refusal(), HasSubstr("there is no placement group \"nobody\""));
}

TEST_F(SchedulerGroupTest, UnequalBundlesAndLabels) {
  AddNode("a", {{"CPU", 4}}, {{"zone", "x"}});
  AddNode("b", {{"CPU", 6}}, {{"zone", "y"}});
  sched::CreateGroup group;
  group.group = "g";
  group.bundles = {
      {Of({{"CPU", 1}}), {}}, {Of({{"CPU", 3}}), Select("zone=x")}, {Of({{"CPU", 6}}), {}}};
  Do(group);
  EXPECT_EQ(Places("g"), "a a b");
}

TEST_F(SchedulerGroupTest, WhatNeverFitsItsGroupIsRefusedAtOnce) {
  AddNode("a", {{"CPU", 8}, {"GPU", 1}});
  Do(Group("g", 2, {{"CPU", 2}}, PlacementStrategy::kPack));
  EXPECT_THAT(
      Ask(InGroup("wide", {{"CPU", 3}}, "g")),
      HasSubstr("never fits placement group \"g\": needs CPU 3; bundle 0 has CPU 2 in all"));
  EXPECT_THAT(Ask(InGroup("gpu", {{"GPU", 1}}, "g", 1)), HasSubstr("needs GPU 1; bundle 1 has"));
  EXPECT_EQ(Ask(InGroup("fits", {{"CPU", 2}}, "g", 1)), "a");
  EXPECT_EQ(Ask(InGroup("waits", {{"CPU", 1}}, "g", 1)), "waits");
  Do(Group("later", 1, {{"CPU", 100}}, PlacementStrategy::kPack));
  EXPECT_EQ(Ask(InGroup("in-later", {{"CPU", 3}}, "later")), "waits");  // It is not placed yet.
}

TEST_F(SchedulerGroupTest, AResizeTellsWhoNeverFitsAnyMore) {
  AddNode("a", {{"CPU", 8}});
  Do(Group("g", 1, {{"CPU", 4}}, PlacementStrategy::kPack));
  ASSERT_EQ(Ask(InGroup("x", {{"CPU", 1}}, "g")), "a");
  Run("x");
  ASSERT_EQ(Ask(InGroup("wide", {{"CPU", 4}}, "g")), "waits");
  Do(sched::ResizeGroup{"g", 1, {{Of({{"CPU", 1}}), {}}}, {}});
  EXPECT_THAT(Revoked(), IsEmpty());
  Do(sched::ResizeGroup{"g", 2, {}, {0}});
  ASSERT_THAT(Revoked(), ElementsAre("x", "wide"));
  EXPECT_THAT(last_.revoked[1].reason, HasSubstr("never fits placement group \"g\""));
  EXPECT_FALSE(last_.revoked[1].waits_again);
}

}  // namespace
}  // namespace troupe
