// The whole cluster under random faults, once for each seed; the same seed gives the same run; what
// is broken on purpose is noticed. seeds.h says which seeds; a replayed one tells what happens.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string_view>
#include <utility>

#include "runtime/log.h"
#include "runtime/mutation.h"
#include "tests/sim/cluster/cluster_sim.h"
#include "tests/sim/seeds.h"

namespace troupe::daemons::sim {
namespace {

ClusterOptions OptionsFor(uint64_t seed) {
  std::mt19937_64 random(seed);
  ClusterOptions options;
  options.seed = seed;
  options.hosts = 1 + static_cast<int>(random() % 3);
  options.workers = 1 + static_cast<uint32_t>(random() % 4);
  options.min_workers = 1 + static_cast<uint32_t>(random() % options.workers);
  options.max_workers = options.workers + static_cast<uint32_t>(random() % 3);
  options.spares = static_cast<uint32_t>(random() % 2);
  options.detached = random() % 4 == 0;
  options.actors = static_cast<uint32_t>(random() % 4);
  options.group = static_cast<uint32_t>(random() % 4);
  if (options.actors > 0) {
    options.ring = static_cast<Ring>(random() % 3);
    options.pair = static_cast<Ring>(random() % 3);
  }
  options.bundles = static_cast<uint32_t>(random() % (options.actors + 1));
  options.large_results = random() % 3 == 0;
  if (random() % 4 == 0) options.fence = seconds(5);
  const bool other = random() % 3 == 0;
  if (other) options.ending = static_cast<Ending>(1 + random() % 4);
  const bool needs_driver =
      options.ending == Ending::kDriverLeaves || options.ending == Ending::kDriverSilent;
  if (needs_driver) options.detached = false;
  return options;
}

class ClusterSimulation : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::getenv("TROUPE_LOG_LEVEL") == nullptr) (void)::setenv("TROUPE_LOG_LEVEL", "error", 1);
    InitLogging("sim");
  }
};

TEST_F(ClusterSimulation, ARunEndsAsItShouldForEverySeed) {
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(2000);
  ClusterResult all;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    ClusterOptions options = OptionsFor(seed);
    options.tell = seeds.replay;
    const ClusterResult one = RunClusterSimulation(options);
    EXPECT_TRUE(one.ok) << "seed " << seed << ": " << one.violation
                        << "\nreplay: TROUPE_SIM_SEED=" << seed;
    all.epochs += one.epochs;
    all.steps += one.steps;
    all.group_steps += one.group_steps;
    all.ring_steps += one.ring_steps;
    all.kills += one.kills;
    all.nodes_killed += one.nodes_killed;
    all.heads_killed += one.heads_killed;
    all.between_writes += one.between_writes;
    all.cuts += one.cuts;
    all.stops += one.stops;
    all.drains += one.drains;
    all.resizes += one.resizes;
    all.stores_emptied += one.stores_emptied;
    all.lost += one.lost;
  }
  std::printf(
      "%llu seeds, %llu epochs, %llu steps, %llu of groups, %llu of rings, %d workers killed, %d "
      "nodes, %d heads (%d between two "
      "writes), %d cuts, %d stops, %d drains, %d resizes, %d stores emptied; %d times nobody was "
      "left who trained\n",
      static_cast<unsigned long long>(seeds.count), static_cast<unsigned long long>(all.epochs),
      static_cast<unsigned long long>(all.steps), static_cast<unsigned long long>(all.group_steps),
      static_cast<unsigned long long>(all.ring_steps), all.kills, all.nodes_killed,
      all.heads_killed, all.between_writes, all.cuts, all.stops, all.drains, all.resizes,
      all.stores_emptied, all.lost);
  if (seeds.count < 100) return;
  const auto count = static_cast<int>(seeds.count);  // What is to be tested did happen.
  EXPECT_GT(all.epochs, 10 * seeds.count);
  EXPECT_GT(all.group_steps, 100 * seeds.count);
  EXPECT_GT(all.ring_steps, 100 * seeds.count);
  EXPECT_GT(all.kills, 2 * count);
  EXPECT_GT(all.nodes_killed, count / 2);
  EXPECT_GT(all.heads_killed, count);
  EXPECT_GT(all.between_writes, count / 4);
  EXPECT_GT(all.cuts, count / 2);
  EXPECT_GT(all.stops, count);
  EXPECT_GT(all.drains, count);
  EXPECT_GT(all.resizes, count);
  EXPECT_GT(all.stores_emptied, count / 5);
}

