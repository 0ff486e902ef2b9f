// The provider of local processes with real children, and the conformance that every NodeProvider
// owes.
#include "autoscaler/process_provider.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <map>

namespace troupe {
namespace {

using ::testing::HasSubstr;

constexpr int kWaitMs = 20'000;

class ProcessProviderTest : public ::testing::Test {
 protected:
  ~ProcessProviderTest() override {
    for (const auto& [id, fd] : ended_) close(fd);
  }

  // Nodes that do nothing until they are ended; `script` is run by sh.
  ProcessProviderOptions Options(const std::string& script = "exec tail -f /dev/null") {
    ProcessProviderOptions options;
    options.command = [this, script](const std::string& id,
                                     const std::string& pool) -> Result<SpawnOptions> {
      if (pool == "none") return Error{ErrorCode::kNotFound, "no such pool"};
      last_id_ = id;
      SpawnOptions spawn;
      spawn.argv = {"/bin/sh", "-c", script};
      return spawn;
    };
    options.spawn = [this](const SpawnOptions& spawn) -> Result<ChildProcess> {
      Result<ChildProcess> child = Spawn(spawn);
      if (child.ok()) {
        ended_[last_id_] = dup(child->pidfd());
        pids_[last_id_] = child->pid();
      }
      return child;
    };
    return options;
  }

  // Waits for the end of a node's process, without reaping it.
  bool Ended(const std::string& id, int timeout_ms = kWaitMs) {
    pollfd fd{ended_.at(id), POLLIN, 0};
    return poll(&fd, 1, timeout_ms) == 1;
  }

  static std::vector<std::string> Ids(ProcessProvider& provider) {
    std::vector<std::string> ids;
    const Result<std::vector<ProviderNode>> listed = provider.List();
    for (const ProviderNode& node : *listed) ids.push_back(node.id);
    return ids;
  }

