#include "autoscaler/fleet_fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "autoscaler/fleet_sweep.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Time kFenceStart = Time{} + seconds(1000);

CensusNode NodeOf(const std::string& life, const std::string& id = "i-1") {
  return {id, "spot-1", life, false};
}

FleetFence FenceOf(const std::string& life, std::set<std::string> over = {}) {
  return FleetFence({life, std::move(over), false, seconds(360)});
}

TEST(FleetFenceTest, NobodyGoesBeforeAList) {
  FleetFence fence = FenceOf("b");
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(3600)), FenceVerdict::kWait);
  fence.Take(kFenceStart, {});
  EXPECT_EQ(fence.verdict(kFenceStart), FenceVerdict::kGo);
}

// It may have been killed: then they end by themselves.
TEST(FleetFenceTest, NodesOfAnotherLifeAreWaitedForWhoeverIsOlder) {
  for (const char* other : {"a", "c"}) {
    FleetFence fence = FenceOf("b");
    fence.Take(kFenceStart, {NodeOf(other)});
    EXPECT_EQ(fence.verdict(kFenceStart + seconds(359)), FenceVerdict::kWait);
    EXPECT_THAT(fence.to_end(), IsEmpty());
    fence.Take(kFenceStart + seconds(300), {});
    EXPECT_EQ(fence.verdict(kFenceStart + seconds(300)), FenceVerdict::kGo);
  }
}

TEST(FleetFenceTest, WhoIsStillThereAfterThatIsHeldBySomebodyElse) {
  FleetFence fence = FenceOf("b");
  fence.Take(kFenceStart, {NodeOf("a")});
  fence.Take(kFenceStart + seconds(200), {NodeOf("a", "i-2")});
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(360)), FenceVerdict::kYield);
}

TEST(FleetFenceTest, OfTwoThatHaveLaunchedTheLaterOneGivesWay) {
  FleetFence older = FenceOf("a");
  FleetFence later = FenceOf("b");
  older.Take(kFenceStart, {});
  later.Take(kFenceStart, {});
  const std::vector<CensusNode> both = {NodeOf("a"), NodeOf("b", "i-2")};
  older.Take(kFenceStart + seconds(60), both);
  later.Take(kFenceStart + seconds(60), both);
  EXPECT_EQ(older.verdict(kFenceStart + seconds(3600)), FenceVerdict::kGo);
  EXPECT_EQ(later.verdict(kFenceStart + seconds(61)), FenceVerdict::kWait);
  EXPECT_EQ(later.verdict(kFenceStart + seconds(60 + 360)), FenceVerdict::kYield);
}

TEST(FleetFenceTest, NodesOfALifeThatIsOverAreEndedAndNoOthers) {
  FleetFence fence = FenceOf("c", {"a"});
  fence.Take(kFenceStart, {NodeOf("a"), NodeOf("b", "i-2"), NodeOf("c", "i-3")});
  EXPECT_THAT(fence.to_end(), ElementsAre(NodeOf("a")));
  EXPECT_THAT(fence.held(), ElementsAre(NodeOf("b", "i-2")));
  EXPECT_EQ(fence.verdict(kFenceStart), FenceVerdict::kWait);
}

TEST(FleetFenceTest, WhoTakesOverEndsAllOthersAndWhatEndsIsNotWaitedFor) {
  FleetFence fence({"b", {}, true, seconds(360)});
  CensusNode ending = NodeOf("a", "i-2");
  ending.ending = true;
  fence.Take(kFenceStart, {NodeOf("a"), ending, NodeOf("c", "i-3")});
  EXPECT_THAT(fence.to_end(), ElementsAre(NodeOf("a"), NodeOf("c", "i-3")));
  EXPECT_EQ(fence.verdict(kFenceStart), FenceVerdict::kWait);
  fence.Take(kFenceStart + seconds(2), {ending});
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(2)), FenceVerdict::kGo);
}

// They have the slots, or the quota, that the new ones want. A host that is stuck is no rival.
TEST(FleetFenceTest, WhatIsToBeEndedIsWaitedForButNotForEver) {
  FleetFence fence = FenceOf("c", {"a"});
  fence.Take(kFenceStart, {NodeOf("a")});
  fence.Take(kFenceStart + seconds(300), {NodeOf("a")});
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(359)), FenceVerdict::kWait);
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(360)), FenceVerdict::kGo);
  fence.Take(kFenceStart + seconds(361), {NodeOf("a")});
  EXPECT_EQ(fence.verdict(kFenceStart + seconds(361)), FenceVerdict::kGo);
  // One that is listed late does not stop a fleet that is under way.
  FleetFence under_way = FenceOf("c", {"a"});
  under_way.Take(kFenceStart, {});
  under_way.Take(kFenceStart + seconds(60), {NodeOf("a")});
  EXPECT_EQ(under_way.verdict(kFenceStart + seconds(60)), FenceVerdict::kGo);
  EXPECT_THAT(under_way.to_end(), ElementsAre(NodeOf("a")));
}

