// HC-1..3 for every seed; the same seed gives the same run; what is broken on purpose is noticed.
// seeds.h says which seeds.
#include <gtest/gtest.h>

#include <utility>

#include "runtime/mutation.h"
#include "tests/sim/actors/holder_sim.h"
#include "tests/sim/seeds.h"

namespace troupe::actors::sim {
namespace {

TEST(HolderSimulation, NoActorEndsTooEarlyOrNeverForAnySeed) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(3000);
  HolderResult sum;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const HolderResult one = RunHolderSimulation(seed);
    ASSERT_TRUE(one.ok) << "seed " << seed << ": " << one.violation
                        << "\nreplay: TROUPE_SIM_SEED=" << seed;
    sum.actors += one.actors;
    sum.sent += one.sent;
    sum.own += one.own;
    sum.ended += one.ended;
    sum.refused += one.refused;
    sum.deaths += one.deaths;
    sum.returns += one.returns;
    sum.restarts += one.restarts;
  }
  std::printf(
      "%llu seeds, %d actors, %d messages, %d with their sender, %d ended, %d not, %d deaths, %d "
      "returns, %d heads\n",
      static_cast<unsigned long long>(seeds.count), sum.actors, sum.sent, sum.own, sum.ended,
      sum.refused, sum.deaths, sum.returns, sum.restarts);
  if (seeds.count < 1000) return;
  const auto count = static_cast<int>(seeds.count);  // What is to be tested did happen.
  EXPECT_GT(sum.actors, 8 * count);
  EXPECT_GT(sum.sent, 10 * count);
  EXPECT_GT(sum.own, count);
  EXPECT_GT(sum.ended, 5 * count);
  EXPECT_GT(sum.refused, count / 50);
  EXPECT_GT(sum.deaths, count / 2);
  EXPECT_GT(sum.returns, count / 10);
  EXPECT_GT(sum.restarts, count / 2);
}

TEST(HolderSimulation, SameSeedSameRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t hash = RunHolderSimulation(seed).hash;
    EXPECT_EQ(hash, RunHolderSimulation(seed).hash);
    EXPECT_NE(hash, RunHolderSimulation(seed + 1000).hash);
  }
}

// The code under test, with one line of it wrong.
class HolderMutants : public testing::TestWithParam<const char*> {};

TEST_P(HolderMutants, AreCaught) {
  const Mutated mutated(GetParam());
  const std::string invariant(GetParam(), 4);
  std::string other;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const HolderResult result = RunHolderSimulation(seed);
    if (result.violation.starts_with(invariant)) return;
    if (!result.ok) other = result.violation;
  }
  ADD_FAILURE() << "no seed of 3000 noticed \"" << GetParam() << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(
    All, HolderMutants,
    testing::Values("HC-1 holders do not count", "HC-1 who has made it does not hold it",
                    "HC-1 no time to settle", "HC-1 a new head does not wait",
                    "HC-1 a new head does not wait for all", "HC-1 a new head is told nothing anew",
                    "HC-1 who comes back has held nothing", "HC-1 old orders to leave count",
                    "HC-2 nobody is told of the last", "HC-2 the dead hold for ever",
                    "HC-3 old notes count"));

}  // namespace
}  // namespace troupe::actors::sim
