// Single requests: placement, devices, labels, order, confirmation, repeats, limits.
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class SchedulerLeaseTest : public SchedulerTest {};

TEST_F(SchedulerLeaseTest, HybridFillsToHalfAndThenSpreads) {
  for (const char* node : {"a", "b", "c"}) AddNode(node, {{"CPU", 4}});
  std::string nodes;
  for (int i = 0; i < 8; ++i) nodes += Ask("l" + std::to_string(i), {{"CPU", 1}});
  EXPECT_EQ(nodes, "aabbccab");
}

TEST_F(SchedulerLeaseTest, SpreadTakesTheLeastUsedAndPackTheFirst) {
  for (const char* node : {"a", "b", "c"}) AddNode(node, {{"CPU", 4}});
  auto spread = Lease("", {{"CPU", 1}});
  spread.strategy = PlacementStrategy::kSpread;
  auto pack = spread;
  pack.strategy = PlacementStrategy::kPack;
  std::string nodes;
  for (int i = 0; i < 4; ++i) {
    spread.id = "s" + std::to_string(i);
    nodes += Ask(spread);
  }
  EXPECT_EQ(nodes, "abca");
  nodes.clear();
  for (int i = 0; i < 4; ++i) {
    pack.id = "p" + std::to_string(i);
    nodes += Ask(pack);
  }
  EXPECT_EQ(nodes, "aabb");
}

TEST_F(SchedulerLeaseTest, ThoseThatNeedNothingAreSpreadToo) {
  const std::string all = "abcdefgh";
  for (const char node : all) AddNode(std::string(1, node), {{"CPU", node == 'e' ? 8 : 4}});
  std::string nodes;
  for (int i = 0; i < 16; ++i) nodes += Ask("l" + std::to_string(i), {});
  EXPECT_EQ(nodes, all + all);
  auto beside = Lease("beside", {{"CPU", 1}});
  beside.node = "e";
  EXPECT_EQ(Ask(beside), "e");
  Release("l5");  // Of f, which is the least used from now on.
  EXPECT_EQ(Ask("next", {}), "f");
}

TEST_F(SchedulerLeaseTest, WorkWithoutGpuKeepsOffGpuNodes) {
  AddNode("g", {{"CPU", 4}, {"GPU", 1}});
  AddNode("c", {{"CPU", 2}});
  std::string nodes;
  for (int i = 0; i < 3; ++i) nodes += Ask("l" + std::to_string(i), {{"CPU", 1}});
  EXPECT_EQ(nodes, "ccg");
}

TEST(DevicesTest, AreVisibleByTheNamesThatTheirNodeHasForThem) {
  EXPECT_EQ(VisibleDevices({}), "");
  EXPECT_EQ(VisibleDevices({0, 3}), "0,3");
  EXPECT_EQ(VisibleDevices({0, 2}, "4,GPU-five,6"), "4,6");
  EXPECT_EQ(VisibleDevices({1}, "4,GPU-five,6"), "GPU-five");
  EXPECT_EQ(VisibleDevices({0, 1}, "7"), "7,1");  // It was told of more than it has.
}

TEST_F(SchedulerLeaseTest, SharesOfAGpuFillOneDeviceBeforeTheNext) {
  AddNode("a", {{"CPU", 8}, {"GPU", 3}});
  Ask("whole", {{"GPU", 1}});
  Ask("half", {{"GPU", 0.5}});
  Ask("third", {{"GPU", 0.3}});
  Ask("more", {{"GPU", 0.4}});
  Ask("last", {{"GPU", 0.2}});
  EXPECT_EQ(Visible("whole"), "0");
  EXPECT_EQ(Visible("half"), "1");
  EXPECT_EQ(Visible("third"), "1");
  EXPECT_EQ(Visible("more"), "2");
  EXPECT_EQ(Visible("last"), "1");  // Best fit: it fills device 1.
  EXPECT_EQ(scheduler_.FindLease("half")->devices[0].share, 0.5);
  // 0.6 of a device is free, yet no whole one.
  EXPECT_EQ(Ask("two", {{"GPU", 1}}), "waits");
  EXPECT_THAT(Reason("two"), HasSubstr("node a lacks GPU 1 (0 of 3 free)"));
  EXPECT_EQ(Ask("big", {{"GPU", 0.7}}), "waits");
  EXPECT_THAT(Reason("big"), HasSubstr("has no GPU with 0.7 free (at most 0.6 on one)"));
  Release("more");
  EXPECT_THAT(Granted(), ElementsAre("two"));
  EXPECT_EQ(Visible("two"), "2");
}

