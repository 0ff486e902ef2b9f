#include "scheduler/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ResourceSet Of(const std::map<std::string, double>& amounts) {
  return *ResourceSet::FromMap(amounts);
}

NodeView Node(const std::map<std::string, double>& total,
              std::map<std::string, std::string> labels = {}) {
  return NodeView{Of(total), {}, std::move(labels), true, false};
}

std::vector<PlacementRequest> Times(size_t count, const std::map<std::string, double>& need) {
  return std::vector<PlacementRequest>(count, PlacementRequest{Of(need), {}, ""});
}

std::vector<std::string> NodesOf(const PlacementResult& result) {
  if (const auto* rejection = std::get_if<Rejection>(&result)) return {rejection->reason};
  return std::get<Assignments>(result).node_of;
}

Rejection RejectionOf(const PlacementResult& result) {
  const auto* rejection = std::get_if<Rejection>(&result);
  return rejection == nullptr ? Rejection{"it was placed"} : *rejection;
}

ClusterView ThreeNodes() {
  ClusterView cluster;
  for (const char* id : {"a", "b", "c"}) cluster.Put(id, Node({{"CPU", 4}}));
  return cluster;
}

TEST(PlacementTest, PackUsesFewNodes) {
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), Times(5, {{"CPU", 1}}), {PlacementStrategy::kPack})),
              ElementsAre("a", "a", "a", "a", "b"));
}

TEST(PlacementTest, PackPrefersTheFullestNodeThatStillFits) {
  ClusterView cluster = ThreeNodes();
  ASSERT_TRUE(cluster.Reserve("b", Of({{"CPU", 2}})).ok());
  ASSERT_TRUE(cluster.Reserve("c", Of({{"CPU", 3}})).ok());
  EXPECT_THAT(NodesOf(Place(cluster, Times(1, {{"CPU", 2}}), {PlacementStrategy::kPack})),
              ElementsAre("b"));
}

TEST(PlacementTest, SpreadUsesManyNodesAndThenSharesThem) {
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), Times(4, {{"CPU", 1}}), {PlacementStrategy::kSpread})),
              ElementsAre("a", "b", "c", "a"));
}

TEST(PlacementTest, HybridPacksToHalfAndThenSpreads) {
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), Times(8, {{"CPU", 1}}), {PlacementStrategy::kHybrid})),
              ElementsAre("a", "a", "b", "b", "c", "c", "a", "b"));
}

TEST(PlacementTest, StrictPackWantsOneNode) {
  const PlacementOptions strict{PlacementStrategy::kStrictPack};
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), Times(4, {{"CPU", 1}}), strict)),
              ElementsAre("a", "a", "a", "a"));
  const Rejection rejection = RejectionOf(Place(ThreeNodes(), Times(5, {{"CPU", 1}}), strict));
  EXPECT_EQ(rejection.reason,
            "together on one node, needs CPU 5; best node a lacks CPU 1 (4 of 4 free); node b "
            "lacks CPU 1 (4 of 4 free); node c lacks CPU 1 (4 of 4 free)");
  EXPECT_FALSE(rejection.possible_when_idle);
}

TEST(PlacementTest, StrictSpreadWantsANodeEach) {
  const PlacementOptions strict{PlacementStrategy::kStrictSpread};
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), Times(3, {{"CPU", 1}}), strict)),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(RejectionOf(Place(ThreeNodes(), Times(4, {{"CPU", 1}}), strict)).reason,
              HasSubstr("only 3 of 4 fit; the next needs CPU 1; best node a already holds one"));
}

TEST(PlacementTest, RejectionSaysWhatIsMissingWhereNearestFirst) {
  ClusterView cluster;
  cluster.Put("a", Node({{"CPU", 8}}));
  cluster.Put("b", Node({{"CPU", 4}, {"GPU", 1}}));
  cluster.Put("d", Node({{"CPU", 64}, {"GPU", 8}}));
  cluster.SetState("d", false, false);
  ASSERT_TRUE(cluster.Reserve("b", Of({{"CPU", 3.5}})).ok());
  const Rejection rejection = RejectionOf(Place(cluster, Times(1, {{"CPU", 2}, {"GPU", 1}})));
  EXPECT_EQ(rejection.reason,
            "needs CPU 2, GPU 1; best node b lacks CPU 1.5 (0.5 of 4 free); node a has no GPU; "
            "1 dead");
  EXPECT_TRUE(rejection.possible_when_idle);
}

TEST(PlacementTest, EmptyClusterSaysSo) {
  const Rejection rejection = RejectionOf(Place({}, Times(1, {{"CPU", 1}})));
  EXPECT_EQ(rejection.reason, "needs CPU 1; no node is available");
  EXPECT_FALSE(rejection.possible_when_idle);
}

