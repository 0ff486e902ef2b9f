#include "tests/sim/autoscaler/autoscaler_sim.h"

#include <gtest/gtest.h>

#include "runtime/mutation.h"
#include "tests/sim/seeds.h"

namespace troupe::sim {
namespace {

constexpr unsigned kSeeds = 1500;

TEST(AutoscalerSimTest, LimitsHoldUnderFaultsAndTheFleetConvergesAfterThem) {
  const Seeds seeds = SeedsToRun(kSeeds);
  size_t failures = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    ASSERT_EQ(RunAutoscalerSim(static_cast<unsigned>(seed), &failures), "")
        << "replay: TROUPE_SIM_SEED=" << seed;
  }
  if (!seeds.replay) {
    EXPECT_GT(failures, seeds.count);  // The faults do happen.
  }
}

// The code under test is wrong in one place, and breaks what it is named by.
class AutoscalerMutants : public ::testing::TestWithParam<const char*> {};

TEST_P(AutoscalerMutants, AreCaught) {
  const std::string mutation = GetParam();
  const Mutated mutated(mutation);
  std::string other;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const std::string violation = RunAutoscalerSim(seed);
    if (violation.starts_with(mutation.substr(0, 4))) return;
    if (!violation.empty()) other = violation;
  }
  ADD_FAILURE() << "no seed has noticed \"" << mutation << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(All, AutoscalerMutants,
                         ::testing::Values("AP-1 no max_nodes", "AP-1 no budget",
                                           "AP-1 no max_workers", "AP-2 no cool-down",
                                           "AP-3 leaves too early", "AP-4 a token again",
                                           "AP-5 no cap", "AP-5 no floor",
                                           "AP-6 trusts what is starting",
                                           "AP-7 the overdue stay"));

}  // namespace
}  // namespace troupe::sim
