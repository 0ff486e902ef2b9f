// Real processes, real head, node, Redis and Gloo: whatever dies at whatever moment, the survivors
// go on, and at the end every sample was counted exactly once on every member.
#include <gtest/gtest.h>
#include <sys/types.h>

#include <csignal>
#include <thread>

#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

void ExpectExactlyOnce(const Cluster& cluster, size_t results_at_least) {
  EXPECT_EQ(cluster.state(), "succeeded") << cluster.reason();
  EXPECT_GE(cluster.results().size(), results_at_least);
  for (const std::string& summary : cluster.results()) {
    EXPECT_NE(summary.find("missing=0 doubled=0"), std::string::npos) << summary;
    EXPECT_EQ(summary, cluster.results().front());
  }
}

TEST(Recovery, NobodyDies) {
  Cluster cluster;
  cluster.Start({});
  ASSERT_TRUE(cluster.WaitActive(4));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 4);
  EXPECT_EQ(cluster.epoch(), 1U);
  EXPECT_EQ(cluster.deaths(), 0);
}

using Fault = std::tuple<int, const char*, bool>;  // Rank, phase, through shared memory.
std::string FaultName(const ::testing::TestParamInfo<Fault>& info) {
  const auto [rank, phase, memory] = info.param;
  return "rank" + std::to_string(rank) + "_" + phase + (memory ? "_memory" : "_links");
}

class KillAt : public ::testing::TestWithParam<Fault> {};

TEST_P(KillAt, SurvivorsCountEverySampleOnce) {
  const auto [rank, phase, memory] = GetParam();
  Cluster cluster;
  Cluster::RunOptions options;
  options.share_memory = memory;
  options.faults = std::to_string(rank) + ":5:" + phase;
  options.samples = 65536;  // 256 KiB per reduce: a ring over several segments.
  options.per_rank = 256;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
  EXPECT_EQ(cluster.deaths(), 1);
  EXPECT_GE(cluster.epoch(), 2U);
}

INSTANTIATE_TEST_SUITE_P(EveryRankAndPhase, KillAt,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values("before_reduce", "in_reduce",
                                                              "after_reduce", "in_commit"),
                                            ::testing::Bool()),
                         FaultName);

// A first death (rank 1, step 5) starts a recovery, in which a second member dies.
class KillInRecovery : public ::testing::TestWithParam<Fault> {};

TEST_P(KillInRecovery, SurvivorsCountEverySampleOnce) {
  const auto [rank, phase, memory] = GetParam();
  Cluster cluster;
  Cluster::RunOptions options;
  options.share_memory = memory;
  options.workers = 5;
  options.faults = "1:5:before_reduce;" + std::to_string(rank) + ":0:" + phase;
  options.samples =
      131072;  // Enough for a replacement to join, whose links the second fault needs.
  options.per_rank = 64;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
  EXPECT_EQ(cluster.deaths(), 2);
}

// Faults of recovery are armed by the first epoch's rank, so the links of epoch 1 itself do not
// trip them.
INSTANTIATE_TEST_SUITE_P(OldestAndOthers, KillInRecovery,
                         ::testing::Combine(::testing::Values(0, 2, 4),
                                            ::testing::Values("in_offer", "in_link"),
                                            ::testing::Bool()),
                         FaultName);

TEST(Recovery, TwoDeathsAtOnce) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.workers = 5;
  options.faults = "0:5:before_reduce;3:5:before_reduce";
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
  EXPECT_EQ(cluster.deaths(), 2);
}

TEST(Recovery, SourceOfTheStateDiesInSync) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.faults = "0:0:in_sync";  // Rank 0 sends the initial state.
  options.samples = 1 << 20;
  options.per_rank = 1 << 14;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

