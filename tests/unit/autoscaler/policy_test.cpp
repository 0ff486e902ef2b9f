#include "autoscaler/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Time kStart{1'000'000'000'000};

PoolLimits Spot(const std::string& name, double price, int max_workers = 10) {
  return {name, Market::kSpot, "", 1, 0, max_workers, price};
}
PoolLimits OnDemand(const std::string& name, double price, int max_workers = 10) {
  return {name, Market::kOnDemand, "", 1, 0, max_workers, price};
}

FleetLimits Limits(std::vector<PoolLimits> pools, int min_workers, int max_workers) {
  FleetLimits limits;
  limits.pools = std::move(pools);
  limits.min_workers = min_workers;
  limits.max_workers = max_workers;
  limits.max_nodes = max_workers + 2;
  return limits;
}

FleetNode Node(const std::string& id, const std::string& pool, NodePhase phase = NodePhase::kUp) {
  FleetNode node;
  node.id = id;
  node.token = "token of " + id;
  node.pool = pool;
  node.phase = phase;
  node.since = kStart;
  return node;
}

// "launch spot", "drain a", "terminate b", in order.
std::vector<std::string> Verbs(const Decision& decision) {
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

std::string TokenOf(const Decision& decision, size_t index) {
  return std::get<Launch>(decision.actions.at(index).what).token;
}

TEST(PolicyTest, FillsUpToTheDemandFromTheCheapestPool) {
  AutoscalerPolicy policy(Limits({Spot("dear", 0.5), Spot("cheap", 0.3, 2)}, 1, 8), "t");
  const Decision decision = policy.Decide(kStart, {3}, {});
  EXPECT_THAT(Verbs(decision), ElementsAre("launch cheap", "launch cheap", "launch dear"));
  EXPECT_EQ(TokenOf(decision, 0), "t-1");
  EXPECT_EQ(TokenOf(decision, 2), "t-3");
  EXPECT_THAT(decision.reason, HasSubstr("want 3 workers (demand 3, limits 1 to 8), have 0"));
}

TEST(PolicyTest, APendingLaunchCountsUntilItIsListed) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  const Decision first = policy.Decide(kStart, {1}, {});
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(1), {1}, {})), IsEmpty());
  FleetNode node = Node("spot-1", "spot", NodePhase::kLaunching);
  node.token = TokenOf(first, 0);
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(2), {1}, {node})), IsEmpty());
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(3), {2}, {node})), ElementsAre("launch spot"));
}

TEST(PolicyTest, DemandIsClampedToTheLimits) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 2, 3), "t");
  EXPECT_EQ(policy.Decide(kStart, {0}, {}).actions.size(), 2u);
  EXPECT_EQ(policy.Decide(kStart, {100}, {}).actions.size(), 1u);
  EXPECT_THAT(policy.Decide(kStart, {100}, {}).reason, HasSubstr("want 3 workers (demand 100"));
}

TEST(PolicyTest, WorkersThatWouldAddTooLittleAreNotLaunchedAndItIsSaidWhy) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 2, 8), "t");
  const Decision decision = policy.Decide(kStart, {8, 3, "worker 4 would add 0.10"}, {});
  EXPECT_EQ(decision.actions.size(), 3u);
  EXPECT_THAT(decision.reason, HasSubstr("want 3 workers (demand 8"));
  EXPECT_THAT(decision.reason, HasSubstr("; worker 4 would add 0.10"));
  // Never below the floor; and nothing is said where nobody wants more.
  EXPECT_THAT(policy.Decide(kStart, {8, 1, "none"}, {}).reason, HasSubstr("want 2 workers"));
  EXPECT_THAT(policy.Decide(kStart, {3, 3, "none"}, {}).reason, Not(HasSubstr("none")));
}

