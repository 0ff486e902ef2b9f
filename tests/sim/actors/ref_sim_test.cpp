// RF-1..4 for every seed; the same seed gives the same run; what is broken on purpose is noticed.
// seeds.h says which seeds.
#include <gtest/gtest.h>

#include <utility>

#include "runtime/mutation.h"
#include "tests/sim/actors/ref_sim.h"
#include "tests/sim/seeds.h"

namespace troupe::actors::sim {
namespace {

TEST(RefSimulation, NothingIsFreedTooEarlyOrKeptTooLongForAnySeed) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(3000);
  RefResult sum;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const RefResult one = RunRefSimulation(seed);
    ASSERT_TRUE(one.ok) << "seed " << seed << ": " << one.violation
                        << "\nreplay: TROUPE_SIM_SEED=" << seed;
    sum.objects += one.objects;
    sum.sent += one.sent;
    sum.reads += one.reads;
    sum.freed += one.freed;
    sum.deaths += one.deaths;
    sum.lost += one.lost;
  }
  std::printf("%llu seeds, %d objects, %d messages, %d reads, %d freed, %d deaths, %d lost\n",
              static_cast<unsigned long long>(seeds.count), sum.objects, sum.sent, sum.reads,
              sum.freed, sum.deaths, sum.lost);
  if (seeds.count < 1000) return;
  const auto count = static_cast<int>(seeds.count);  // What is to be tested did happen.
  EXPECT_GT(sum.objects, 10 * count);
  EXPECT_GT(sum.sent, 10 * count);
  EXPECT_GT(sum.reads, 2 * count);
  EXPECT_GT(sum.freed, 5 * count);
  EXPECT_GT(sum.deaths, count / 2);
  EXPECT_GT(sum.lost, count / 4);
}

TEST(RefSimulation, SameSeedSameRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t hash = RunRefSimulation(seed).hash;
    EXPECT_EQ(hash, RunRefSimulation(seed).hash);
    EXPECT_NE(hash, RunRefSimulation(seed + 1000).hash);
  }
}

// The code under test, with one line of it wrong.
class RefMutants : public testing::TestWithParam<const char*> {};

TEST_P(RefMutants, AreCaught) {
  const Mutated mutated(GetParam());
  const std::string invariant(GetParam(), 4);
  std::string other;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const RefResult result = RunRefSimulation(seed);
    if (result.violation.starts_with(invariant)) return;
    if (!result.ok) other = result.violation;
  }
  ADD_FAILURE() << "no seed of 1000 noticed \"" << GetParam() << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(All, RefMutants,
                         testing::Values("RF-1 borrowers do not count", "RF-1 nothing is pinned",
                                         "RF-1 taken before the owner knows",
                                         "RF-1 no time to settle", "RF-2 nothing is freed",
                                         "RF-2 the end of a borrow is not told",
                                         "RF-2 dead borrowers count", "RF-2 unclaimed pins last",
                                         "RF-2 who has got a call is not noted",
                                         "RF-3 old notes count",
                                         "RF-4 the death of an owner is not told"));

}  // namespace
}  // namespace troupe::actors::sim