TEST_F(SchedulerLeaseTest, WholeDevicesAreNamedAndGivenBack) {
  AddNode("a", {{"GPU", 4}});
  Ask("one", {{"GPU", 1}});
  Ask("two", {{"GPU", 2}});
  EXPECT_EQ(Visible("two"), "1,2");
  Release("one");
  Ask("again", {{"GPU", 2}});
  EXPECT_EQ(Visible("again"), "0,3");
}

TEST_F(SchedulerLeaseTest, MoreThanOneGpuMustBeWhole) {
  AddNode("a", {{"GPU", 4}});
  EXPECT_THAT(Ask("x", {{"GPU", 1.5}}), HasSubstr("GPU 1.5: more than one GPU must be a whole"));
  Do(sched::NodeUp{"b", 1, Of({{"GPU", 0.5}}), {}});
  EXPECT_THAT(Refusal(), HasSubstr("a node has whole devices, at most 64"));
  Do(sched::NodeUp{"b", 1, Of({{"GPU", 65}}), {}});
  EXPECT_THAT(Refusal(), HasSubstr("a node has whole devices, at most 64"));
}

TEST_F(SchedulerLeaseTest, LabelsPreferencesAndFallbacks) {
  AddNode("a", {{"CPU", 2}}, {{"zone", "x"}});
  AddNode("b", {{"CPU", 1}}, {{"zone", "y"}});
  AddNode("c", {{"CPU", 1}}, {{"zone", "y"}, {"market", "spot"}});
  auto request = Lease("hard", {{"CPU", 1}});
  request.labels = Select("zone=y, market!=spot");
  EXPECT_EQ(Ask(request), "b");
  request.id = "soft";
  request.labels = {};
  request.prefer = Select("market=spot");
  EXPECT_EQ(Ask(request), "c");
  request.id = "soft2";  // Where it is liked there is no room.
  EXPECT_EQ(Ask(request), "a");
  request = Lease("fallback", {{"CPU", 1}});
  request.labels = Select("zone=y");
  request.fallback = {Select("zone=z"), Select("zone=x")};
  EXPECT_EQ(Ask(request), "a");
  request.id = "none";
  EXPECT_EQ(Ask(request), "waits");
  EXPECT_THAT(Reason("none"), StartsWith("busy: needs CPU 1 with zone=y or zone=z or zone=x; "));
  request.fallback.clear();
  request.id = "nowhere";
  request.labels = Select("zone=q");
  EXPECT_EQ(Ask(request), "waits");
  EXPECT_THAT(Reason("nowhere"), StartsWith("impossible on any present node: needs CPU 1 with "
                                            "zone=q; best node a has not zone=q"));
}

TEST_F(SchedulerLeaseTest, AffinityHardAndSoft) {
  AddNode("a", {{"CPU", 4}});
  AddNode("b", {{"CPU", 1}});
  auto request = Lease("soft", {{"CPU", 1}});
  request.node = "b";
  EXPECT_EQ(Ask(request), "b");
  request.id = "elsewhere";
  EXPECT_EQ(Ask(request), "a");
  request.id = "hard";
  request.node_only = true;
  EXPECT_EQ(Ask(request), "waits");
  EXPECT_THAT(Reason("hard"), HasSubstr("needs CPU 1 on node b; best node b lacks CPU 1 (0 of 1 "
                                        "free); node a is another node"));
  Release("soft");
  EXPECT_THAT(Granted(), ElementsAre("hard"));
  request.id = "absent";
  request.node = "z";
  EXPECT_EQ(Ask(request), "waits");
  AddNode("z", {{"CPU", 1}});
  EXPECT_THAT(Granted(), ElementsAre("absent"));
}