TEST(PolicyTest, FailedLaunchCoolsItsPoolAndDoublesEachTime) {
  FleetLimits limits = Limits({Spot("spot", 0.3)}, 1, 8);
  limits.cooldown = seconds(10);
  limits.cooldown_max = seconds(25);
  AutoscalerPolicy policy(limits, "t");
  Time now = kStart;
  for (const int expected_s : {10, 20, 25, 25}) {
    const Decision launch = policy.Decide(now, {1}, {});
    ASSERT_THAT(Verbs(launch), ElementsAre("launch spot"));
    policy.LaunchFailed(now, TokenOf(launch, 0), "no capacity", true);
    const Decision wait = policy.Decide(now, {1}, {});
    EXPECT_THAT(Verbs(wait), IsEmpty());
    EXPECT_EQ(wait.next_wake, now + seconds(expected_s));
    EXPECT_THAT(wait.reason, HasSubstr("spot cools down for " + std::to_string(expected_s) +
                                       " s (no capacity)"));
    now = now + seconds(expected_s);
    EXPECT_THAT(Verbs(policy.Decide(now - nanoseconds(1), {1}, {})), IsEmpty());
  }
}

TEST(PolicyTest, ANodeThatComesUpEndsTheDoubling) {
  FleetLimits limits = Limits({Spot("spot", 0.3)}, 1, 8);
  limits.cooldown = seconds(10);
  AutoscalerPolicy policy(limits, "t");
  policy.LaunchFailed(kStart, TokenOf(policy.Decide(kStart, {1}, {}), 0), "no capacity", true);
  FleetNode node = Node("spot-1", "spot");
  node.since = kStart + seconds(11);
  const Decision more = policy.Decide(kStart + seconds(12), {2}, {node});
  policy.LaunchFailed(kStart + seconds(12), TokenOf(more, 0), "no capacity", true);
  EXPECT_EQ(policy.Decide(kStart + seconds(12), {2}, {node}).next_wake, kStart + seconds(22));
}

TEST(PolicyTest, RoomThatAppearsEndsTheCoolDown) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  policy.LaunchFailed(kStart, TokenOf(policy.Decide(kStart, {1}, {}), 0), "no room", true);
  EXPECT_THAT(Verbs(policy.Decide(kStart, {1}, {})), IsEmpty());
  policy.RoomAppeared();
  EXPECT_THAT(Verbs(policy.Decide(kStart, {1}, {})), ElementsAre("launch spot"));
}

TEST(PolicyTest, ANodeThatHasSaidWhyItEndedBeforeItWasUpCoolsItsPoolOnce) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  FleetNode node = Node("spot-1", "spot");
  node.token = TokenOf(policy.Decide(kStart, {1}, {}), 0);
  node.phase = NodePhase::kLaunching;
  node.since = kStart;
  (void)policy.Decide(kStart, {1}, {node});
  policy.LaunchFailed(kStart, node.token, "no driver for the GPU", true);
  const Decision wait = policy.Decide(kStart, {1}, {});
  EXPECT_THAT(Verbs(wait), IsEmpty());
  EXPECT_EQ(wait.next_wake, kStart + policy.limits().cooldown);
  EXPECT_THAT(wait.reason, HasSubstr("no driver for the GPU"));
}

TEST(PolicyTest, AFailureThatCannotHealWaitsLongest) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  policy.LaunchFailed(kStart, TokenOf(policy.Decide(kStart, {1}, {}), 0), "no permission", false);
  EXPECT_EQ(policy.Decide(kStart, {1}, {}).next_wake, kStart + policy.limits().cooldown_max);
}

TEST(PolicyTest, ALaunchThatNeverShowsUpIsGivenUp) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  const Decision first = policy.Decide(kStart, {1}, {});
  EXPECT_EQ(first.next_wake, kStart + seconds(600));
  const Decision later = policy.Decide(first.next_wake, {1}, {});
  EXPECT_THAT(Verbs(later), IsEmpty());
  EXPECT_THAT(later.reason, HasSubstr("a launch did not show up within 600 s"));
  EXPECT_EQ(TokenOf(policy.Decide(later.next_wake, {1}, {}), 0), "t-2");
}

TEST(PolicyTest, ANodeThatNeverComesUpIsEndedAndItsPoolCoolsOnce) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 1, 8), "t");
  const std::vector<FleetNode> fleet = {Node("spot-1", "spot", NodePhase::kLaunching)};
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(599), {1}, fleet)), IsEmpty());
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(600), {1}, fleet)),
              ElementsAre("terminate spot-1"));
  // Not carried out yet: asked again, but the cool-down does not grow.
  const Decision again = policy.Decide(kStart + seconds(601), {1}, fleet);
  EXPECT_THAT(Verbs(again), ElementsAre("terminate spot-1"));
  EXPECT_EQ(again.next_wake, kStart + seconds(600) + policy.limits().cooldown);
}

TEST(PolicyTest, OnDemandBaseAndShareComeFirst) {
  FleetLimits limits = Limits({Spot("spot", 0.3), OnDemand("base", 1.0)}, 1, 10);
  limits.on_demand_base = 2;
  limits.on_demand_percent_above_base = 25;
  AutoscalerPolicy policy(limits, "t");
  EXPECT_THAT(Verbs(policy.Decide(kStart, {6}, {})),
              ElementsAre("launch base", "launch base", "launch base", "launch spot", "launch spot",
                          "launch spot"));
}

TEST(PolicyTest, PoolMinimaAreHeldEvenWithoutDemand) {
  FleetLimits limits = Limits({Spot("spot", 0.3), OnDemand("base", 1.0)}, 0, 4);
  limits.pools[1].min_workers = 1;
  AutoscalerPolicy policy(limits, "t");
  EXPECT_THAT(Verbs(policy.Decide(kStart, {0}, {})), ElementsAre("launch base"));
  // And they are not drained.
  FleetNode idle = Node("base-1", "base");
  idle.idle_since = kStart;
  AutoscalerPolicy other(limits, "t");
  EXPECT_THAT(Verbs(other.Decide(kStart + seconds(6000), {0}, {idle})), IsEmpty());
}

TEST(PolicyTest, OnDemandIsTheFallbackAfterAWhileWithoutSpot) {
  FleetLimits limits = Limits({Spot("spot", 0.3), OnDemand("base", 1.0)}, 1, 4);
  limits.cooldown = seconds(600);
  limits.fallback_after = seconds(120);
  AutoscalerPolicy policy(limits, "t");
  policy.LaunchFailed(kStart, TokenOf(policy.Decide(kStart, {1}, {}), 0), "no capacity", true);
  const Decision wait = policy.Decide(kStart, {1}, {});
  EXPECT_THAT(Verbs(wait), IsEmpty());
  EXPECT_EQ(wait.next_wake, kStart + seconds(120));
  EXPECT_THAT(wait.reason, HasSubstr("base is the fallback in 120 s"));
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(119), {1}, {})), IsEmpty());
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(120), {1}, {})), ElementsAre("launch base"));
}

TEST(PolicyTest, ANoticedNodeIsDrainedAndReplacedAtOnce) {
  AutoscalerPolicy policy(Limits({Spot("a", 0.3), Spot("b", 0.4)}, 2, 2), "t");
  std::vector<FleetNode> fleet = {Node("a-1", "a"), Node("a-2", "a")};
  EXPECT_THAT(Verbs(policy.Decide(kStart, {2}, fleet)), IsEmpty());
  fleet[0].notice_deadline = kStart + seconds(30);
  // Not in the pool that was just preempted, although it is cheaper.
  const Decision decision = policy.Decide(kStart, {2}, fleet);
  EXPECT_THAT(Verbs(decision), ElementsAre("drain a-1", "launch b"));
  EXPECT_EQ(std::get<Drain>(decision.actions[0].what).deadline, kStart + seconds(30));
  fleet[0].phase = NodePhase::kDraining;
  EXPECT_EQ(policy.Decide(kStart, {2}, fleet).next_wake, kStart + seconds(30));
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(30), {2}, fleet)), ElementsAre("terminate a-1"));
  fleet[0].idle_since = kStart + seconds(2);
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(3), {2}, fleet)), ElementsAre("terminate a-1"));
}

