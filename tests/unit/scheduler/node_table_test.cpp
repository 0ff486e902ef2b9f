#include "scheduler/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace troupe {
namespace {

constexpr Time kStart{1'000'000'000'000};
constexpr NodeTableOptions kOptions{seconds(2), seconds(10), seconds(30), seconds(600)};

NodeJoined Join(const std::string& id, uint64_t incarnation = 1) {
  NodeRecord node;
  node.id = id;
  node.incarnation = incarnation;
  return NodeJoined{node};
}

NodeState StateOf(const NodeTable& table, const std::string& id) {
  return table.nodes().at(id).state;
}

// Steps from `from` to `to` while "b" is heard all the time.
std::vector<NodeChange> PassHearingB(NodeTable& table, Time from, Time to) {
  std::vector<NodeChange> changes;
  for (Time t = from; t <= to; t = t + milliseconds(500)) {
    const NodeDecision decision = table.Step(t, NodeHeartbeat{"b", 1});
    changes.insert(changes.end(), decision.changes.begin(), decision.changes.end());
  }
  return changes;
}

TEST(NodeTableTest, SilenceMakesSuspectThenDead) {
  NodeTable table(kOptions);
  EXPECT_EQ(table.Step(kStart, Join("a")).changes.size(), 1u);
  EXPECT_EQ(table.next_wake(), kStart + seconds(2));
  table.Step(kStart, Join("b"));
  EXPECT_TRUE(PassHearingB(table, kStart, kStart + milliseconds(1500)).empty());
  const auto suspect = PassHearingB(table, kStart + seconds(2), kStart + milliseconds(9500));
  ASSERT_EQ(suspect.size(), 1u);
  EXPECT_EQ(suspect[0].id, "a");
  EXPECT_EQ(suspect[0].state, NodeState::kSuspect);
  EXPECT_EQ(suspect[0].reason, "no heartbeat for 2 s");
  EXPECT_EQ(table.next_wake(), kStart + seconds(10));
  const NodeDecision dead = table.Step(table.next_wake(), Tick{});
  ASSERT_EQ(dead.changes.size(), 1u);
  EXPECT_EQ(dead.changes[0].state, NodeState::kDead);
  EXPECT_EQ(dead.changes[0].reason, "no heartbeat for 10 s");
}

// Nobody is heard: that may be the listener's fault.
TEST(NodeTableTest, WhileNoneIsHeardNoneIsDead) {
  NodeTable table(kOptions);
  for (const char* id : {"a", "b"}) table.Step(kStart, Join(id));
  table.Step(kStart + seconds(2), Tick{});
  EXPECT_TRUE(table.Step(kStart + milliseconds(29'999), Tick{}).changes.empty());
  EXPECT_EQ(table.next_wake(), kStart + seconds(30));
  // One is heard again: the other is given the time to be heard.
  const Time heard = kStart + milliseconds(29'999);
  const auto changes = PassHearingB(table, heard, heard + milliseconds(9500));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].id, "b");
  EXPECT_EQ(changes[0].state, NodeState::kAlive);
  const NodeDecision dead = table.Step(heard + seconds(10), NodeHeartbeat{"b", 1});
  ASSERT_EQ(dead.changes.size(), 1u);
  EXPECT_EQ(dead.changes[0].id, "a");
  EXPECT_EQ(dead.changes[0].state, NodeState::kDead);
}

TEST(NodeTableTest, TheTimeThatIsGivenHasItsLimit) {
  NodeTable table(kOptions);
  for (const char* id : {"a", "b"}) table.Step(kStart, Join(id));
  for (Time t = kStart; t <= kStart + seconds(42); t = t + seconds(3))
    table.Step(t, NodeHeartbeat{"b", 1});
  EXPECT_EQ(StateOf(table, "a"), NodeState::kDead);
}

TEST(NodeTableTest, ThatNoneIsHeardHasItsLimit) {
  NodeTable table(kOptions);
  for (const char* id : {"a", "b"}) table.Step(kStart, Join(id));
  EXPECT_EQ(table.Step(kStart + seconds(30), Tick{}).changes.size(), 2u);
}

TEST(NodeTableTest, WhatTheListenerMissedIsNotSilence) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  const Time resumed = kStart + seconds(60);
  EXPECT_TRUE(table.Step(resumed, ListenerResumed{seconds(59)}).changes.empty());
  EXPECT_EQ(table.next_wake(), resumed + seconds(1));
  const NodeDecision suspect = table.Step(table.next_wake(), Tick{});
  ASSERT_EQ(suspect.changes.size(), 1u);
  EXPECT_EQ(suspect.changes[0].state, NodeState::kSuspect);
}

TEST(NodeTableTest, HeartbeatBringsASuspectBack) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  table.Step(kStart + seconds(3), Tick{});
  const NodeDecision back = table.Step(kStart + seconds(4), NodeHeartbeat{"a", 1});
  ASSERT_EQ(back.changes.size(), 1u);
  EXPECT_EQ(back.changes[0].state, NodeState::kAlive);
  EXPECT_EQ(table.next_wake(), kStart + seconds(6));
}

TEST(NodeTableTest, LateStepGoesStraightToDead) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  const NodeDecision late = table.Step(kStart + seconds(60), NodeHeartbeat{"a", 1});
  ASSERT_EQ(late.changes.size(), 1u);
  EXPECT_EQ(late.changes[0].state, NodeState::kDead);
  EXPECT_TRUE(late.fenced);
}

