// AC-1..4, MB-1..4, AL-1 and DR-1..8 for every seed; the same seed gives the same run; every mutant
// is caught.
// seeds.h says which seeds.
#include "tests/sim/actors/actor_sim.h"

#include <gtest/gtest.h>

#include "runtime/mutation.h"
#include "tests/sim/seeds.h"

namespace troupe::actors::sim {
namespace {

using Simulation = SimResult (*)(const SimOptions&);

SimResult RunAll(Simulation run, const troupe::sim::Seeds& seeds) {
  SimResult sum;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const SimResult result = run({seed});
    if (!result.ok) {
      ADD_FAILURE() << "seed " << seed << ": " << result.violation
                    << "\nreplay: TROUPE_SIM_SEED=" << seed;
      return sum;
    }
    sum.completed += result.completed;
    sum.failed += result.failed;
    sum.deaths += result.deaths;
    sum.repeats += result.repeats;
    sum.full += result.full;
    sum.saves += result.saves;
  }
  return sum;
}

TEST(ActorSimulation, CallsKeepTheirPromisesForEverySeed) {
  const troupe::sim::Seeds run = troupe::sim::SeedsToRun(3000);
  const uint64_t count = run.count;
  const SimResult sum = RunAll(RunCallSimulation, run);
  std::printf("%llu seeds, %d values, %d errors, %d deaths, %d repeats, %d full, %d saves\n",
              static_cast<unsigned long long>(count), sum.completed, sum.failed, sum.deaths,
              sum.repeats, sum.full, sum.saves);
  if (count < 1000) return;
  const auto seeds = static_cast<int>(count);  // What is to be tested did happen.
  EXPECT_GT(sum.completed, 20 * seeds);
  EXPECT_GT(sum.failed, 5 * seeds);
  EXPECT_GT(sum.deaths, 3 * seeds);
  EXPECT_GT(sum.repeats, seeds);
  EXPECT_GT(sum.full, seeds);
  EXPECT_GT(sum.saves, seeds);
}

TEST(ActorSimulation, TheDirectoryKeepsItsPromisesForEverySeed) {
  const troupe::sim::Seeds run = troupe::sim::SeedsToRun(3000);
  const SimResult sum = RunAll(RunDirectorySimulation, run);
  if (run.count < 1000) return;
  EXPECT_GT(sum.deaths, static_cast<int>(5 * run.count));
}

TEST(ActorSimulation, SameSeedSameRun) {
  for (const Simulation run : {&RunCallSimulation, &RunDirectorySimulation}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const uint64_t hash = run({seed}).hash;
      EXPECT_EQ(hash, run({seed}).hash);
      EXPECT_NE(hash, run({seed + 1}).hash);
    }
  }
}

struct Mutant {
  Sabotage sabotage;
  const char* invariant;
  Simulation run;
};

class ActorMutants : public testing::TestWithParam<Mutant> {};

TEST_P(ActorMutants, AreCaught) {
  std::string others;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const SimResult result = GetParam().run({seed, 250, GetParam().sabotage});
    if (result.violation.starts_with(GetParam().invariant)) return;
    if (!result.ok) others = result.violation;
  }
  ADD_FAILURE() << "no seed of 500 noticed the mutant as " << GetParam().invariant
                << "; last other: " << others;
}

INSTANTIATE_TEST_SUITE_P(Calls, ActorMutants,
                         testing::Values(Mutant{Sabotage::kSwapSends, "AC-1", RunCallSimulation},
                                         Mutant{Sabotage::kSettleTwice, "AC-2", RunCallSimulation},
                                         Mutant{Sabotage::kForgetSweep, "AC-3", RunCallSimulation},
                                         Mutant{Sabotage::kHideDeath, "AC-4", RunCallSimulation},
                                         Mutant{Sabotage::kRunTwice, "MB-1", RunCallSimulation},
                                         Mutant{Sabotage::kRunLast, "MB-1", RunCallSimulation},
                                         Mutant{Sabotage::kLoseState, "MB-1", RunCallSimulation},
                                         Mutant{Sabotage::kDeepMailbox, "MB-2", RunCallSimulation},
                                         Mutant{Sabotage::kOtherReply, "MB-3", RunCallSimulation},
                                         Mutant{Sabotage::kRunLate, "MB-4", RunCallSimulation},
                                         Mutant{Sabotage::kReplyUnsaved, "AL-1",
                                                RunCallSimulation}));

INSTANTIATE_TEST_SUITE_P(
    Directory, ActorMutants,
    testing::Values(Mutant{Sabotage::kOldIncarnation, "DR-1", RunDirectorySimulation},
                    Mutant{Sabotage::kForgetName, "DR-2", RunDirectorySimulation},
                    Mutant{Sabotage::kRaiseDead, "DR-3", RunDirectorySimulation},
                    Mutant{Sabotage::kMoreRestarts, "DR-4", RunDirectorySimulation},
                    Mutant{Sabotage::kForgetOwner, "DR-5", RunDirectorySimulation},
                    Mutant{Sabotage::kRestartTwice, "DR-6", RunDirectorySimulation},
                    Mutant{Sabotage::kForgetLink, "DR-7", RunDirectorySimulation}));

TEST(DirectoryMutants, OneThatNobodyRefersToAndThatIsStartedAgainIsNoticed) {
  const Mutated mutated("DR-8 one that nobody refers to is started again");
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    if (RunDirectorySimulation({seed}).violation.starts_with("DR-8")) return;
  }
  ADD_FAILURE() << "no seed of 500 noticed it";
}

}  // namespace
}  // namespace troupe::actors::sim
