// How many processes are asked for, for tasks that wait.
#include "actors/core/runner_demand.h"

#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

RunnerDemand Waiting(size_t tasks, Duration each, size_t moving) {
  RunnerDemand demand;
  demand.waiting = tasks;
  demand.work = static_cast<int64_t>(tasks) * each;
  demand.known = each > Duration::zero();
  demand.moving = demand.runners = moving;
  return demand;
}

TEST(RunnerDemandTest, WhatNobodyKnowsGetsOneForEachTask) {
  EXPECT_EQ(MoreRunners(Waiting(0, {}, 0)), 0U);
  EXPECT_EQ(MoreRunners(Waiting(1, {}, 0)), 1U);
  EXPECT_EQ(MoreRunners(Waiting(100, {}, 0)), kRunnersFirst);
  EXPECT_EQ(MoreRunners(Waiting(100, {}, 9)), 9U);
  EXPECT_EQ(MoreRunners(Waiting(100, {}, 50)), kRunnersComing);
}

TEST(RunnerDemandTest, WhatIsDoneSoonWaitsForWhoIsThere) {
  EXPECT_EQ(MoreRunners(Waiting(10, microseconds(200), 1)), 0U);
  EXPECT_EQ(MoreRunners(Waiting(1000, microseconds(200), 4)), 0U);
  // 200 ms by one, 100 by two, 67 by three, 50 by four.
  EXPECT_EQ(MoreRunners(Waiting(1000, microseconds(200), 1)), 2U);
  EXPECT_EQ(MoreRunners(Waiting(1000, microseconds(200), 3)), 1U);
  EXPECT_EQ(MoreRunners(Waiting(1, milliseconds(20), 1)), 0U);
}

TEST(RunnerDemandTest, LongTasksGetOneEach) {
  EXPECT_EQ(MoreRunners(Waiting(3, seconds(1), 3)), 3U);
  EXPECT_EQ(MoreRunners(Waiting(100, seconds(1), 8)), 8U);
}

TEST(RunnerDemandTest, WhoDoesNotMoveDoesNotCount) {
  RunnerDemand demand = Waiting(2, microseconds(200), 0);
  demand.runners = 3;
  EXPECT_EQ(MoreRunners(demand), 2U);
}

TEST(RunnerDemandTest, WhoIsComingOrCouldNotComeIsNotAskedForTwice) {
  RunnerDemand demand = Waiting(3, {}, 0);
  demand.coming = demand.runners = 1;
  EXPECT_EQ(MoreRunners(demand), 1U);
  demand.failed = 1;
  EXPECT_EQ(MoreRunners(demand), 0U);
}

TEST(RunnerDemandTest, ThereIsALimit) {
  EXPECT_EQ(MoreRunners(Waiting(10'000, seconds(1), kRunnersMax - 1)), 1U);
  EXPECT_EQ(MoreRunners(Waiting(10'000, seconds(1), kRunnersMax + 1)), 0U);
}

}  // namespace
}  // namespace troupe::actors
