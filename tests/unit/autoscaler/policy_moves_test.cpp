// What the policy learns of pools, how it spreads, and how it changes nodes for better ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autoscaler/join_window.h"
#include "autoscaler/policy.h"
#include "autoscaler/pool_record.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Time kMovesStart{1'000'000'000'000};

PoolLimits SpotIn(const std::string& name, const std::string& zone, double price = 0.3) {
  return {name, Market::kSpot, zone, 1, 0, 10, price};
}

FleetLimits FleetOf(std::vector<PoolLimits> pools, int min_workers, int max_workers) {
  FleetLimits limits;
  limits.pools = std::move(pools);
  limits.min_workers = min_workers;
  limits.max_workers = max_workers;
  limits.max_nodes = max_workers + 2;
  return limits;
}

FleetNode UpNode(const std::string& id, const std::string& pool) {
  FleetNode node;
  node.id = id;
  node.token = "token of " + id;
  node.pool = pool;
  node.phase = NodePhase::kUp;
  node.since = kMovesStart;
  return node;
}

std::vector<std::string> Said(const Decision& decision) {
  std::vector<std::string> verbs;
  for (const Action& action : decision.actions) {
    if (const auto* launch = std::get_if<Launch>(&action.what)) {
      verbs.push_back("launch " + launch->pool);
    } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
      verbs.push_back("drain " + drain->node);
    } else {
      verbs.push_back("terminate " + std::get<Terminate>(action.what).node);
    }
  }
  return verbs;
}

std::string TokenAt(const Decision& decision, size_t index) {
  return std::get<Launch>(decision.actions.at(index).what).token;
}

TEST(PolicyMovesTest, PricesThatRiseOverTheBudgetCostTheDearestNodesButNotTheFloor) {
  FleetLimits limits = FleetOf({SpotIn("a", "a1"), SpotIn("b", "b1")}, 1, 3);
  limits.budget_per_hour = 1;
  AutoscalerPolicy policy(limits, "t");
  const std::vector<FleetNode> fleet = {UpNode("a-1", "a"), UpNode("b-1", "b"), UpNode("b-2", "b")};
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {3}, fleet)), IsEmpty());  // $0.9.
  policy.PriceIs("b", 0.45);
  Decision decision = policy.Decide(kMovesStart, {3}, fleet);
  EXPECT_THAT(Said(decision), ElementsAre("drain b-1"));
  EXPECT_THAT(decision.actions[0].reason, HasSubstr("costs $1.2 an hour, budget_per_hour is $1"));
  policy.PriceIs("b", 5);
  policy.PriceIs("a", 2);
  decision = policy.Decide(kMovesStart, {3}, fleet);
  EXPECT_THAT(Said(decision), ElementsAre("drain b-1", "drain b-2"));
  EXPECT_THAT(decision.reason, HasSubstr("over budget_per_hour, with no more than min_workers"));
}

TEST(PolicyMovesTest, ABudgetThatIsJustReachedIsNotExceeded) {
  FleetLimits limits = FleetOf({SpotIn("a", "a1", 0.1)}, 1, 3);
  limits.budget_per_hour = 0.3;
  AutoscalerPolicy policy(limits, "t");
  const std::vector<FleetNode> fleet = {UpNode("a-1", "a"), UpNode("a-2", "a"), UpNode("a-3", "a")};
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {3}, fleet)), IsEmpty());
}

TEST(PolicyMovesTest, RegionsAreTheZonesWithoutTheirLetter) {
  EXPECT_EQ(RegionOf("us-east-1a"), "us-east-1");
  EXPECT_EQ(RegionOf("europe-west4-b"), "europe-west4");
  EXPECT_EQ(RegionOf("rack"), "rack");
  EXPECT_EQ(RegionOf("7"), "7");
  EXPECT_EQ(RegionOf(""), "");
}

TEST(PolicyMovesTest, EqualPoolsAreSpreadOverRegionsBeforeZones) {
  AutoscalerPolicy policy(
      FleetOf({SpotIn("ea", "us-east-1a"), SpotIn("eb", "us-east-1b"), SpotIn("wa", "us-west-2a")},
              1, 4),
      "t");
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {4}, {})),
              ElementsAre("launch ea", "launch wa", "launch eb", "launch wa"));
}

TEST(PolicyMovesTest, AZoneHoldsItsShareAndNoMore) {
  FleetLimits limits = FleetOf({SpotIn("a1", "a"), SpotIn("a2", "a", 0.31)}, 1, 6);
  limits.max_fraction_per_zone = 0.5;
  AutoscalerPolicy policy(limits, "t");
  const Decision decision = policy.Decide(kMovesStart, {6}, {});
  EXPECT_EQ(decision.actions.size(), 3U);
  EXPECT_THAT(decision.reason, HasSubstr("zone a holds its share of 3 workers"));
}

