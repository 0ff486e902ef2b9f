#include "autoscaler/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::ElementsAre;

constexpr Time kFleetStart{1'000'000'000'000};

TEST(FleetTest, NodesGoThroughTheirPhasesAndOnlyForward) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, ""}});
  ASSERT_EQ(fleet.nodes().size(), 1u);
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kLaunching);
  EXPECT_EQ(fleet.nodes()[0].since, kFleetStart);
  fleet.NodeUp(kFleetStart + seconds(3), "a-1");
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kUp);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kFleetStart + seconds(3));
  fleet.Update(kFleetStart + seconds(4), {{"a-1", "t-1", "a", false, ""}});
  EXPECT_EQ(fleet.nodes()[0].since, kFleetStart + seconds(3));
  fleet.Draining(kFleetStart + seconds(5), "a-1");
  fleet.NodeUp(kFleetStart + seconds(6), "a-1");
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kDraining);
  EXPECT_EQ(fleet.nodes()[0].since, kFleetStart + seconds(5));
  fleet.Update(kFleetStart + seconds(7), {{"a-1", "t-1", "a", true, ""}});
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kTerminating);
  fleet.Update(kFleetStart + seconds(8), {});
  EXPECT_TRUE(fleet.nodes().empty());
}

TEST(FleetTest, ANodeThatIsOnlyAskedForIsNoneYet) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, "", true}});
  EXPECT_TRUE(fleet.nodes().empty());
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, "", false}});
  EXPECT_EQ(fleet.nodes().size(), 1U);
}

TEST(FleetTest, IdlenessCountsFromItsBeginning) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, ""}});
  fleet.NodeUp(kFleetStart, "a-1");
  fleet.SetIdle(kFleetStart + seconds(5), "a-1", true);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kFleetStart);
  fleet.SetIdle(kFleetStart + seconds(6), "a-1", false);
  EXPECT_EQ(fleet.nodes()[0].idle_since, Time::Never());
  fleet.SetIdle(kFleetStart + seconds(7), "a-1", true);
  fleet.SetIdle(kFleetStart + seconds(8), "a-1", true);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kFleetStart + seconds(7));
}

TEST(FleetTest, ASecondNoticeOnlyBringsTheDeadlineNearer) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, ""}});
  fleet.Noticed("a-1", kFleetStart + seconds(120));
  fleet.Noticed("a-1", kFleetStart + seconds(30));
  fleet.Noticed("a-1", kFleetStart + seconds(300));
  EXPECT_EQ(fleet.nodes()[0].notice_deadline, kFleetStart + seconds(30));
}

TEST(FleetTest, UnknownNodesAreIgnored) {
  Fleet fleet;
  fleet.NodeUp(kFleetStart, "x");
  fleet.SetIdle(kFleetStart, "x", true);
  fleet.Noticed("x", kFleetStart);
  fleet.Draining(kFleetStart, "x");
  fleet.Terminating(kFleetStart, "x");
  EXPECT_TRUE(fleet.nodes().empty());
}

// Its process has ended and its machine has not, or the head was restarted and will hear of it.
TEST(FleetTest, ANodeThatIsMissingInTheClusterForLongIsLost) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a-1", "t-1", "a", false, ""}, {"a-2", "t-2", "a", false, ""}});
  EXPECT_THAT(fleet.Lost(kFleetStart, {}), ElementsAre());  // They have still to register.
  fleet.NodeUp(kFleetStart, "a-1");
  EXPECT_THAT(fleet.Lost(kFleetStart, {}), ElementsAre());
  EXPECT_THAT(fleet.Lost(kFleetStart + seconds(50), {"a-1"}), ElementsAre());  // Back again.
  EXPECT_THAT(fleet.Lost(kFleetStart + seconds(60), {}), ElementsAre());
  EXPECT_THAT(fleet.Lost(kFleetStart + seconds(119), {}), ElementsAre());
  EXPECT_THAT(fleet.Lost(kFleetStart + seconds(120), {"a-2"}), ElementsAre("a-1"));
  fleet.Terminating(kFleetStart + seconds(120), "a-1");
  EXPECT_THAT(fleet.Lost(kFleetStart + seconds(121), {}), ElementsAre());
}

TEST(FleetTest, ANodeThatDrainsByItselfIsNewsOnce) {
  Fleet fleet;
  fleet.Update(kFleetStart, {{"a", "t1", "pool", false, ""}});
  fleet.NodeUp(kFleetStart, "a");
  EXPECT_FALSE(fleet.DrainsByItself(kFleetStart, "unknown", Time::Never()));
  EXPECT_TRUE(fleet.DrainsByItself(kFleetStart + seconds(1), "a", kFleetStart + seconds(30)));
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kDraining);
  EXPECT_EQ(fleet.nodes()[0].since, kFleetStart + seconds(1));
  EXPECT_EQ(fleet.nodes()[0].notice_deadline, kFleetStart + seconds(30));
  EXPECT_FALSE(fleet.DrainsByItself(kFleetStart + seconds(2), "a", kFleetStart + seconds(9)));
}

}  // namespace
}  // namespace troupe
