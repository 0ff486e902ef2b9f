// GM-1..GM-17 under random kills, pauses, partitions, loss, duplication, reordering, drains, joins
// (some with state of their own), store outages, coordinator restarts, doubled coordinators, hung
// members, mismatched collectives, devices that fail and functions that return early. Then all but
// the hung ones heals and must converge (GM-5).
// seeds.h says which seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/mutation.h"
#include "tests/sim/group_sim.h"
#include "tests/sim/seeds.h"

namespace troupe::groups::sim {
namespace {

SimOptions OptionsFor(uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  std::mt19937_64 random(seed);
  options.members = 2 + static_cast<int>(random() % 5);
  options.min_members = 1 + static_cast<int>(random() % static_cast<uint64_t>(options.members));
  options.hosts = 2 + static_cast<int>(random() % 2);
  return options;
}

TEST(GroupSimulation, InvariantsHoldForEverySeed) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(2000);
  const uint64_t count = seeds.count;
  uint64_t epochs = 0;
  int kills = 0;
  int carriers = 0;
  int hangs = 0;
  int mismatches = 0;
  int cuts = 0;
  int left_out = 0;
  int store_losses = 0;
  int returns = 0;
  int released = 0;
  int busiest = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    const SimResult result = RunGroupSimulation(OptionsFor(seed));
    ASSERT_TRUE(result.ok) << "seed " << seed << ": " << result.violation
                           << "\nreplay: TROUPE_SIM_SEED=" << seed;
    epochs += result.epochs;
    kills += result.kills;
    carriers += result.carriers;
    hangs += result.hangs;
    mismatches += result.mismatches;
    cuts += result.cuts;
    left_out += result.left_out;
    store_losses += result.store_losses;
    returns += result.returns;
    released += result.released;
    busiest = std::max(busiest, result.busiest);
  }
  std::printf(
      "%llu seeds, %llu epochs, %d kills, %d joiners with state, %d hung members put aside, %d "
      "mismatches, %d cut routes, %d times a member left out, %d stores harmed, %d members that "
      "returned early, %d let go with the state, at most %d epochs in a second\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(epochs), kills,
      carriers, hangs, mismatches, cuts, left_out, store_losses, returns, released, busiest);
  if (!seeds.replay) {
    EXPECT_GT(epochs, count * 3);  // The faults did reach the protocol.
    EXPECT_GT(kills, static_cast<int>(count));
  }
  if (count >= 1000) {  // The rarer ones as well.
    EXPECT_GT(carriers, static_cast<int>(count) / 4);
    EXPECT_GT(hangs, static_cast<int>(count) / 40);
    EXPECT_GT(mismatches, static_cast<int>(count) / 20);
    EXPECT_GT(cuts, static_cast<int>(count) / 10);
    EXPECT_GT(left_out, static_cast<int>(count) / 10);
    EXPECT_GT(store_losses, static_cast<int>(count) / 20);
    EXPECT_GT(returns, static_cast<int>(count) / 40);
    EXPECT_GT(released, static_cast<int>(count) / 10);
  }
}

TEST(GroupSimulation, SameSeedSameEvents) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunGroupSimulation(OptionsFor(seed)).event_hash,
              RunGroupSimulation(OptionsFor(seed)).event_hash);
  }
}

TEST(GroupSimulation, TheSideWithMoreMembersGoesOn) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(400);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    if (seed % 3 == 1) continue;  // All share one memory.
    SimOptions options = OptionsFor(seed);
    options.members = 2 + static_cast<int>(seed % 7);
    options.min_members = 1;
    options.only_cut = true;
    const SimResult result = RunGroupSimulation(options);
    ASSERT_TRUE(result.ok) << "seed " << seed << ": " << result.violation;
  }
}

constexpr uint64_t kMutantSeeds = 1000;

class Mutants : public testing::TestWithParam<std::pair<Sabotage, const char*>> {};

TEST_P(Mutants, AreCaught) {
  const auto [sabotage, invariant] = GetParam();
  int caught = 0;
  std::string others;
  for (uint64_t seed = 1; seed <= kMutantSeeds && caught == 0; ++seed) {
    SimOptions options = OptionsFor(seed);
    options.sabotage = sabotage;
    const SimResult result = RunGroupSimulation(options);
    if (result.ok) continue;
    if (result.violation.rfind(invariant, 0) == 0) {
      ++caught;
    } else {
      others = result.violation;
    }
  }
  EXPECT_GT(caught, 0) << "no seed of " << kMutantSeeds << " noticed the mutant as " << invariant
                       << "; last other: " << others;
}

// Those of the code itself.
TEST(GroupSimulation, MutationsAreCaught) {
  for (const char* mutation : {"GM-17 the state goes", "GM-17 too few stay", "GM-17 all stay"}) {
    const Mutated mutated(mutation);
    SimResult result;
    for (uint64_t seed = 1; seed <= kMutantSeeds && result.ok; ++seed)
      result = RunGroupSimulation(OptionsFor(seed));
    EXPECT_EQ(result.violation.substr(0, 5), "GM-17") << mutation;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Mutants,
    testing::Values(
        std::pair(Sabotage::kForgetRecord, "GM-1"), std::pair(Sabotage::kDifferentMembers, "GM-2"),
        std::pair(Sabotage::kActivateEarly, "GM-3"), std::pair(Sabotage::kTrustLinks, "GM-3"),
        std::pair(Sabotage::kMixEpochs, "GM-4"), std::pair(Sabotage::kNoRepeats, "GM-5"),
        std::pair(Sabotage::kIgnoreMinimum, "GM-6"), std::pair(Sabotage::kSendBeforeStore, "GM-7"),
        std::pair(Sabotage::kNoStateTransfer, "GM-8"), std::pair(Sabotage::kOldestIsSource, "GM-8"),
        std::pair(Sabotage::kCommitOnAbort, "GM-9"), std::pair(Sabotage::kForgetLedger, "GM-9"),
        std::pair(Sabotage::kHideProgress, "GM-10"), std::pair(Sabotage::kSwapProgress, "GM-10"),
        std::pair(Sabotage::kWaitForReturned, "GM-10"),
        std::pair(Sabotage::kHideSignatures, "GM-11"), std::pair(Sabotage::kForgetVerdict, "GM-11"),
        std::pair(Sabotage::kHideUnreachable, "GM-5"), std::pair(Sabotage::kRetryAtOnce, "GM-13"),
        std::pair(Sabotage::kStrangerFinishes, "GM-14"),
        std::pair(Sabotage::kGiveUpLastHolder, "GM-12"),
        std::pair(Sabotage::kStaleDeadline, "GM-16")));

}  // namespace
}  // namespace troupe::groups::sim
