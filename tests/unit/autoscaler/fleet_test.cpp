#include "autoscaler/fleet.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr Time kStart{1'000'000'000'000};

TEST(FleetTest, NodesGoThroughTheirPhasesAndOnlyForward) {
  Fleet fleet;
  fleet.Update(kStart, {{"a-1", "t-1", "a", false, ""}});
  ASSERT_EQ(fleet.nodes().size(), 1u);
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kLaunching);
  EXPECT_EQ(fleet.nodes()[0].since, kStart);
  fleet.NodeUp(kStart + seconds(3), "a-1");
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kUp);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kStart + seconds(3));
  fleet.Update(kStart + seconds(4), {{"a-1", "t-1", "a", false, ""}});
  EXPECT_EQ(fleet.nodes()[0].since, kStart + seconds(3));
  fleet.Draining(kStart + seconds(5), "a-1");
  fleet.NodeUp(kStart + seconds(6), "a-1");
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kDraining);
  EXPECT_EQ(fleet.nodes()[0].since, kStart + seconds(5));
  fleet.Update(kStart + seconds(7), {{"a-1", "t-1", "a", true, ""}});
  EXPECT_EQ(fleet.nodes()[0].phase, NodePhase::kTerminating);
  fleet.Update(kStart + seconds(8), {});
  EXPECT_TRUE(fleet.nodes().empty());
}

TEST(FleetTest, IdlenessCountsFromItsBeginning) {
  Fleet fleet;
  fleet.Update(kStart, {{"a-1", "t-1", "a", false, ""}});
  fleet.NodeUp(kStart, "a-1");
  fleet.SetIdle(kStart + seconds(5), "a-1", true);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kStart);
  fleet.SetIdle(kStart + seconds(6), "a-1", false);
  EXPECT_EQ(fleet.nodes()[0].idle_since, Time::Never());
  fleet.SetIdle(kStart + seconds(7), "a-1", true);
  fleet.SetIdle(kStart + seconds(8), "a-1", true);
  EXPECT_EQ(fleet.nodes()[0].idle_since, kStart + seconds(7));
}

TEST(FleetTest, ASecondNoticeOnlyBringsTheDeadlineNearer) {
  Fleet fleet;
  fleet.Update(kStart, {{"a-1", "t-1", "a", false, ""}});
  fleet.Noticed("a-1", kStart + seconds(120));
  fleet.Noticed("a-1", kStart + seconds(30));
  fleet.Noticed("a-1", kStart + seconds(300));
  EXPECT_EQ(fleet.nodes()[0].notice_deadline, kStart + seconds(30));
}

TEST(FleetTest, UnknownNodesAreIgnored) {
  Fleet fleet;
  fleet.NodeUp(kStart, "x");
  fleet.SetIdle(kStart, "x", true);
  fleet.Noticed("x", kStart);
  fleet.Draining(kStart, "x");
  fleet.Terminating(kStart, "x");
  EXPECT_TRUE(fleet.nodes().empty());
}

}  // namespace
}  // namespace troupe