TEST(PolicyTest, AVanishedNodeIsReplacedElsewhereFirst) {
  AutoscalerPolicy policy(Limits({Spot("a", 0.3), Spot("b", 0.4)}, 1, 2), "t");
  EXPECT_THAT(Verbs(policy.Decide(kStart, {1}, {Node("a-1", "a")})), IsEmpty());
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(1), {1}, {})), ElementsAre("launch b"));
}

TEST(PolicyTest, ANodeThatEndsBeforeItCameUpCoolsItsPool) {
  AutoscalerPolicy policy(Limits({Spot("a", 0.3)}, 1, 2), "t");
  const FleetNode node = Node("a-1", "a", NodePhase::kLaunching);
  EXPECT_THAT(Verbs(policy.Decide(kStart, {1}, {node})), IsEmpty());
  const Decision decision = policy.Decide(kStart + seconds(1), {1}, {});
  EXPECT_THAT(Verbs(decision), IsEmpty());
  EXPECT_THAT(decision.reason, HasSubstr("a node ended before it came up"));
}

TEST(PolicyTest, IdleNodesGoTheDearestFirstAndNeverBelowTheTarget) {
  FleetLimits limits = Limits({Spot("spot", 0.3), Spot("dear", 1.0)}, 1, 4);
  limits.idle_timeout = seconds(60);
  AutoscalerPolicy policy(limits, "t");
  std::vector<FleetNode> fleet = {Node("dear-1", "dear"), Node("spot-1", "spot"),
                                  Node("spot-2", "spot")};
  for (FleetNode& node : fleet) node.idle_since = kStart;
  EXPECT_EQ(policy.Decide(kStart, {0}, fleet).next_wake, kStart + seconds(60));
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(60), {0}, fleet)),
              ElementsAre("drain dear-1", "drain spot-1"));
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(60), {3}, fleet)), IsEmpty());
}

TEST(PolicyTest, BusyNodesAreNeverDrainedForLackOfDemand) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 0, 4), "t");
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(9999), {0}, {Node("spot-1", "spot")})),
              IsEmpty());
}

TEST(PolicyTest, NodeLimitAndConcurrencyHoldBackLaunches) {
  FleetLimits limits = Limits({Spot("spot", 0.3)}, 1, 8);
  limits.max_concurrent_launches = 2;
  AutoscalerPolicy policy(limits, "t");
  const Decision decision = policy.Decide(kStart, {8}, {});
  EXPECT_EQ(decision.actions.size(), 2u);
  EXPECT_THAT(decision.reason, HasSubstr("2 launches are under way, max_concurrent_launches"));

  limits.max_nodes = 3;
  AutoscalerPolicy other(limits, "t");
  std::vector<FleetNode> fleet = {Node("spot-1", "spot", NodePhase::kTerminating),
                                  Node("spot-2", "spot"), Node("spot-3", "spot")};
  const Decision full = other.Decide(kStart, {8}, fleet);
  EXPECT_THAT(Verbs(full), IsEmpty());
  EXPECT_THAT(full.reason, HasSubstr("there are 3 nodes, max_nodes"));
}

TEST(PolicyTest, BudgetHoldsBackLaunches) {
  FleetLimits limits = Limits({Spot("spot", 0.4)}, 1, 8);
  limits.budget_per_hour = 1.0;
  AutoscalerPolicy policy(limits, "t");
  const Decision decision = policy.Decide(kStart, {8}, {});
  EXPECT_EQ(decision.actions.size(), 2u);
  EXPECT_THAT(decision.reason, HasSubstr("a node of spot would exceed budget_per_hour"));
}

TEST(PolicyTest, NodesOfSeveralWorkersDoNotExceedMaxWorkers) {
  FleetLimits limits = Limits({Spot("big", 1.0)}, 1, 7);
  limits.pools[0].workers_per_node = 4;
  AutoscalerPolicy policy(limits, "t");
  const Decision decision = policy.Decide(kStart, {7}, {});
  EXPECT_THAT(Verbs(decision), ElementsAre("launch big"));
  EXPECT_THAT(decision.reason, HasSubstr("a node of big would exceed max_workers"));
}

TEST(PolicyTest, NodesOfAPoolThatIsNotConfiguredAnyMoreAreDrainedWhenIdle) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3)}, 0, 4), "t");
  FleetNode old = Node("old-1", "old");
  old.idle_since = kStart;
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(60), {0}, {old})), ElementsAre("drain old-1"));
}

TEST(PolicyTest, ReturnsFromTheFallbackOnceASpotNodeIsUp) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3), OnDemand("base", 1)}, 1, 4), "t");
  FleetNode base = Node("base-1", "base");
  const Decision ahead = policy.Decide(kStart, {1}, {base});
  EXPECT_THAT(Verbs(ahead), ElementsAre("launch spot"));
  EXPECT_THAT(ahead.actions[0].reason, HasSubstr("return from the fallback"));
  FleetNode spot = Node("spot-1", "spot", NodePhase::kLaunching);
  spot.token = TokenOf(ahead, 0);
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(1), {1}, {base, spot})), IsEmpty());
  spot.phase = NodePhase::kUp;
  EXPECT_THAT(Verbs(policy.Decide(kStart + seconds(2), {1}, {base, spot})),
              ElementsAre("drain base-1"));
}

TEST(PolicyTest, ReturnsOneNodeAtATimeAndOnlyToSpotThatServes) {
  AutoscalerPolicy policy(Limits({Spot("spot", 0.3), OnDemand("base", 1)}, 1, 8), "t");
  const std::vector<FleetNode> fleet{Node("base-1", "base"), Node("base-2", "base")};
  const Decision first = policy.Decide(kStart, {2}, fleet);
  EXPECT_THAT(Verbs(first), ElementsAre("launch spot"));
  policy.LaunchFailed(kStart, TokenOf(first, 0), "no capacity", true);
  const Decision cooling = policy.Decide(kStart + seconds(1), {2}, fleet);
  EXPECT_THAT(Verbs(cooling), IsEmpty());
  EXPECT_EQ(cooling.next_wake, kStart + policy.limits().cooldown);
  EXPECT_THAT(Verbs(policy.Decide(cooling.next_wake, {2}, fleet)), ElementsAre("launch spot"));
}

TEST(PolicyTest, WithoutRoomForBothTheOnDemandNodeMakesRoomUnlessTooFewWouldBeLeft) {
  const std::vector<FleetNode> fleet{Node("base-1", "base"), Node("base-2", "base")};
  FleetLimits limits = Limits({Spot("spot", 0.3), OnDemand("base", 1)}, 1, 2);
  limits.max_nodes = 2;
  AutoscalerPolicy full(limits, "t");
  EXPECT_THAT(Verbs(full.Decide(kStart, {2}, fleet)), ElementsAre("drain base-1"));
  EXPECT_THAT(Verbs(full.Decide(kStart + seconds(1), {2}, {fleet[1]})), ElementsAre("launch spot"));
  limits.min_workers = 2;
  AutoscalerPolicy tight(limits, "t");
  EXPECT_THAT(Verbs(tight.Decide(kStart, {2}, fleet)), IsEmpty());
}

TEST(PolicyTest, TheOnDemandShareStays) {
  FleetLimits limits = Limits({Spot("spot", 0.3), OnDemand("base", 1)}, 1, 8);
  limits.on_demand_base = 1;
  AutoscalerPolicy policy(limits, "t");
  EXPECT_THAT(Verbs(policy.Decide(kStart, {1}, {Node("base-1", "base")})), IsEmpty());
}

}  // namespace
}  // namespace troupe