TEST_F(ClusterSimulation, SameSeedSameEvents) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t hash = RunClusterSimulation(OptionsFor(seed)).event_hash;
    EXPECT_EQ(hash, RunClusterSimulation(OptionsFor(seed)).event_hash) << "seed " << seed;
    EXPECT_NE(hash, RunClusterSimulation(OptionsFor(seed + 100)).event_hash);
  }
}

class ClusterMutants : public ClusterSimulation,
                       public ::testing::WithParamInterface<std::pair<Mutation, const char*>> {};

TEST_P(ClusterMutants, AreCaught) {
  constexpr uint64_t kSeeds = 300;
  const auto [mutation, violation] = GetParam();
  std::string other;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    ClusterOptions options = OptionsFor(seed);
    options.mutation = mutation;
    const ClusterResult result = RunClusterSimulation(options);
    if (result.violation.find(violation) != std::string::npos) return;
    if (!result.ok) other = result.violation;
  }
  ADD_FAILURE() << "no seed of " << kSeeds << " was noticed as \"" << violation
                << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(All, ClusterMutants,
                         ::testing::Values(std::pair(Mutation::kStateNotKept, "the run has failed"),
                                           std::pair(Mutation::kLivesNotKept, "has room for"),
                                           std::pair(Mutation::kEndNotKept, "has lost this run"),
                                           std::pair(Mutation::kKillsIgnored, "settling"),
                                           std::pair(Mutation::kDeathsUntold, "settling"),
                                           std::pair(Mutation::kNoStateSent, "diverge"),
                                           std::pair(Mutation::kPidsUnknown,
                                                     "does not say where its members run"),
                                           std::pair(Mutation::kEventsLost, "it goes on")));

// The code under test is wrong in one place.
class CodeMutants : public ClusterSimulation,
                    public ::testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(CodeMutants, AreCaught) {
  constexpr uint64_t kSeeds = 1000;
  const auto [mutation, violation] = GetParam();
  const Mutated mutated(mutation);
  std::string other;
  const troupe::sim::Seeds seeds = troupe::sim::SeedsToRun(kSeeds);
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    ClusterOptions options = OptionsFor(seed);
    if (std::string_view(mutation).starts_with("PG-")) {  // There are bundles, and other places.
      options.hosts = 2 + static_cast<int>(seed % 2);
      options.actors = 2 + static_cast<uint32_t>(seed % 2);
      options.bundles = options.actors;
    }
    options.tell = seeds.replay;
    const ClusterResult result = RunClusterSimulation(options);
    if (result.violation.find(violation) != std::string::npos) return;
    if (!result.ok) other = "seed " + std::to_string(seed) + ": " + result.violation;
  }
  ADD_FAILURE() << "no seed of " << seeds.count << " has noticed \"" << mutation << "\" as \""
                << violation << "\"; last other: " << other;
}

INSTANTIATE_TEST_SUITE_P(
    All, CodeMutants,
    ::testing::Values(std::pair("PT-2 not killed again", "settling"),
                      std::pair("nobody is missed after a restart", "settling"),
                      std::pair("no room claimed after a restart", "results of"),
                      std::pair("who was evicted stays", "settling"),
                      std::pair("room is given back at a death", "has room for"),
                      std::pair("an emptied store is not noticed", "the run has failed"),
                      std::pair("lives are not noted", "a second process"),
                      std::pair("an end is not kept", "has lost this run"),
                      std::pair("the unrecorded are dead", "has ended"),
                      std::pair("members of ended groups stay", "is left"),
                      std::pair("CG-1 numbers are given again", "settling"),
                      std::pair("CG-2 a repeat is another", "twice by one request"),
                      std::pair("CG-3 answers do not wait", "is not kept"),
                      std::pair("CG-4 it waits for the dead", "is left"),
                      std::pair("CG-5 members train or not", "one member trains"),
                      std::pair("CG-6 it begins again in one life", "diverge"),
                      std::pair("PG-1 a repeat is another", "settling"),
                      std::pair("PG-2 answers do not wait", "is left"),
                      std::pair("PG-3 places are forgotten", "has moved away"),
                      std::pair("NC-1 any head's order is followed", "a head that has ended"),
                      std::pair("NC-2 it joins beside its life before", "of its life before"),
                      std::pair("NC-3 ends are not told", "has told the end"),
                      std::pair("NC-4 its order is lost with it", "given up an order"),
                      std::pair("NC-5 actors outlive the silence",
                                "has not heard the head for long")));

}  // namespace
}  // namespace troupe::daemons::sim