TEST(Recovery, ReplacementJoinsAndGroupGrowsAndShrinks) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 30000;
  options.per_rank = 4;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  ::kill(cluster.members()[2].pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("3 members", [&] { return cluster.members().size() == 3; }));
  ASSERT_TRUE(cluster.WaitActive(4));
  ASSERT_TRUE(cluster.client().Resize(cluster.run(), 5).ok());
  ASSERT_TRUE(cluster.WaitActive(5));
  ASSERT_TRUE(cluster.client().Resize(cluster.run(), 3).ok());
  ASSERT_TRUE(cluster.WaitActive(3));
  ::kill(cluster.members()[0].pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("2 members", [&] { return cluster.members().size() == 2; }));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 2);
}

TEST(Recovery, JoinerDiesBeforeItIsAdmitted) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 16000;
  options.per_rank = 4;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  ASSERT_TRUE(cluster.client().Resize(cluster.run(), 5).ok());
  int joiner = 0;
  ASSERT_TRUE(cluster.WaitFor("a fifth process", [&] {
    const Result<std::string> status = cluster.client().RunJson(cluster.run());
    const size_t at = status.ok() ? status->find("\"id\":\"w4#1\"") : std::string::npos;
    joiner = at == std::string::npos ? 0 : std::stoi(JsonField(*status, at, "pid"));
    return joiner > 0;
  }));
  ::kill(joiner, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("its replacement", [&] { return cluster.members().size() == 5; }));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 5);
}

TEST(Recovery, StoppedMemberIsFencedOut) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 16000;
  options.per_rank = 4;
  options.lease_ms = 500;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const int stopped = cluster.members()[1].pid;
  ::kill(stopped, SIGSTOP);
  ASSERT_TRUE(cluster.WaitFor("3 members", [&] { return cluster.members().size() == 3; }));
  ::kill(stopped, SIGCONT);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

TEST(Recovery, AStuckMemberIsEndedAtItsDrainDeadline) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 16000;
  options.per_rank = 4;
  options.lease_ms = 60'000;  // Only the drain can end it.
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const Member stuck = cluster.members()[1];
  ::kill(stuck.pid, SIGSTOP);
  ASSERT_TRUE(cluster.client().Drain(cluster.run(), stuck.id, milliseconds(500)).ok());
  ASSERT_TRUE(cluster.WaitFor("3 members", [&] { return cluster.members().size() == 3; }));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
  EXPECT_EQ(cluster.deaths(), 0);
  ASSERT_EQ(cluster.drained().size(), 1U);
  EXPECT_NE(cluster.drained()[0].find("ended by force"), std::string::npos) << cluster.drained()[0];
}

TEST(Recovery, AMemberThatHangsIsNamedWithWhatTheOthersWaitIn) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.faults = "2:5:hang";
  options.stall_report_s = 0.5;
  options.stall_remove_s = 0;  // Never.
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const Member hung = cluster.members()[2];
  ASSERT_TRUE(cluster.WaitFor("the second report", [&] { return cluster.stalled().size() >= 2; }));
  const std::string& stall = cluster.stalled()[1];
  EXPECT_NE(stall.find("\"id\":\"" + hung.id + "\""), std::string::npos) << stall;
  EXPECT_EQ(JsonField(stall, stall.find("\"missing\""), "rank"), "2") << stall;
  EXPECT_NE(stall.find("\"waiting\":[0,1,3]"), std::string::npos) << stall;
  EXPECT_NE(JsonField(stall, 0, "operation").find("all-reduce"), std::string::npos) << stall;
  EXPECT_EQ(JsonField(stall, 0, "removed"), "false");
  const double first = std::stod(JsonField(cluster.stalled()[0], 0, "seconds"));
  EXPECT_GE(first, 0.5);
  EXPECT_GT(std::stod(JsonField(stall, 0, "seconds")), first);  // Up to the latest reports.
  EXPECT_EQ(cluster.epoch(), 1U);
  ::kill(hung.pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

TEST(Recovery, AMemberThatHangsIsPutAsideAndTheOthersGoOn) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.faults = "1:5:hang";
  options.stall_report_s = 30;  // It is told that it is removed, even so.
  options.stall_remove_s = 0.5;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
  ASSERT_EQ(cluster.stalled().size(), 1U);
  EXPECT_EQ(JsonField(cluster.stalled()[0], cluster.stalled()[0].find("\"missing\""), "rank"), "1");
  EXPECT_EQ(JsonField(cluster.stalled()[0], 0, "removed"), "true");
}