TEST(PolicyMovesTest, TheFloorGoesBeforeTheShare) {
  FleetLimits limits = FleetOf({SpotIn("a", "a")}, 5, 6);
  limits.max_fraction_per_zone = 0.5;
  AutoscalerPolicy policy(limits, "t");
  EXPECT_EQ(policy.Decide(kMovesStart, {6}, {}).actions.size(), 5U);
}

TEST(PolicyMovesTest, LaunchesThatFailTogetherCoolOnce) {
  AutoscalerPolicy policy(FleetOf({SpotIn("a", "a")}, 1, 4), "t");
  const Decision four = policy.Decide(kMovesStart, {4}, {});
  ASSERT_EQ(four.actions.size(), 4U);
  for (size_t i = 0; i < 4; ++i)
    policy.LaunchFailed(kMovesStart, TokenAt(four, i), "no capacity", true);
  EXPECT_EQ(policy.Decide(kMovesStart, {4}, {}).next_wake, kMovesStart + policy.limits().cooldown);
}

TEST(PolicyMovesTest, APoolThatHasRefusedIsAskedForOneNodeFirst) {
  AutoscalerPolicy policy(FleetOf({SpotIn("a", "a")}, 1, 4), "t");
  const Decision four = policy.Decide(kMovesStart, {4}, {});
  for (size_t i = 0; i < 4; ++i)
    policy.LaunchFailed(kMovesStart, TokenAt(four, i), "no capacity", true);
  const Time later = kMovesStart + policy.limits().cooldown;
  const Decision probe = policy.Decide(later, {4}, {});
  EXPECT_THAT(Said(probe), ElementsAre("launch a"));
  EXPECT_THAT(probe.reason, HasSubstr("a is asked for one node first (no capacity)"));
  FleetNode node = UpNode("a-1", "a");
  node.phase = NodePhase::kLaunching;
  node.token = TokenAt(probe, 0);
  EXPECT_EQ(policy.Decide(later + seconds(1), {4}, {node}).actions.size(), 3U);
}

TEST(PolicyMovesTest, ReplacementsAreLaunchedBesideAFullFleetAndThenItIsDrained) {
  std::vector<PoolLimits> pools = {SpotIn("spot", "a"), SpotIn("base", "")};
  pools[1].market = Market::kOnDemand;
  pools[1].price_per_hour = 1;
  AutoscalerPolicy policy(FleetOf(pools, 3, 3), "t");
  std::vector<FleetNode> fleet = {UpNode("base-1", "base"), UpNode("base-2", "base"),
                                  UpNode("base-3", "base")};
  // One to see whether spot serves, then as many as max_nodes leaves room for.
  const Decision probe = policy.Decide(kMovesStart, {3}, fleet);
  ASSERT_THAT(Said(probe), ElementsAre("launch spot"));
  fleet.push_back(UpNode("spot-1", "spot"));
  fleet[3].phase = NodePhase::kLaunching;
  fleet[3].token = TokenAt(probe, 0);
  const Decision more = policy.Decide(kMovesStart + seconds(1), {3}, fleet);
  ASSERT_THAT(Said(more), ElementsAre("launch spot"));
  fleet.push_back(UpNode("spot-2", "spot"));
  fleet[4].token = TokenAt(more, 0);
  fleet[3].phase = NodePhase::kUp;
  EXPECT_THAT(Said(policy.Decide(kMovesStart + seconds(2), {3}, fleet)),
              ElementsAre("drain base-1", "drain base-2"));
}

TEST(PolicyMovesTest, ADearSpotNodeIsReplacedByACheaperOneThatIsUp) {
  AutoscalerPolicy policy(FleetOf({SpotIn("dear", "a", 0.5), SpotIn("cheap", "b", 0.3)}, 1, 1),
                          "t");
  std::vector<FleetNode> fleet = {UpNode("dear-1", "dear")};
  const Decision move = policy.Decide(kMovesStart, {1}, fleet);
  ASSERT_THAT(Said(move), ElementsAre("launch cheap"));
  EXPECT_THAT(move.actions[0].reason, HasSubstr("to leave a dearer spot pool: $0.3 per"));
  fleet.push_back(UpNode("cheap-1", "cheap"));
  fleet[1].token = TokenAt(move, 0);
  fleet[1].phase = NodePhase::kLaunching;
  EXPECT_THAT(Said(policy.Decide(kMovesStart + seconds(1), {1}, fleet)), IsEmpty());
  fleet[1].phase = NodePhase::kUp;
  fleet[1].idle_since = kMovesStart + seconds(2);
  const Decision leave = policy.Decide(kMovesStart + seconds(2), {1}, fleet);
  ASSERT_THAT(Said(leave), ElementsAre("drain dear-1"));
  EXPECT_EQ(leave.actions[0].reason, "cheaper spot serves in its place");
}

