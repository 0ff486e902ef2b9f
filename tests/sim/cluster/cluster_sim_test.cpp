// The whole cluster under random faults, once for each seed.
//
// TROUPE_SIM_SEEDS=N runs N seeds; TROUPE_SIM_SEED=S replays one and tells what happens;
// TROUPE_SIM_RANDOM=1 starts at a random seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "runtime/log.h"
#include "tests/sim/cluster/cluster_sim.h"

namespace troupe::daemons::sim {
namespace {

uint64_t FromEnv(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

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
  return options;
}

TEST(ClusterSimulation, ARunEndsAsItShouldForEverySeed) {
  if (std::getenv("TROUPE_LOG_LEVEL") == nullptr) (void)::setenv("TROUPE_LOG_LEVEL", "error", 1);
  InitLogging("sim");
  const uint64_t replay = FromEnv("TROUPE_SIM_SEED", 0);
  const uint64_t count = replay != 0 ? 1 : FromEnv("TROUPE_SIM_SEEDS", 300);
  uint64_t first = replay != 0 ? replay : 1;
  if (FromEnv("TROUPE_SIM_RANDOM", 0) != 0) first = std::random_device()();
  ClusterResult all;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    ClusterOptions options = OptionsFor(seed);
    options.tell = replay != 0;
    const ClusterResult one = RunClusterSimulation(options);
    EXPECT_TRUE(one.ok) << "seed " << seed << ": " << one.violation
                        << "\nreplay: TROUPE_SIM_SEED=" << seed;
    all.epochs += one.epochs;
    all.steps += one.steps;
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
      "%llu seeds, %llu epochs, %llu steps, %d workers killed, %d nodes, %d heads (%d between two "
      "writes), %d cuts, %d stops, %d drains, %d resizes, %d stores emptied; %d times nobody was "
      "left who trained\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(all.epochs),
      static_cast<unsigned long long>(all.steps), all.kills, all.nodes_killed, all.heads_killed,
      all.between_writes, all.cuts, all.stops, all.drains, all.resizes, all.stores_emptied,
      all.lost);
}

}  // namespace
}  // namespace troupe::daemons::sim