class ScriptedCensus final : public FleetCensus {
 public:
  void List(Answer done) override {
    ++lists;
    done(answer);
  }
  void End(const std::vector<CensusNode>& nodes, std::function<void(Status)> done) override {
    for (const CensusNode& node : nodes) ended.push_back(node.id);
    done(end_status);
  }
  [[nodiscard]] std::string Unknown() const override { return unknown; }

  Result<std::vector<CensusNode>> answer = std::vector<CensusNode>{};
  Status end_status = Status::Ok();
  std::string unknown;
  std::vector<std::string> ended;
  int lists = 0;
};

class FleetSweepTest : public ::testing::Test {
 protected:
  void StepAt(Duration at) { sweep_.Step(kFenceStart + at); }

  ScriptedCensus census_;
  std::vector<std::string> said_;
  FleetSweep sweep_{&census_,
                    {seconds(1), seconds(3), seconds(10),
                     [this](const std::string& line) { said_.push_back(line); }}};
};

TEST_F(FleetSweepTest, NothingIsLeftWhenListsSaySoForAWhile) {
  StepAt(seconds(0));
  StepAt(milliseconds(500));
  EXPECT_EQ(census_.lists, 1);
  StepAt(seconds(2));
  EXPECT_FALSE(sweep_.done());
  census_.answer = std::vector{NodeOf("a")};  // A list that came late.
  StepAt(seconds(3));
  EXPECT_FALSE(sweep_.done());
  EXPECT_THAT(census_.ended, ElementsAre("i-1"));
  census_.answer = std::vector<CensusNode>{};
  StepAt(seconds(4));
  StepAt(seconds(6));
  EXPECT_FALSE(sweep_.done());
  StepAt(seconds(7));
  EXPECT_TRUE(sweep_.done());
  EXPECT_EQ(sweep_.ended(), 1U);
  EXPECT_THAT(said_, ElementsAre("ending spot-1 (i-1)"));
}

TEST_F(FleetSweepTest, NodesThatComeMeanwhileAreEndedTooAndItIsSaid) {
  census_.answer = std::vector{NodeOf("a")};
  StepAt(seconds(0));
  census_.answer = std::vector{NodeOf("a", "i-2")};
  StepAt(seconds(1));
  EXPECT_THAT(census_.ended, ElementsAre("i-1", "i-2"));
  EXPECT_THAT(said_.back(), HasSubstr("if another host runs `troupe up` of it, end that first"));
}

TEST_F(FleetSweepTest, WhoStaysIsAskedAgainButNotAllTheTime) {
  census_.answer = std::vector{NodeOf("a")};
  for (int second = 0; second < 21; ++second) StepAt(seconds(second));
  EXPECT_THAT(census_.ended, ElementsAre("i-1", "i-1", "i-1"));
  EXPECT_FALSE(sweep_.done());
  EXPECT_EQ(sweep_.Left(), "spot-1 (i-1)");
}

TEST_F(FleetSweepTest, AListThatFailsOrIsNotWholeProvesNothing) {
  census_.answer = Error{ErrorCode::kUnavailable, "the cloud is silent"};
  StepAt(seconds(0));
  census_.answer = std::vector<CensusNode>{};
  StepAt(seconds(1));
  census_.answer = Error{ErrorCode::kUnavailable, "the cloud is silent"};
  StepAt(seconds(2));
  EXPECT_THAT(sweep_.Left(), HasSubstr("the cloud is silent"));
  census_.answer = std::vector<CensusNode>{};
  census_.unknown = "not known what is there on h1: timed out";
  for (int second = 3; second < 20; ++second) StepAt(seconds(second));
  EXPECT_FALSE(sweep_.done());
  EXPECT_THAT(sweep_.Left(), HasSubstr("h1: timed out"));
}

TEST_F(FleetSweepTest, AnEndThatIsRefusedIsTold) {
  census_.answer = std::vector{NodeOf("a")};
  census_.end_status = Error{ErrorCode::kPermissionDenied, "you may not"};
  StepAt(seconds(0));
  EXPECT_THAT(sweep_.Left(), HasSubstr("you may not"));
  EXPECT_THAT(said_, ElementsAre("ending spot-1 (i-1)", "you may not"));
}

}  // namespace
}  // namespace troupe