TEST(PolicyMovesTest, ANodeAtRiskIsReplacedFromAnotherPoolBeforeItGoes) {
  AutoscalerPolicy policy(FleetOf({SpotIn("a", "z1"), SpotIn("b", "z2")}, 1, 2), "t");
  std::vector<FleetNode> fleet = {UpNode("a-1", "a"), UpNode("a-2", "a")};
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {2}, fleet)), IsEmpty());
  fleet[0].at_risk = true;
  const Decision ahead = policy.Decide(kMovesStart + seconds(1), {2}, fleet);
  EXPECT_THAT(Said(ahead), ElementsAre("launch b"));
  EXPECT_THAT(ahead.actions[0].reason, HasSubstr("ahead of the end of a-1"));
  fleet[0].at_risk = false;  // Too late: there is no room for both.
  FleetNode came = UpNode("b-1", "b");
  came.token = TokenAt(ahead, 0);
  came.idle_since = kMovesStart + seconds(30);
  fleet.push_back(came);
  EXPECT_THAT(Said(policy.Decide(kMovesStart + seconds(31), {2}, fleet)), ElementsAre("drain a-1"));
}

TEST(PolicyMovesTest, NobodyIsMovedWithinThePoolThatIsAtRisk) {
  AutoscalerPolicy policy(FleetOf({SpotIn("a", "z1")}, 1, 2), "t");
  std::vector<FleetNode> fleet = {UpNode("a-1", "a"), UpNode("a-2", "a")};
  fleet[0].at_risk = true;
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {2}, fleet)), IsEmpty());
}

TEST(PolicyMovesTest, OfManyAtRiskAFewAreReplacedAtATime) {
  FleetLimits limits = FleetOf({SpotIn("a", "z1"), SpotIn("b", "z2")}, 1, 8);
  limits.max_nodes = 16;
  AutoscalerPolicy policy(limits, "t");
  std::vector<FleetNode> fleet;
  for (int i = 1; i <= 8; ++i) fleet.push_back(UpNode("a-" + std::to_string(i), "a"));
  for (FleetNode& node : fleet) node.at_risk = true;
  for (int i = 1; i <= 2; ++i) {
    const Decision decision = policy.Decide(kMovesStart + seconds(i), {8}, fleet);
    ASSERT_THAT(Said(decision), ElementsAre("launch b"));
    FleetNode made = UpNode("b-" + std::to_string(i), "b");
    made.phase = NodePhase::kLaunching;
    made.token = TokenAt(decision, 0);
    fleet.push_back(made);
  }
  EXPECT_THAT(Said(policy.Decide(kMovesStart + seconds(3), {8}, fleet)), IsEmpty());
}

TEST(PolicyMovesTest, ASmallSavingMovesNobody) {
  AutoscalerPolicy policy(FleetOf({SpotIn("a", "a", 0.32), SpotIn("b", "b", 0.30)}, 1, 1), "t");
  EXPECT_THAT(Said(policy.Decide(kMovesStart, {1}, {UpNode("a-1", "a")})), IsEmpty());
}

TEST(PolicyMovesTest, ABusyNodeIsNotMovedForLackOfDemand) {
  AutoscalerPolicy policy(FleetOf({SpotIn("dear", "a", 0.5), SpotIn("cheap", "b", 0.3)}, 0, 4),
                          "t");
  EXPECT_THAT(
      Said(policy.Decide(kMovesStart, {1}, {UpNode("dear-1", "dear"), UpNode("cheap-1", "cheap")})),
      IsEmpty());
}

TEST(PolicyMovesTest, WhereNodesAreLostOftenAUsefulHourCostsMore) {
  FleetLimits limits = FleetOf({SpotIn("a", "a", 0.300), SpotIn("b", "b", 0.305)}, 0, 2);
  limits.rebuild_time = seconds(600);
  AutoscalerPolicy policy(limits, "t");
  Time now = kMovesStart;
  for (int i = 0; i < 10; ++i) {
    (void)policy.Decide(now, {0}, {UpNode("a-" + std::to_string(i), "a")});
    now = now + seconds(60);
  }
  const Decision next = policy.Decide(now + seconds(3600), {1}, {});
  ASSERT_THAT(Said(next), ElementsAre("launch b"));
  EXPECT_THAT(next.actions[0].reason, HasSubstr("preemptions per node-hour"));
}

