// FleetAccounts: each class by itself, and FA-1 under random fleets.
#include "autoscaler/fleet_accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

using Billed = FleetAccounts::Node;
using Training = FleetAccounts::Run;

std::vector<PoolLimits> Pools() {
  PoolLimits spot;
  spot.name = "spot";
  spot.market = Market::kSpot;
  spot.workers_per_node = 2;
  spot.price_per_hour = 3.6;  // A worker-second costs 0.0005.
  PoolLimits base;
  base.name = "base";
  base.price_per_hour = 7.2;  // And 0.002.
  return {spot, base};
}

class AccountsTest : public ::testing::Test {
 protected:
  void After(double span_s, std::vector<Billed> nodes, const std::vector<Training>& runs = {}) {
    now_ = now_ + Duration(static_cast<int64_t>(span_s * 1e9));
    accounts_.Advance(now_, nodes, runs);
  }
  [[nodiscard]] double Of(TimeUse use) const {
    return accounts_.total().worker_s[static_cast<size_t>(use)];
  }
  static Billed Up(const std::string& id, int workers, int members, bool idle = false) {
    return {id, "spot", NodePhase::kUp, idle, workers, members};
  }

  Time now_{1'000'000'000};
  FleetAccounts accounts_{Pools()};
};

TEST_F(AccountsTest, ANodeGoesThroughItsClasses) {
  After(0, {{"n", "spot", NodePhase::kLaunching}});
  After(10, {Up("n", 0, 0, true)});
  After(5, {Up("n", 2, 0)});
  After(3, {Up("n", 2, 1)});
  After(7, {Up("n", 2, 2)});
  After(20, {{"n", "spot", NodePhase::kDraining, false, 1, 1}});
  After(4, {{"n", "spot", NodePhase::kDraining, true}});
  After(2, {{"n", "spot", NodePhase::kTerminating, true}});
  After(1, {});
  EXPECT_DOUBLE_EQ(Of(TimeUse::kStarting), 20);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kIdle), 10);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kWaiting), 2 * 3 + 7);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kUseful), 7 + 2 * 20 + 4);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kDraining), 4 + 2 * 2 + 2 * 1);
  EXPECT_DOUBLE_EQ(accounts_.total().PaidSeconds(), 2.0 * 52);
  EXPECT_DOUBLE_EQ(accounts_.total().Dollars(), 2 * 52 * 0.0005);
  EXPECT_DOUBLE_EQ(*accounts_.total().on_demand_dollars, 2 * 52 * 0.002);
  EXPECT_DOUBLE_EQ(accounts_.total().spot_worker_s, 2.0 * 52);
}

TEST_F(AccountsTest, RoomThatAnActorHasIsUseful) {
  After(0, {Up("n", 0, 0)});
  After(5, {});
  EXPECT_DOUBLE_EQ(Of(TimeUse::kUseful), 10);
}

TEST_F(AccountsTest, WhatMembersLostIsTakenFromUsefulTimeEvenIfThatComesLater) {
  After(0, {Up("n", 2, 2)}, {{"r", 10, 0, 0}});
  After(1, {Up("n", 2, 2)}, {{"r", 20, 4, 2}});  // More than there was.
  EXPECT_DOUBLE_EQ(Of(TimeUse::kUseful), 0);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kRecovering) + Of(TimeUse::kRedone), 2);
  After(9, {}, {{"r", 30, 4, 2}});
  EXPECT_DOUBLE_EQ(Of(TimeUse::kRecovering), 4);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kRedone), 2);
  EXPECT_DOUBLE_EQ(Of(TimeUse::kUseful), 20 - 6);
  EXPECT_DOUBLE_EQ(accounts_.total().lost_dollars, 6 * 0.0005);
  EXPECT_EQ(accounts_.total().steps, 30U);
}

TEST_F(AccountsTest, AHeadThatWasRestartedCountsFromZero) {
  After(0, {Up("n", 2, 2)}, {{"r", 10, 1, 0}});
  After(10, {Up("n", 2, 2)}, {{"r", 5, 0.5, 0}});
  After(10, {}, {{"r", 12, 0.5, 0}});
  EXPECT_DOUBLE_EQ(Of(TimeUse::kRecovering), 1.5);
  EXPECT_EQ(accounts_.total().steps, 12U);
}