TEST_F(SchedulerLeaseTest, CustomResourcesAndMemory) {
  AddNode("a", {{"CPU", 4}, {"memory", 100}});
  AddNode("b", {{"CPU", 4}, {"memory", 100}, {"licence", 1}});
  EXPECT_EQ(Ask("l", {{"CPU", 1}, {"licence", 0.5}}), "b");
  EXPECT_EQ(Ask("m", {{"licence", 0.6}}), "waits");
  EXPECT_THAT(Reason("m"), HasSubstr("busy: needs licence 0.6; best node b lacks licence 0.1 (0.5 "
                                     "of 1 free); node a has no licence"));
  EXPECT_EQ(Ask("big", {{"memory", 101}}), "waits");
  EXPECT_THAT(Reason("big"), HasSubstr("impossible on any present node: needs memory 101B; best "
                                       "node a has memory 100B in all"));
  EXPECT_TRUE(scheduler_.FindLease("big")->impossible);
  EXPECT_FALSE(scheduler_.FindLease("m")->impossible);
}

TEST_F(SchedulerLeaseTest, PriorityThenFirstComeFirstServed) {
  AddNode("a", {{"CPU", 1}});
  Ask("runs", {{"CPU", 1}});
  Ask("low", {{"CPU", 1}}, -1);
  Ask("first", {{"CPU", 1}});
  Ask("second", {{"CPU", 1}});
  Ask("high", {{"CPU", 1}}, 7);
  EXPECT_THAT(Reason("second"), StartsWith("waits behind high (priority 7); busy: needs CPU 1"));
  std::string order;
  for (std::string holder = "runs"; !holder.empty();) {
    Release(holder);
    holder = Granted().empty() ? "" : Granted()[0];
    order += holder + " ";
  }
  EXPECT_EQ(order, "high first second low  ");
}

TEST_F(SchedulerLeaseTest, WhatFitsPassesWhatDoesNot) {
  AddNode("a", {{"CPU", 4}});
  Ask("runs", {{"CPU", 3}});
  EXPECT_EQ(Ask("big", {{"CPU", 4}}, 5), "waits");
  EXPECT_EQ(Ask("small", {{"CPU", 1}}), "a");
}

TEST_F(SchedulerLeaseTest, AGrantThatIsNotConfirmedGoesElsewhere) {
  AddNode("a", {{"CPU", 1}});
  EXPECT_EQ(Ask("x", {{"CPU", 1}}), "a");
  AddNode("b", {{"CPU", 1}});
  now_ = now_ + seconds(10);
  Do(sched::Wake{});
  ASSERT_THAT(Revoked(), ElementsAre("x"));
  EXPECT_TRUE(last_.revoked[0].waits_again);
  EXPECT_EQ(last_.revoked[0].reason, "it was not confirmed in time");
  EXPECT_EQ(NodeOf("x"), "b");
  Do(sched::Confirm{"x", "a"});  // Too late: it is b's now.
  EXPECT_THAT(Refusal(), HasSubstr("its process there must end"));
  Run("x");
  EXPECT_EQ(Ask("y", {{"CPU", 1}}), "waits");
  EXPECT_THAT(Reason("y"), HasSubstr("1 node is quarantined: a grant was not confirmed there"));
  Pass(seconds(2));
  EXPECT_EQ(NodeOf("y"), "a");
  EXPECT_EQ(NodeOf("x"), "b");
}