TEST(PoolRecordTest, HazardIsCountedPerNodeHourAndFades) {
  PoolRecord record;
  EXPECT_DOUBLE_EQ(record.Hazard(), 0.1);  // The prior.
  Time now = kMovesStart;
  record.Held(now, 10);
  now = now + seconds(3600);
  record.Preempted(now, 9);
  EXPECT_NEAR(record.Hazard(), 10.0 / 20, 0.02);
  record.Held(now, 0);
  record.Held(now + 10 * kHazardHalfLife, 0);
  EXPECT_NEAR(record.Hazard(), 0.1, 0.01);
}

TEST(PoolRecordTest, ACoolDownIsNoLongerThanAPartOfTheUsualOutage) {
  constexpr Duration kCool = seconds(10);
  constexpr Duration kMost = seconds(10'000);
  PoolRecord record;
  Time now = kMovesStart;
  const auto fail = [&] {
    record.Failed(now, "no capacity", true, kCool, kMost);
    const Duration wait = record.cool_until() - now;
    now = record.cool_until();
    return wait;
  };
  for (const int wait : {10, 20, 40, 80, 160, 320, 640}) EXPECT_EQ(fail(), seconds(wait));
  record.Granted(now, kCool);
  record.Serves(now);
  EXPECT_TRUE(record.proven());
  // The outage took 1270 s; a part of that is shorter than the cool-down itself.
  EXPECT_EQ(fail(), kCool);
  EXPECT_EQ(fail(), kCool);
  EXPECT_FALSE(record.proven());
}

TEST(JoinWindowTest, WaitsWhereMoreIsLostByRebuildsThanByWaiting) {
  JoinWindow window;
  for (int i = 0; i < 1200; ++i) window.Lost(kMovesStart + seconds(60 * i), 1);
  // One loss a minute, 16 workers, rebuilds of 5 s: 1.33 workers are lost by joins at once.
  const double wait = ToSeconds(window.WindowOf(seconds(5), 16));
  EXPECT_NEAR(wait, 60 * (std::sqrt(2 * 80.0 / 60 - 1) - 1), 3);
  // Long rebuilds: sqrt(2 R n / l).
  EXPECT_NEAR(ToSeconds(window.WindowOf(seconds(5000), 16)), std::sqrt(2 * 80'000.0 * 60), 150);
  EXPECT_EQ(window.WindowOf(milliseconds(20), 16), Duration::zero());
}

TEST(JoinWindowTest, APolicyHoldsLaunchesBackAboveTheFloorOnly) {
  FleetLimits limits = FleetOf({SpotIn("a", "a"), SpotIn("b", "b")}, 1, 8);
  limits.rebuild_time = seconds(600);
  AutoscalerPolicy policy(limits, "t");
  std::vector<FleetNode> fleet;
  for (int i = 0; i < 8; ++i) fleet.push_back(UpNode("a-" + std::to_string(i), "a"));
  ASSERT_THAT(Said(policy.Decide(kMovesStart, {8}, fleet)), IsEmpty());
  fleet.resize(4);
  const Decision waits = policy.Decide(kMovesStart + seconds(1), {8}, fleet);
  EXPECT_THAT(Said(waits), IsEmpty());
  EXPECT_THAT(waits.reason, HasSubstr("what is missing is launched together in"));
  ASSERT_LT(waits.next_wake, kMovesStart + seconds(3600));
  EXPECT_EQ(policy.Decide(waits.next_wake, {8}, fleet).actions.size(), 4U);
  // Nobody is up: nobody is held up.
  EXPECT_EQ(policy.Decide(waits.next_wake + seconds(1), {8}, {}).actions.size(), 4U);
}

TEST(PolicyMovesTest, PoolsWithoutPricesAreLeftAlone) {
  const FleetLimits limits = FleetOf({SpotIn("a", "a", 0), SpotIn("b", "b", 0)}, 1, 2);
  AutoscalerPolicy policy(limits, "t");
  const std::vector<FleetNode> fleet = {UpNode("a-1", "a"), UpNode("a-2", "a")};
  for (int i = 0; i < 100; ++i)
    EXPECT_THAT(Said(policy.Decide(kMovesStart + seconds(10 * i), {2}, fleet)), IsEmpty());
}

}  // namespace
}  // namespace troupe