TEST_F(AccountsTest, SamplesAndTimesThroughTheDataAreThoseOfAllRuns) {
  After(0, {Up("n", 2, 2)}, {{"a", 10, 0, 0, 500, 1000}, {"b", 5, 0, 0}});
  After(1, {Up("n", 2, 2)}, {{"a", 20, 0, 0, 1000, 1000}, {"b", 9, 0, 0, 100, 50}});
  EXPECT_EQ(accounts_.total().samples, 1100U);
  EXPECT_DOUBLE_EQ(accounts_.total().epochs, 1 + 2);
  // A group that has gone back to a commit, and a head that was restarted.
  After(1, {Up("n", 2, 2)}, {{"a", 20, 0, 0, 900, 1000}, {"b", 9, 0, 0}});
  After(1, {}, {{"a", 20, 0, 0, 1200, 1000}, {"b", 9, 0, 0, 150, 50}});
  EXPECT_EQ(accounts_.total().samples, 1350U);
  EXPECT_DOUBLE_EQ(accounts_.total().epochs, 1.2 + 3);
}

TEST_F(AccountsTest, APreemptionCostsTheStartOfWhoFollows) {
  Billed noticed = Up("a", 2, 2);
  After(0, {Up("a", 2, 2), {"first", "spot", NodePhase::kLaunching}});
  noticed.noticed = true;
  After(1, {noticed, Up("first", 2, 2)});
  After(1, {noticed, Up("first", 2, 2), {"b", "spot", NodePhase::kLaunching}});
  After(10, {Up("first", 2, 2), Up("b", 2, 2)});
  After(1, {Up("b", 2, 2)});  // "first" went without a word.
  EXPECT_EQ(accounts_.total().preemptions, 2);
  EXPECT_DOUBLE_EQ(accounts_.total().lost_dollars, 20 * 0.0005);
}

TEST_F(AccountsTest, WithoutAnOnDemandPoolNothingIsComparedWithOne) {
  FleetAccounts spot_only({Pools()[0]});
  EXPECT_FALSE(spot_only.total().on_demand_dollars.has_value());
}

// FA-1: against what each node's life comes to.
TEST_F(AccountsTest, TheClassesSumToThePaidTime) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    FleetAccounts accounts(Pools());
    std::map<std::string, Billed> fleet;
    std::map<std::string, Time> since;
    Training run{"r", 0, 0, 0};
    Time now{1'000'000'000};
    double paid = 0;
    const auto leave = [&](const std::string& id) {
      paid += ToSeconds(now - since[id]) * (fleet[id].pool == "spot" ? 2 : 1);
      fleet.erase(id);
    };
    for (int step = 0; step < 200; ++step) {
      now = now + milliseconds(up_to(5000));
      for (const char* id : {"a", "b", "c", "d"}) {
        const bool there = fleet.contains(id);
        if (there && up_to(20) == 0) {
          leave(id);
        } else if (!there && up_to(4) == 0) {
          fleet[id] = {id, up_to(2) == 0 ? "spot" : "base"};
          since[id] = now;
        } else if (there) {
          Billed& node = fleet[id];
          if (up_to(5) == 0 && node.phase != NodePhase::kTerminating)
            node.phase = static_cast<NodePhase>(static_cast<int>(node.phase) + 1);
          node.idle = up_to(3) == 0;
          node.workers = up_to(4);
          node.members = up_to(node.workers + 1);
          node.noticed = node.noticed || up_to(10) == 0;
        }
      }
      run.stood_s += up_to(3);
      run.redone_s += up_to(2);
      if (up_to(50) == 0) run = {"r", 0, 0, 0};
      std::vector<Billed> nodes;
      for (const auto& [id, node] : fleet) nodes.push_back(node);
      accounts.Advance(now, nodes, {run});
      for (const double part : accounts.total().worker_s) ASSERT_GE(part, -1e-9) << "seed " << seed;
    }
    while (!fleet.empty()) leave(fleet.begin()->first);
    EXPECT_NEAR(accounts.total().PaidSeconds(), paid, 1e-6 * paid + 1e-9) << "seed " << seed;
    double by_pool = 0;
    for (const auto& [pool, sums] : accounts.pools()) by_pool += sums.PaidSeconds();
    EXPECT_NEAR(by_pool, paid, 1e-6 * paid + 1e-9) << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe
