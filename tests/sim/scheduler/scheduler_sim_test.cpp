// SC-1..SC-11 for every seed; the same seed gives the same decisions; every mutant is caught.
// seeds.h says which seeds.
#include "tests/sim/scheduler/scheduler_sim.h"

#include <gtest/gtest.h>

#include "tests/sim/seeds.h"

namespace troupe::sched::sim {
namespace {

TEST(SchedulerSimulation, InvariantsHoldForEverySeed) {
  const troupe::sim::Seeds run = troupe::sim::SeedsToRun(2000);
  const uint64_t count = run.count;
  SimResult sum;
  for (uint64_t seed = run.first; seed < run.end(); ++seed) {
    const SimResult result = RunSchedulerSimulation({seed});
    ASSERT_TRUE(result.ok) << "seed " << seed << ": " << result.violation
                           << "\nreplay: TROUPE_SIM_SEED=" << seed;
    sum.granted += result.granted;
    sum.revoked += result.revoked;
    sum.groups_placed += result.groups_placed;
    sum.rescheduled += result.rescheduled;
    sum.promises += result.promises;
    sum.restarts += result.restarts;
    sum.gangs_granted += result.gangs_granted;
    sum.lent += result.lent;
    sum.overcommitted += result.overcommitted;
  }
  std::printf(
      "%llu seeds, %d grants, %d revoked, %d bundles placed, %d placed again, %d promises, %d "
      "restarts, %d gang members granted, %d lent, %d overcommitted\n",
      static_cast<unsigned long long>(count), sum.granted, sum.revoked, sum.groups_placed,
      sum.rescheduled, sum.promises, sum.restarts, sum.gangs_granted, sum.lent, sum.overcommitted);
  if (count < 1000) return;
  const auto seeds = static_cast<int>(count);  // What is to be tested did happen.
  EXPECT_GT(sum.granted, 10 * seeds);
  EXPECT_GT(sum.revoked, seeds);
  EXPECT_GT(sum.groups_placed, seeds);
  EXPECT_GT(sum.rescheduled, seeds / 10);
  EXPECT_GT(sum.promises, seeds);
  EXPECT_GT(sum.restarts, seeds);
  EXPECT_GT(sum.gangs_granted, seeds);
  EXPECT_GT(sum.lent, seeds);
  EXPECT_GT(sum.overcommitted, seeds / 50);
}

TEST(SchedulerSimulation, SameSeedSameDecisions) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t hash = RunSchedulerSimulation({seed}).hash;
    EXPECT_EQ(hash, RunSchedulerSimulation({seed}).hash);
    EXPECT_NE(hash, RunSchedulerSimulation({seed + 1}).hash);
  }
}

class SchedulerMutants : public testing::TestWithParam<std::pair<Sabotage, const char*>> {};

TEST_P(SchedulerMutants, AreCaught) {
  const auto [sabotage, invariant] = GetParam();
  std::string others;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const SimResult result = RunSchedulerSimulation({seed, 120, sabotage});
    if (result.violation.starts_with(std::string(invariant) + ":")) return;
    if (!result.ok) others = result.violation;
  }
  ADD_FAILURE() << "no seed of 2000 noticed the mutant as " << invariant
                << "; last other: " << others;
}

INSTANTIATE_TEST_SUITE_P(
    All, SchedulerMutants,
    testing::Values(
        std::pair(Sabotage::kMoreCpu, "SC-1"), std::pair(Sabotage::kMoreDevices, "SC-1"),
        std::pair(Sabotage::kSmallBundles, "view"), std::pair(Sabotage::kSwapDevices, "SC-1"),
        std::pair(Sabotage::kForgetLabels, "SC-2"), std::pair(Sabotage::kForgetDrain, "SC-2"),
        std::pair(Sabotage::kGrantTwice, "SC-2"), std::pair(Sabotage::kHalfGroups, "SC-3"),
        std::pair(Sabotage::kPackAll, "SC-3"), std::pair(Sabotage::kForgetRelease, "SC-4"),
        std::pair(Sabotage::kForgetAlive, "SC-4"), std::pair(Sabotage::kRaisePriority, "SC-5"),
        std::pair(Sabotage::kLastFirst, "SC-6"), std::pair(Sabotage::kLeak, "SC-7"),
        std::pair(Sabotage::kNoPromises, "SC-9"), std::pair(Sabotage::kLateConfirm, "SC-10"),
        std::pair(Sabotage::kLendOther, "SC-11")));

}  // namespace
}  // namespace troupe::sched::sim