TEST(NodeTableTest, ReportedDeathNeedsNoSilence) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  const NodeDecision lost = table.Step(kStart + seconds(1), NodeLost{"a", 1, "connection reset"});
  ASSERT_EQ(lost.changes.size(), 1u);
  EXPECT_EQ(lost.changes[0].state, NodeState::kDead);
  EXPECT_EQ(lost.changes[0].reason, "connection reset");
  EXPECT_TRUE(table.Step(kStart + seconds(1), NodeLost{"a", 1, "again"}).changes.empty());
}

TEST(NodeTableTest, DeadIncarnationIsFencedAndTheNextIsWelcome) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a", 7));
  table.Step(kStart, NodeLost{"a", 7, "exited"});
  EXPECT_TRUE(table.Step(kStart, NodeHeartbeat{"a", 7}).fenced);
  EXPECT_TRUE(table.Step(kStart, Join("a", 7)).fenced);
  EXPECT_TRUE(table.Step(kStart, Join("a", 6)).fenced);
  EXPECT_FALSE(table.Step(kStart, Join("a", 8)).fenced);
  EXPECT_EQ(StateOf(table, "a"), NodeState::kAlive);
}

TEST(NodeTableTest, NewerIncarnationReplacesTheLivingOne) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a", 1));
  const NodeDecision joined = table.Step(kStart, Join("a", 2));
  ASSERT_EQ(joined.changes.size(), 2u);
  EXPECT_EQ(joined.changes[0].incarnation, 1u);
  EXPECT_EQ(joined.changes[0].state, NodeState::kDead);
  EXPECT_EQ(joined.changes[1].incarnation, 2u);
  EXPECT_EQ(joined.changes[1].state, NodeState::kAlive);
  EXPECT_TRUE(table.Step(kStart, NodeHeartbeat{"a", 1}).fenced);
  // Old news about the first one does not harm the second, nor is its sender at fault.
  const NodeDecision old = table.Step(kStart, NodeLost{"a", 1, "exited"});
  EXPECT_TRUE(old.changes.empty());
  EXPECT_FALSE(old.fenced);
}

// NT-6: where the time of day was set back, the next life of a node that was killed has the smaller
// number; so has the older one of two nodes with one name.
TEST(NodeTableTest, WhoComesWithASmallerNumberReplacesWhoIsSilentFromThenOn) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a", 7));
  const Time came = kStart + milliseconds(100);
  EXPECT_TRUE(table.Step(came, Join("a", 3)).waits);
  const NodeDecision waits = table.Step(came + seconds(1), Join("a", 3));
  EXPECT_TRUE(waits.waits);
  EXPECT_FALSE(waits.fenced);
  EXPECT_TRUE(waits.changes.empty());
  const NodeDecision late = table.Step(came + kOptions.suspect_after, Join("a", 3));
  EXPECT_TRUE(late.fenced);
  EXPECT_FALSE(late.replaced) << "it is to take a greater number, not to end";
  ASSERT_FALSE(late.changes.empty());
  EXPECT_EQ(late.changes.back().incarnation, 7U);
  EXPECT_EQ(late.changes.back().state, NodeState::kDead);
  EXPECT_FALSE(table.Step(came + seconds(3), Join("a", 8)).fenced);
  EXPECT_EQ(StateOf(table, "a"), NodeState::kAlive);
}

TEST(NodeTableTest, WhoComesWithASmallerNumberEndsIfTheOtherSpeaks) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a", 7));
  const Time came = kStart + milliseconds(100);
  EXPECT_TRUE(table.Step(came, Join("a", 3)).waits);
  table.Step(came + milliseconds(300), NodeHeartbeat{"a", 7});
  const NodeDecision decision = table.Step(came + milliseconds(500), Join("a", 3));
  EXPECT_TRUE(decision.replaced);
  EXPECT_TRUE(decision.fenced);
  EXPECT_EQ(StateOf(table, "a"), NodeState::kAlive);
  // Another one is looked at anew.
  EXPECT_TRUE(table.Step(came + milliseconds(600), Join("a", 4)).waits);
}

TEST(NodeTableTest, UnknownNodeIsFenced) {
  NodeTable table(kOptions);
  EXPECT_TRUE(table.Step(kStart, NodeHeartbeat{"ghost", 1}).fenced);
}

