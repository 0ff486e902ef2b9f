#include "tests/sim/actor_groups/actor_group_sim.h"

#include <gtest/gtest.h>

#include "runtime/mutation.h"
#include "tests/sim/seeds.h"

namespace troupe::daemons::sim {
namespace {

TEST(ActorGroupSimulation, KeepsWhatIsPromisedForEverySeed) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(2'000);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    for (const bool of_run : {false, true}) {
      ASSERT_EQ(RunActorGroupSim(seed, of_run), "")
          << (of_run ? "of a run" : "of actors") << "; replay: TROUPE_SIM_SEED=" << seed;
    }
  }
}

// The code under test is wrong in one place, and breaks what it is named by.
class ActorGroupMutants : public ::testing::TestWithParam<const char*> {};

TEST_P(ActorGroupMutants, AreCaught) {
  const std::string mutation = GetParam();
  const Mutated mutated(mutation);
  std::string other;
  for (uint64_t seed = 1; seed <= 1'000; ++seed) {
    for (const bool of_run : {false, true}) {
      const std::string violation = RunActorGroupSim(seed, of_run);
      if (violation.starts_with(mutation.substr(0, 4))) return;
      if (!violation.empty()) other = violation;
    }
  }
  ADD_FAILURE() << "no seed has noticed \"" << mutation << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(All, ActorGroupMutants,
                         ::testing::Values("AG-1 numbers are given again",
                                           "AG-2 a repeated shrink is another",
                                           "AG-3 members of an ended group stay",
                                           "AG-4 too few go on", "AG-4 too few alive go on",
                                           "AG-5 the overdue stay", "AG-7 a closed group is filled",
                                           "AG-7 the finished live again",
                                           "AG-7 the dead of a closed group live"));

}  // namespace
}  // namespace troupe::daemons::sim
