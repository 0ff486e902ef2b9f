// Nodes that come, fall silent, drain, die and come back; restarts with claims.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class SchedulerNodeTest : public SchedulerTest {
 protected:
  void Health(const std::string& node, bool alive, bool draining, Time deadline = Time::Never()) {
    Do(sched::NodeHealth{node, alive, draining, deadline});
  }
};

TEST_F(SchedulerNodeTest, ASuspectGetsNothingNewAndKeepsWhatItHas) {
  AddNode("a", {{"CPU", 2}});
  Ask("x", {{"CPU", 1}});
  Run("x");
  Health("a", false, false);
  EXPECT_EQ(Ask("y", {{"CPU", 1}}), "waits");
  EXPECT_EQ(Reason("y"), "busy: needs CPU 1; no node is available; 1 node is not heard");
  EXPECT_EQ(NodeOf("x"), "a");
  Health("a", true, false);
  EXPECT_THAT(Granted(), ElementsAre("y"));
}

TEST_F(SchedulerNodeTest, ADrainIsToldOnceAndAgainWhenItComesNearer) {
  AddNode("a", {{"CPU", 4}});
  Do(Group("g", 1, {{"CPU", 2}}, PlacementStrategy::kPack));
  Ask("x", {{"CPU", 1}});
  Ask(InGroup("in", {{"CPU", 1}}, "g"));
  Health("a", true, true, now_ + seconds(60));
  std::vector<std::string> told;
  for (const auto& drain : last_.drains) told.push_back(drain.lease);
  EXPECT_THAT(told, UnorderedElementsAre("x", "in"));
  EXPECT_EQ(last_.drains[0].deadline, now_ + seconds(60));
  Health("a", true, true, now_ + seconds(60));
  EXPECT_THAT(last_.drains, IsEmpty());
  Health("a", true, true, now_ + seconds(90));
  EXPECT_THAT(last_.drains, IsEmpty());
  Health("a", true, true, now_ + seconds(5));
  EXPECT_EQ(last_.drains.size(), 2u);
  EXPECT_EQ(Ask(InGroup("late", {{"CPU", 1}}, "g")), "waits");
  EXPECT_THAT(Reason("late"), HasSubstr("bundle 0 is on node a, which is draining"));
  Health("a", true, false);  // It was a false alarm.
  EXPECT_THAT(Granted(), ElementsAre("late"));
}

TEST_F(SchedulerNodeTest, DeathEndsWhatRanAndRequeuesWhatHadNotBegun) {
  AddNode("a", {{"CPU", 2}});
  Ask("ran", {{"CPU", 1}});
  Ask("fresh", {{"CPU", 1}});
  Run("ran");
  Do(sched::NodeGone{"a", "power"});
  ASSERT_THAT(Revoked(), UnorderedElementsAre("ran", "fresh"));
  for (const auto& revoked : last_.revoked) {
    EXPECT_EQ(revoked.waits_again, revoked.lease == "fresh");
    EXPECT_EQ(revoked.node, "a");
    EXPECT_EQ(revoked.reason, "node a is gone: power");
  }
  AddNode("b", {{"CPU", 2}});
  EXPECT_THAT(Granted(), ElementsAre("fresh"));
}

TEST_F(SchedulerNodeTest, ANewIncarnationTakesThePlaceOfTheOld) {
  AddNode("a", {{"CPU", 2}});
  Ask("x", {{"CPU", 1}});
  Run("x");
  Do(sched::NodeUp{"a", 1, Of({{"CPU", 8}}), {}});
  EXPECT_THAT(Refusal(), HasSubstr("it is there with other resources or labels"));
  Do(sched::NodeUp{"a", 2, Of({{"CPU", 8}}), {}});
  EXPECT_THAT(Revoked(), ElementsAre("x"));
  EXPECT_EQ(scheduler_.Nodes()[0].total, Of({{"CPU", 8}}));
  Do(sched::NodeUp{"a", 1, Of({{"CPU", 2}}), {}});
  EXPECT_THAT(Refusal(), HasSubstr("a newer incarnation is there"));
}

TEST_F(SchedulerNodeTest, NodesWithBadNamesOrLabelsAreRefused) {
  Do(sched::NodeUp{"", 1, Of({{"CPU", 8}}), {}});
  EXPECT_THAT(Refusal(), HasSubstr("an id has 1 to 256 bytes"));
  Do(sched::NodeUp{"a", 1, Of({{"CPU", 8}}), {{"zone", "x y"}}});
  EXPECT_THAT(Refusal(), HasSubstr("label \"zone\""));
  Health("a", true, false);
  EXPECT_THAT(Refusal(), HasSubstr("there is no node \"a\""));
  EXPECT_THAT(scheduler_.Nodes(), IsEmpty());
}

