// A thousand epochs of one group in real processes: nothing grows.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <fstream>
#include <random>

#include "tests/integration/cluster.h"
#include "tests/integration/runtime/resources.h"

namespace troupe::testing {
namespace {

constexpr uint64_t kEpochs = 1000;
constexpr uint64_t kWarm = 100;  // Until then caches and pools fill.

struct Held {
  size_t descriptors = 0;
  size_t threads = 0;
  size_t memory_kib = 0;
};

Held HeldBy(int pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  Held held;
  held.descriptors = tests::CountEntries((proc + "/fd").c_str());
  held.threads = tests::CountEntries((proc + "/task").c_str());
  std::ifstream status(proc + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) held.memory_kib = std::stoul(line.substr(6));
  }
  return held;
}

TEST(Soak, AThousandEpochsLeaveNothingBehind) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.workers = 3;
  options.min_workers = 2;
  options.max_workers = 3;
  options.samples = 1 << 20;
  options.per_rank = 1;
  options.pace_us = 200;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(3));
  const Member oldest = cluster.members()[0];
  const std::vector<int> watched = {oldest.pid, cluster.PidOf("troupe-head"),
                                    cluster.PidOf("troupe-node")};
  std::vector<Held> before;
  std::mt19937 random(3);
  while (cluster.epoch() < kEpochs) {
    if (before.empty() && cluster.epoch() >= kWarm) {
      for (const int pid : watched) before.push_back(HeldBy(pid));
    }
    const uint64_t epoch = cluster.epoch();
    ::kill(cluster.members()[1 + random() % 2].pid, SIGKILL);
    ASSERT_TRUE(
        cluster.WaitFor("the next full view",
                        [&] { return cluster.epoch() > epoch && cluster.members().size() == 3; }))
        << "in epoch " << cluster.epoch();
  }
  EXPECT_EQ(cluster.members()[0].id, oldest.id);
  for (size_t i = 0; i < watched.size(); ++i) {
    const Held after = HeldBy(watched[i]);
    // One death may be in the works when a count is taken.
    EXPECT_LE(after.descriptors, before[i].descriptors + 8) << i;
    EXPECT_LE(after.threads, before[i].threads + 2) << i;
    EXPECT_LE(after.memory_kib, before[i].memory_kib + before[i].memory_kib / 4 + 4096) << i;
  }
}

}  // namespace
}  // namespace troupe::testing