TEST(NodeTableTest, DrainKeepsTheNodeUpAndOnlyBringsTheDeadlineNearer) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  const NodeDecision drain =
      table.Step(kStart, NodeDrain{"a", kStart + seconds(120), "spot notice"});
  ASSERT_EQ(drain.changes.size(), 1u);
  EXPECT_EQ(drain.changes[0].state, NodeState::kAlive);
  EXPECT_TRUE(drain.changes[0].draining);
  EXPECT_EQ(drain.changes[0].reason, "spot notice");
  EXPECT_TRUE(table.Step(kStart, NodeDrain{"a", kStart + seconds(30), "again"}).changes.empty());
  EXPECT_EQ(table.nodes().at("a").drain_deadline, kStart + seconds(30));
  table.Step(kStart, NodeDrain{"a", kStart + seconds(300), "later"});
  EXPECT_EQ(table.nodes().at("a").drain_deadline, kStart + seconds(30));
  const NodeDecision left = table.Step(kStart + seconds(1), NodeGoodbye{"a", 1});
  ASSERT_EQ(left.changes.size(), 1u);
  EXPECT_EQ(left.changes[0].state, NodeState::kLeft);
  EXPECT_EQ(left.changes[0].reason, "spot notice");
}

TEST(NodeTableTest, ANewIncarnationIsNotDraining) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a", 1));
  table.Step(kStart, NodeDrain{"a", kStart + seconds(1), "notice"});
  table.Step(kStart, Join("a", 2));
  EXPECT_FALSE(table.nodes().at("a").draining);
  EXPECT_EQ(table.nodes().at("a").drain_deadline, Time::Never());
}

TEST(NodeTableTest, EndedNodesAreForgotten) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  table.Step(kStart, NodeGoodbye{"a", 1});
  EXPECT_EQ(table.next_wake(), kStart + seconds(600));
  table.Step(table.next_wake(), Tick{});
  EXPECT_TRUE(table.nodes().empty());
  EXPECT_EQ(table.next_wake(), Time::Never());
}

TEST(NodeTableTest, TimeThatRunsBackwardsIsNoTime) {
  NodeTable table(kOptions);
  table.Step(kStart, Join("a"));
  EXPECT_TRUE(table.Step(kStart - seconds(100), NodeHeartbeat{"a", 1}).changes.empty());
  EXPECT_EQ(table.nodes().at("a").last_heard, kStart);
}

TEST(NodeTableTest, FullTableMakesRoomFromTheEndedOnly) {
  NodeTable table(kOptions);
  for (size_t i = 0; i < kNodesMax; ++i) table.Step(kStart, Join("n" + std::to_string(i)));
  EXPECT_NE(table.Step(kStart, Join("more")).refused, "");
  table.Step(kStart, NodeGoodbye{"n5", 1});
  EXPECT_EQ(table.Step(kStart, Join("more")).refused, "");
  EXPECT_EQ(table.nodes().size(), kNodesMax);
  EXPECT_FALSE(table.nodes().contains("n5"));
}

// NT-1 to NT-3 and NT-5 over random histories: what was reported as ended never comes back, silence
// is noticed in time.
TEST(NodeTableTest, InvariantsHoldOverRandomHistories) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    NodeTable table(kOptions);
    std::set<std::pair<std::string, uint64_t>> ended;
    std::map<std::string, uint64_t> newest;
    Time now = kStart;
    Time heard = kStart;  // Anybody.
    for (int step = 0; step < 200; ++step) {
      now = now + milliseconds(random() % 4000);
      const std::string id(1, static_cast<char>('a' + random() % 3));
      const uint64_t incarnation = 1 + random() % 5;
      NodeEvent event = Tick{};
      switch (random() % 6) {
        case 0:
          event = Join(id, incarnation);
          break;
        case 1:
        case 2:
          event = NodeHeartbeat{id, incarnation};
          break;
        case 3:
          event = NodeLost{id, incarnation, "reported"};
          break;
        case 4:
          event = NodeGoodbye{id, incarnation};
          break;
        default:
          break;
      }
      const NodeDecision decision = table.Step(now, event);
      const bool spoke =
          std::holds_alternative<NodeJoined>(event) || std::holds_alternative<NodeHeartbeat>(event);
      ASSERT_FALSE(decision.waits && decision.fenced);
      ASSERT_TRUE(!decision.replaced || table.nodes().at(id).up()) << "NT-6";
      if (spoke && !decision.fenced && !decision.waits) heard = now;
      for (const NodeChange& change : decision.changes) {
        const auto key = std::make_pair(change.id, change.incarnation);
        ASSERT_FALSE(ended.contains(key)) << "NT-1: a change of an ended incarnation";
        ASSERT_GE(change.incarnation, newest[change.id]) << "NT-2";
        newest[change.id] = change.incarnation;
        if (change.state == NodeState::kDead || change.state == NodeState::kLeft) ended.insert(key);
      }
      for (const auto& [name, node] : table.nodes()) {
        if (!node.up()) continue;
        const bool deaf = now - heard > kOptions.suspect_after;
        ASSERT_LT(now - node.last_heard, deaf ? kOptions.all_dead_after : kOptions.dead_after)
            << "NT-3, NT-5";
      }
      ASSERT_GT(table.next_wake(), now);
    }
  }
}

}  // namespace
}  // namespace troupe