  FakeClock clock_;
  int stdin_writer_ = -1;
  std::string last_id_;
  std::map<std::string, int> ended_;
  std::map<std::string, int> pids_;
};

TEST_F(ProcessProviderTest, LaunchIsIdempotentByToken) {
  ProcessProvider provider(&clock_, Options());
  EXPECT_EQ(*provider.Launch("t1", "spot"), "spot-1");
  EXPECT_EQ(*provider.Launch("t1", "spot"), "spot-1");
  EXPECT_EQ(*provider.Launch("t2", "spot"), "spot-2");
  EXPECT_EQ(*provider.Launch("t3", "base"), "base-1");
  EXPECT_THAT(Ids(provider), ::testing::ElementsAre("base-1", "spot-1", "spot-2"));
  const Result<std::vector<ProviderNode>> listed = provider.List();
  EXPECT_EQ((*listed)[1].token, "t1");
}

TEST_F(ProcessProviderTest, TerminateEndsTheNodeAndMayBeRepeated) {
  ProcessProvider provider(&clock_, Options());
  ASSERT_TRUE(provider.Launch("t1", "spot").ok());
  EXPECT_TRUE(provider.Terminate("spot-1").ok());
  EXPECT_TRUE(provider.Terminate("spot-1").ok());
  ASSERT_TRUE(Ended("spot-1"));
  EXPECT_TRUE(Ids(provider).empty());
  EXPECT_TRUE(provider.Terminate("spot-1").ok());
  EXPECT_TRUE(provider.Terminate("never-1").ok());
}

TEST_F(ProcessProviderTest, ANodeThatIgnoresTheSignalIsKilledAfterTheGrace) {
  ProcessProviderOptions options = Options("trap '' TERM; echo ready; while :; do read -r x; done");
  int ready = -1;
  options.spawn = [&](const SpawnOptions& spawn) -> Result<ChildProcess> {
    SpawnOptions piped = spawn;
    piped.capture_output = true;
    // Its own stdin, so that it waits for input and not for a file's end.
    int in[2];
    if (pipe(in) != 0) return Error{ErrorCode::kInternal, "pipe"};
    piped.stdin_fd = in[0];
    Result<ChildProcess> child = Spawn(piped);
    close(in[0]);
    stdin_writer_ = in[1];
    if (child.ok()) {
      ready = child->stdout_fd();
      ended_[last_id_] = dup(child->pidfd());
    }
    return child;
  };
  ProcessProvider provider(&clock_, std::move(options));
  ASSERT_TRUE(provider.Launch("t1", "spot").ok());
  pollfd fd{ready, POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, kWaitMs), 1);  // It ignores SIGTERM from here on.
  ASSERT_TRUE(provider.Terminate("spot-1").ok());
  EXPECT_FALSE(Ended("spot-1", 0));
  const Result<std::vector<ProviderNode>> listed = provider.List();
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_TRUE((*listed)[0].terminating);
  clock_.Advance(seconds(10));
  EXPECT_EQ(provider.next_wake(), clock_.Now());
  ASSERT_TRUE(provider.List().ok());
  EXPECT_TRUE(Ended("spot-1"));
  EXPECT_TRUE(Ids(provider).empty());
  close(stdin_writer_);
}

TEST_F(ProcessProviderTest, ANodeThatEndsByItselfDisappears) {
  ProcessProvider provider(&clock_, Options("exit 3"));
  ASSERT_TRUE(provider.Launch("t1", "spot").ok());
  ASSERT_TRUE(Ended("spot-1"));
  EXPECT_TRUE(Ids(provider).empty());
  EXPECT_EQ(*provider.Launch("t2", "spot"), "spot-2");
}

TEST_F(ProcessProviderTest, WhatCannotBeStartedSaysWhich) {
  ProcessProvider provider(&clock_, Options());
  const Result<std::string> node = provider.Launch("t1", "none");
  ASSERT_FALSE(node.ok());
  EXPECT_EQ(node.error().message, "node none-1: no such pool");
  EXPECT_FALSE(LaunchIsRetriable(node.error().code));
  ProcessProviderOptions options = Options();
  options.spawn = [](const SpawnOptions&) -> Result<ChildProcess> {
    return Error{ErrorCode::kUnavailable, "out of processes"};
  };
  ProcessProvider other(&clock_, std::move(options));
  EXPECT_THAT(other.Launch("t1", "spot").error().message,
              HasSubstr("node spot-1 could not be started: out of processes"));
}

SpotEvent Event(SpotEvent::Kind kind, Duration at, const std::string& node) {
  SpotEvent event;
  event.kind = kind;
  event.at = at;
  event.pool = "spot";
  event.node = node;
  event.count = 2;
  event.lead = seconds(2);
  return event;
}

TEST_F(ProcessProviderTest, TheScheduleOffersAnnouncesAndKills) {
  ProcessProviderOptions options = Options();
  options.schedule = SpotSchedule({Event(SpotEvent::Kind::kAdd, seconds(5), ""),
                                   Event(SpotEvent::Kind::kNotice, seconds(9), "spot-1"),
                                   Event(SpotEvent::Kind::kKill, seconds(20), "spot-2")});
  ProcessProvider provider(&clock_, std::move(options));
  const auto launch = [&](const std::string& token) { return provider.Launch(token, "spot"); };
  EXPECT_EQ(launch("t1").error().code, ErrorCode::kResourceExhausted);
  clock_.Advance(seconds(5));
  EXPECT_TRUE(provider.Poll(clock_.Now()).empty());
  EXPECT_EQ(*launch("t2"), "spot-1");
  EXPECT_EQ(*launch("t3"), "spot-2");
  EXPECT_EQ(launch("t4").error().code, ErrorCode::kResourceExhausted);

  clock_.Advance(seconds(4));
  const std::vector<Notice> notices = provider.Poll(clock_.Now());
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_EQ(notices[0].node, "spot-1");
  EXPECT_EQ(notices[0].deadline, clock_.Now() + seconds(2));
  EXPECT_FALSE(Ended("spot-1", 0));
  // Its place is gone with it.
  EXPECT_EQ(launch("t5").error().code, ErrorCode::kResourceExhausted);
  clock_.Advance(seconds(2));
  EXPECT_TRUE(provider.Poll(clock_.Now()).empty());
  EXPECT_TRUE(Ended("spot-1"));

  clock_.Advance(seconds(9));
  EXPECT_TRUE(provider.Poll(clock_.Now()).empty());
  EXPECT_TRUE(Ended("spot-2"));
  EXPECT_TRUE(Ids(provider).empty());
}

TEST_F(ProcessProviderTest, NothingIsLeftBehind) {
  {
    ProcessProvider provider(&clock_, Options("trap '' TERM; exec tail -f /dev/null"));
    ASSERT_TRUE(provider.Launch("t1", "spot").ok());
    ASSERT_TRUE(provider.Launch("t2", "spot").ok());
  }
  for (const auto& [id, pid] : pids_) EXPECT_EQ(kill(pid, 0), -1) << id;
}

}  // namespace
}  // namespace troupe