TEST_F(SchedulerNodeTest, WhatRunsIsClaimedBeforeAnythingNewIsPlaced) {
  Do(sched::Recover{now_ + seconds(5)});
  AddNode("a", {{"CPU", 2}, {"GPU", 2}});
  EXPECT_EQ(Ask("new", {{"CPU", 2}, {"GPU", 1}}), "waits");
  EXPECT_EQ(Reason("new"),
            "recovering: nothing new is placed until what runs is claimed, for 5 s at most");
  Do(sched::Claim{Lease("x", {{"CPU", 1}, {"GPU", 1}}), "a", sched::kAnyBundle, {1}});
  EXPECT_THAT(Granted(), ElementsAre("x"));
  EXPECT_EQ(Visible("x"), "1");
  EXPECT_EQ(scheduler_.FindLease("x")->state, sched::LeaseState::kConfirmed);
  Do(sched::Claim{Lease("new", {{"CPU", 2}, {"GPU", 1}}), "a", sched::kAnyBundle, {1}});
  EXPECT_THAT(Refusal(), HasSubstr("has not got CPU 2, GPU 1 left on the devices that were "
                                   "named; its process must end"));
  EXPECT_EQ(scheduler_.next_wake(), now_ + seconds(5));
  AddNode("b", {{"CPU", 2}, {"GPU", 1}});
  EXPECT_EQ(NodeOf("new"), "");
  Pass(seconds(5));
  EXPECT_EQ(NodeOf("new"), "b");
}

TEST_F(SchedulerNodeTest, AClaimIsTakenOnceOnly) {
  AddNode("a", {{"CPU", 2}});
  AddNode("b", {{"CPU", 2}, {"GPU", 2}});
  const auto request = Lease("x", {{"CPU", 1}});
  Do(sched::Claim{request, "a", sched::kAnyBundle, {}});
  Do(sched::Claim{request, "a", sched::kAnyBundle, {}});
  EXPECT_THAT(Granted(), ElementsAre("x"));
  Do(sched::Claim{request, "b", sched::kAnyBundle, {}});
  EXPECT_THAT(Refusal(), HasSubstr("is granted to node \"a\""));
  Do(sched::Claim{Lease("y", {{"CPU", 1}}), "z", sched::kAnyBundle, {}});
  EXPECT_THAT(Refusal(), HasSubstr("there is no node \"z\""));
  Do(sched::Claim{Lease("z", {{"GPU", 1}}), "b", sched::kAnyBundle, {0, 1}});
  EXPECT_THAT(Refusal(), HasSubstr("on the devices that were named"));
  Do(sched::Claim{Lease("x", {{"CPU", 2}}), "a", sched::kAnyBundle, {}});
  EXPECT_THAT(Granted(), ElementsAre("x"));  // It is where it was granted.
  EXPECT_EQ(scheduler_.Leases().size(), 1u);
  Do(sched::Claim{Lease("gpu", {{"GPU", 1}}), "b", sched::kAnyBundle, {1}});
  EXPECT_THAT(Granted(), ElementsAre("gpu"));
  Do(sched::Claim{Lease("gpu", {{"GPU", 1}}), "b", sched::kAnyBundle, {0}});
  EXPECT_THAT(Refusal(), HasSubstr("on other devices or another node"));
}

TEST_F(SchedulerNodeTest, GroupsAreClaimedWithTheirPlaces) {
  Do(sched::Recover{now_ + seconds(5)});
  AddNode("a", {{"CPU", 4}, {"GPU", 2}});
  AddNode("b", {{"CPU", 4}});
  const sched::BundleSpec spec{Of({{"CPU", 1}, {"GPU", 1}}), {}};
  sched::ClaimGroup claim;
  claim.group = "g";
  claim.bundles = {{0, spec, "a", {1}}, {2, spec, "gone", {0}}};
  claim.next_bundle = 5;
  claim.resized = 3;
  Do(claim);
  EXPECT_EQ(Places("g"), "a -");
  EXPECT_EQ(State("g"), "rescheduling");
  Do(sched::Claim{InGroup("in", {{"GPU", 1}}, "g"), "a", 0, {1}});
  EXPECT_THAT(Granted(), ElementsAre("in"));
  Do(sched::Claim{InGroup("out", {{"GPU", 1}}, "g"), "b", 0, {1}});
  EXPECT_THAT(Refusal(), HasSubstr("bundle 0 of placement group \"g\" is not on node \"b\""));
  Do(sched::Recover{now_});
  EXPECT_EQ(Places("g"), "a a");
  sched::ResizeGroup resize{"g", 3, {spec}, {}};
  Do(resize);  // It was made before the restart.
  EXPECT_EQ(scheduler_.FindGroup("g")->bundles.size(), 2u);
  resize.number = 4;
  Do(resize);
  EXPECT_EQ(scheduler_.FindGroup("g")->bundles.back().place.number, 5u);
  Do(Group("g", 2, {{"CPU", 1}, {"GPU", 1}}, PlacementStrategy::kPack));
  EXPECT_THAT(last_.refused, IsEmpty());  // The one who made it asks again.
}

TEST_F(SchedulerNodeTest, ARepeatedGroupClaimPlacesWhatItsNodeCanHoldByNow) {
  Do(sched::Recover{now_ + seconds(5)});
  const sched::BundleSpec spec{Of({{"CPU", 1}}), {}};
  sched::ClaimGroup claim;
  claim.group = "g";
  claim.bundles = {{0, spec, "b", {}}};
  AddNode("a", {{"CPU", 4}});
  Do(claim);
  EXPECT_EQ(Places("g"), "-");
  AddNode("b", {{"CPU", 4}});
  Do(claim);
  EXPECT_EQ(Places("g"), "b");
}

}  // namespace
}  // namespace troupe