TEST(PlacementTest, DeadAndDrainingNodesAreNotUsed) {
  ClusterView cluster = ThreeNodes();
  cluster.SetState("a", false, false);
  cluster.SetState("b", true, true);
  EXPECT_THAT(NodesOf(Place(cluster, Times(1, {{"CPU", 1}}))), ElementsAre("c"));
  cluster.Remove("c");
  EXPECT_EQ(RejectionOf(Place(cluster, Times(1, {{"CPU", 1}}))).reason,
            "needs CPU 1; no node is available; 1 dead; 1 draining");
}

TEST(PlacementTest, AllOrNothingUnlessFewerAreAllowed) {
  const auto requests = Times(20, {{"CPU", 1}});
  EXPECT_TRUE(std::holds_alternative<Rejection>(Place(ThreeNodes(), requests)));
  const PlacementResult some = Place(ThreeNodes(), requests, {PlacementStrategy::kPack, 12});
  ASSERT_TRUE(std::holds_alternative<Assignments>(some));
  EXPECT_EQ(std::get<Assignments>(some).placed(), 12u);
  EXPECT_TRUE(std::holds_alternative<Rejection>(
      Place(ThreeNodes(), requests, {PlacementStrategy::kPack, 13})));
}

TEST(PlacementTest, LabelsChooseNodes) {
  ClusterView cluster;
  cluster.Put("a", Node({{"CPU", 4}}, {{"zone", "x"}}));
  cluster.Put("b", Node({{"CPU", 4}}, {{"zone", "y"}}));
  PlacementRequest request{Of({{"CPU", 1}}), {{"zone", "y"}}, ""};
  EXPECT_THAT(NodesOf(Place(cluster, {request})), ElementsAre("b"));
  request.labels["zone"] = "z";
  EXPECT_EQ(RejectionOf(Place(cluster, {request})).reason,
            "needs CPU 1 on a node with zone=z; best node a has other labels; node b has other "
            "labels");
  PlacementRequest other{Of({{"CPU", 1}}), {{"zone", "x"}}, ""};
  EXPECT_THAT(
      RejectionOf(Place(cluster, {request, other}, {PlacementStrategy::kStrictPack})).reason,
      HasSubstr("ask for different labels"));
}

TEST(PlacementTest, PreferredNodeIsTakenWhenItFits) {
  const PlacementRequest request{Of({{"CPU", 3}}), {}, "c"};
  EXPECT_THAT(NodesOf(Place(ThreeNodes(), {request, request}, {PlacementStrategy::kPack})),
              ElementsAre("c", "a"));
}

TEST(PlacementTest, WorkWithoutGpuLeavesGpuNodesFree) {
  ClusterView cluster;
  cluster.Put("a", Node({{"CPU", 4}, {"GPU", 1}}));
  cluster.Put("b", Node({{"CPU", 4}}));
  EXPECT_THAT(NodesOf(Place(cluster, Times(5, {{"CPU", 1}}), {PlacementStrategy::kPack})),
              ElementsAre("b", "b", "b", "b", "a"));
}

TEST(PlacementTest, LargeRequestsAreTriedFirst) {
  ClusterView cluster;
  cluster.Put("a", Node({{"CPU", 4}}));
  cluster.Put("b", Node({{"CPU", 2}}));
  std::vector<PlacementRequest> requests = Times(1, {{"CPU", 2}});
  requests.push_back(Times(1, {{"CPU", 4}})[0]);
  EXPECT_THAT(NodesOf(Place(cluster, requests)), ElementsAre("b", "a"));
}

TEST(PlacementTest, BookingsAreRefusedBeyondTheTotal) {
  ClusterView cluster = ThreeNodes();
  EXPECT_TRUE(cluster.Reserve("a", Of({{"CPU", 4}})).ok());
  const Status full = cluster.Reserve("a", Of({{"CPU", 0.5}}));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(full.error().message, "node a lacks CPU 0.5");
  EXPECT_EQ(cluster.Reserve("z", Of({{"CPU", 1}})).error().code, ErrorCode::kNotFound);
  cluster.Release("a", Of({{"CPU", 4}}));
  EXPECT_TRUE(cluster.nodes().at("a").used.empty());
  cluster.Release("z", Of({{"CPU", 1}}));
}

TEST(PlacementTest, StrategyNamesAreReadBack) {
  for (const char* name : {"hybrid", "pack", "spread", "strict_pack", "strict_spread"}) {
    EXPECT_EQ(PlacementStrategyName(*ParsePlacementStrategy(name)), name);
  }
  EXPECT_THAT(ParsePlacementStrategy("dense").error().message, HasSubstr("use one of hybrid"));
}

}  // namespace
}  // namespace troupe