TEST(Recovery, HeadIsKilledAndRestarted) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 16000;
  options.per_rank = 2;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const int head = cluster.PidOf("troupe-head");
  ASSERT_GT(head, 0);
  ::kill(head, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("a new head", [&] {
    const int now = cluster.PidOf("troupe-head");
    return now > 0 && now != head;
  }));
  // Control is back: a death after the restart is noticed and healed.
  ASSERT_TRUE(cluster.WaitFor("the run to be known again", [&] {
    const Result<std::string> status = cluster.client().RunJson(cluster.run());
    return status.ok() && status->find("\"state\":\"active\"") != std::string::npos;
  }));
  ::kill(cluster.members()[3].pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("a newer epoch",
                              [&] { return cluster.epoch() >= 2 || !cluster.state().empty(); }));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

// Much longer than the lease: silence that is the head's own puts nobody aside.
TEST(Recovery, HeadIsStoppedForAWhile) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 24000;
  options.per_rank = 1;
  options.lease_ms = 300;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const int head = cluster.PidOf("troupe-head");
  ASSERT_GT(head, 0);
  ::kill(head, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(1500));  // The fault itself.
  ::kill(head, SIGCONT);
  const Result<std::string> status = cluster.client().RunJson(cluster.run());
  ASSERT_TRUE(status.ok());
  ASSERT_NE(status->find("\"state\":\"active\""), std::string::npos) << *status;
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 4);
  EXPECT_EQ(cluster.deaths(), 0);
  EXPECT_EQ(cluster.epoch(), 1U);
}

TEST(Recovery, RedisIsRestarted) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.samples = 16000;
  options.per_rank = 4;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(4));
  const int redis = cluster.PidOf("redis-server");
  ASSERT_GT(redis, 0);
  ::kill(redis, SIGKILL);
  ::kill(cluster.members()[1].pid,
         SIGKILL);  // The new epoch must wait for the store and then go on.
  ASSERT_TRUE(cluster.WaitFor("epoch 2", [&] { return cluster.epoch() >= 2; }));
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

TEST(Recovery, ParksBelowTheMinimumAndResumes) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.workers = 3;
  options.min_workers = 3;
  options.max_workers = 3;
  options.samples = 8000;
  options.per_rank = 4;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitActive(3));
  ::kill(cluster.members()[0].pid, SIGKILL);
  ASSERT_TRUE(cluster.WaitFor("the group to park", [&] { return !cluster.parked().empty(); }));
  EXPECT_NE(cluster.parked()[0].find("below the minimum of 3"), std::string::npos)
      << cluster.parked()[0];
  ASSERT_TRUE(cluster.WaitActive(3));  // The replacement lets it resume by itself.
  ASSERT_TRUE(cluster.WaitDone());
  ExpectExactlyOnce(cluster, 3);
}

TEST(Placement, ImpossibleResourcesFailAtOnceWithTheReason) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.cpu_each = 4096;
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone(seconds(5)));
  EXPECT_EQ(cluster.state(), "failed");
  EXPECT_NE(cluster.reason().find("CPU 4096"), std::string::npos) << cluster.reason();
}

TEST(Workers, ThatCannotStartFailTheRunWithTheirLastLines) {
  Cluster cluster;
  Cluster::RunOptions options;
  options.argv = {"/bin/sh", "-c", "echo the disk is on fire >&2; exit 3"};
  cluster.Start(options);
  ASSERT_TRUE(cluster.WaitDone(seconds(20)));
  EXPECT_EQ(cluster.state(), "failed");
  EXPECT_NE(cluster.reason().find("the disk is on fire"), std::string::npos) << cluster.reason();
}

}  // namespace
}  // namespace troupe::testing