TEST_F(SchedulerLeaseTest, ANodeIsQuarantinedLongerEachTimeUntilItConfirms) {
  AddNode("a", {{"CPU", 1}});
  Ask("x", {{"CPU", 1}});
  std::vector<int64_t> pauses;
  for (int i = 0; i < 7; ++i) {
    now_ = now_ + seconds(10);
    Do(sched::Wake{});
    pauses.push_back((scheduler_.Nodes()[0].aside_until - now_).count() / 1'000'000'000);
    now_ = scheduler_.Nodes()[0].aside_until;
    Do(sched::Wake{});
  }
  EXPECT_THAT(pauses, ElementsAre(2, 4, 8, 16, 32, 60, 60));
  Run("x");
  Release("x");
  Ask("y", {{"CPU", 1}});
  now_ = now_ + seconds(10);
  Do(sched::Wake{});
  EXPECT_EQ((scheduler_.Nodes()[0].aside_until - now_), seconds(2));
}

TEST_F(SchedulerLeaseTest, RepeatsChangeNothing) {
  AddNode("a", {{"CPU", 2}});
  AddNode("a", {{"CPU", 2}});
  EXPECT_EQ(Ask("x", {{"CPU", 1}}), "a");
  EXPECT_EQ(Ask("x", {{"CPU", 1}}), "a");  // Told again.
  EXPECT_EQ(scheduler_.Nodes()[0].used, Of({{"CPU", 1}}));
  EXPECT_THAT(Ask("x", {{"CPU", 2}}), HasSubstr("there is another lease \"x\""));
  Run("x");
  Run("x");
  EXPECT_THAT(last_.refused, IsEmpty());
  EXPECT_EQ(Ask("w", {{"CPU", 2}}), "waits");
  EXPECT_EQ(Ask("w", {{"CPU", 2}}), "waits");
  Do(sched::Cancel{"w"});
  Do(sched::Cancel{"w"});
  Release("x");
  Release("x");
  EXPECT_TRUE(scheduler_.Nodes()[0].used.empty());
  EXPECT_THAT(scheduler_.Leases(), IsEmpty());
}

TEST_F(SchedulerLeaseTest, CancelSparesWhatRuns) {
  AddNode("a", {{"CPU", 2}});
  Ask("x", {{"CPU", 1}});
  Ask("y", {{"CPU", 1}});
  Run("x");
  Do(sched::Cancel{"x"});
  EXPECT_THAT(Refusal(), HasSubstr("runs on node \"a\"; end its process and release it"));
  Do(sched::Cancel{"y"});
  EXPECT_EQ(scheduler_.Nodes()[0].used, Of({{"CPU", 1}}));
}

TEST_F(SchedulerLeaseTest, UnusableRequestsAreRefusedWithASentence) {
  AddNode("a", {{"CPU", 2}});
  EXPECT_THAT(Ask("", {{"CPU", 1}}), HasSubstr("id has 1 to 256 bytes"));
  EXPECT_THAT(Ask(std::string(257, 'x'), {}), HasSubstr("id has 1 to 256 bytes"));
  auto request = Lease("x", {{"CPU", 1}});
  request.node_only = true;
  EXPECT_THAT(Ask(request), HasSubstr("no node is named"));
  request = Lease("x", {{"CPU", 1}});
  request.fallback.assign(kFallbacksMax + 1, Select("a=b"));
  EXPECT_THAT(Ask(request), HasSubstr("at most 8 fallback selectors"));
  EXPECT_THAT(Ask(InGroup("x", {}, "g")), HasSubstr("there is no placement group \"g\""));
  EXPECT_THAT(scheduler_.Leases(), IsEmpty());
}

TEST_F(SchedulerLeaseTest, AnEmptyClusterSaysSo) {
  EXPECT_EQ(Ask("x", {{"CPU", 1}}), "waits");
  EXPECT_EQ(Reason("x"), "impossible on any present node: needs CPU 1; no node is available");
}

}  // namespace
}  // namespace troupe
