// NodeCore by its invariants; the simulation of the cluster runs it among the others.
#include "daemons/node/core/node_core.h"

#include <gmock/gmock.h>

#include <csignal>

#include "daemons/protocol/actor_lease.h"
#include "runtime/death_watch.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kFence = seconds(30);

class NodeCoreTest : public ::testing::Test {
 protected:
  NodeCoreTest() { Hear("head-1"); }

  template <class Message>
  void Say(uint8_t type, const Message& message) {
    (void)core_.OnFrame(wire::Encode(type, message), now_);
    Take();
  }
  void Hear(const std::string& head) { Say(kFrameNodeAnswer, NodeAnswer{head, ++answers_}); }
  void Order(const std::string& process, const std::string& lease = "actor/a#1",
             const std::string& head = "head-1") {
    StartWorker start;
    start.process = process;
    start.lease = lease;
    start.head = head;
    start.spare_argv = {"ahead"};
    Say(kFrameStartWorker, start);
  }
  void Exit(const std::string& process, bool began = true) {
    over_ = core_.OnExited(process, {"exit code 1", 1, began, {"last"}}, now_);
    Take();
  }
  // The hello that is said now, if one is.
  std::optional<NodeHello> Hello(bool spares_end = false) {
    NodeSight sight;
    sight.spares_end = spares_end;
    core_.Tick(now_);
    core_.Hello(sight, now_);
    hello_.reset();
    Take();
    return hello_;
  }
  void Take() {
    for (NodeEffect& effect : core_.TakeEffects()) {
      if (const auto* start = std::get_if<StartProcess>(&effect)) {
        started_.push_back(start->order.process);
        spare_ = !start->order.spare_argv.empty();
      } else if (const auto* signal = std::get_if<SignalProcess>(&effect)) {
        signals_.push_back(signal->process + " " + std::to_string(signal->signal));
      } else if (const auto* begin = std::get_if<BeginIncarnation>(&effect)) {
        core_.OnIncarnation(begin->newest + 1);
      } else if (const auto* end = std::get_if<EndNode>(&effect)) {
        ended_ = end->reason;
      } else if (const auto* tell = std::get_if<TellHead>(&effect)) {
        const uint8_t type = *wire::PeekType(tell->frame);
        if (type == kFrameNodeHello) hello_ = *wire::Decode<NodeHello>(type, tell->frame);
        if (type != kFrameWorkerExited) continue;
        const auto exited = *wire::Decode<WorkerExited>(type, tell->frame);
        told_.push_back(exited.process + (exited.reaped ? " ended: " : " died: ") + exited.how);
      }
    }
  }

  Time now_ = Time{} + seconds(1);
  NodeCore core_{{"n", "host", "127.0.0.1", 7, {{"CPU", 4}}, {}, kFence}, 5, now_};
  uint64_t answers_ = 0;
  std::vector<std::string> started_, signals_, told_;
  std::optional<NodeHello> hello_;
  std::string ended_;
  bool spare_ = false;
  bool over_ = false;
};

TEST_F(NodeCoreTest, NC1_AnOrderOfAHeadThatHasEndedStartsNothing) {
  Order("p");
  Order("p");
  EXPECT_THAT(started_, ElementsAre("p"));
  Hear("head-2");
  Order("q");
  EXPECT_THAT(started_, ElementsAre("p"));
  Order("q", "actor/b#1", "head-2");
  EXPECT_THAT(started_, ElementsAre("p", "q"));
}

TEST_F(NodeCoreTest, NC2_AFencedNodeJoinsWhenItsWorkersAreGone) {
  Order("p");
  Say(kFrameNodeFenced, NodeFenced{4, 9, false, "of another life"});
  EXPECT_EQ(core_.incarnation(), 5U);
  Say(kFrameNodeFenced, NodeFenced{5, 9, false, "given up"});
  EXPECT_THAT(signals_, ElementsAre("p 9"));
  EXPECT_EQ(core_.incarnation(), 10U);
  EXPECT_FALSE(Hello());
  Exit("p");
  EXPECT_FALSE(Hello(true)) << "a process that was started ahead is not gone";
  const auto hello = Hello();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->incarnation, 10U);
  EXPECT_THAT(hello->workers, IsEmpty());
}

TEST_F(NodeCoreTest, NC2_AWorkerThatCannotBeKilledDoesNotKeepTheNodeOutForEver) {
  Order("p");
  Say(kFrameNodeFenced, NodeFenced{5, 5, false, "given up"});
  now_ = now_ + NodeCore::kEndLimit;
  EXPECT_FALSE(Hello());
  now_ = now_ + milliseconds(1);
  ASSERT_TRUE(Hello());
  EXPECT_THAT(hello_->workers, IsEmpty());
}

TEST_F(NodeCoreTest, NC3_ADeathAndAnEndAreToldOnce) {
  Order("p");
  core_.OnLifeLost("p");
  core_.OnLifeLost("p");
  Take();
  EXPECT_THAT(told_, ElementsAre("p died: its process ended"));
  ASSERT_TRUE(Hello());
  ASSERT_EQ(hello_->workers.size(), 1U);
  EXPECT_TRUE(hello_->workers[0].ended);
  Exit("p");
  Exit("p");
  EXPECT_THAT(told_, ElementsAre("p died: its process ended", "p ended: exit code 1"));
  EXPECT_THAT(Hello()->ended, ElementsAre("p"));
}

TEST_F(NodeCoreTest, NC3_AnOrderThatCannotBeCarriedOutHasAnEndToo) {
  Order("p");
  core_.OnNotStarted("p", "no such program", now_);
  Take();
  EXPECT_THAT(told_, ElementsAre("p ended: could not be started: no such program"));
  for (uint32_t i = 0; i <= kDeathWatchSlots; ++i) Order("w" + std::to_string(i));
  ASSERT_EQ(told_.size(), 2U);
  EXPECT_THAT(told_.back(), HasSubstr("this node already runs 256 workers"));
}

TEST_F(NodeCoreTest, NC4_AProcessThatHadEndedAheadOfItsWorkIsReplaced) {
  Order("p");
  EXPECT_TRUE(spare_);
  core_.OnStarted("p", true);
  Exit("p", false);
  EXPECT_FALSE(over_);
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(started_, ElementsAre("p", "p"));
  EXPECT_FALSE(spare_) << "it is a process of its own now";
  core_.OnStarted("p", false);
  Exit("p", false);
  EXPECT_TRUE(over_);
  EXPECT_THAT(told_, ElementsAre("p ended: exit code 1"));
}

TEST_F(NodeCoreTest, NC4_NotWhenItWasKilledOrHadBegun) {
  Order("p");
  core_.OnStarted("p", true);
  Say(kFrameKillWorker, KillWorker{"p", SIGTERM, "not needed"});
  Exit("p", false);
  Order("q");
  core_.OnStarted("q", true);
  Exit("q", true);
  EXPECT_THAT(started_, ElementsAre("p", "q"));
  EXPECT_THAT(told_, ElementsAre("p ended: exit code 1", "q ended: exit code 1"));
}

TEST_F(NodeCoreTest, NC5_WithoutTheHeadActorsEndAndWorkersOfRunsStay) {
  Order("actor");
  Order("worker", MakeLeaseId(RunOwner("j") + "/w0", 1));
  for (Duration silence = seconds(0); silence < kFence; silence += seconds(1)) {
    now_ = now_ + seconds(1);
    EXPECT_THAT(signals_, IsEmpty());
    (void)Hello();
  }
  now_ = now_ + seconds(1);
  (void)Hello();
  EXPECT_THAT(signals_, ElementsAre("actor 9"));
}

// A head that is back in time keeps it; a cluster that was killed as a whole does not come back.
TEST_F(NodeCoreTest, ANodeWithALeaseEndsWhenTheHeadIsSilentForLonger) {
  NodeIdentity identity;
  identity.node = "n";
  identity.lease = seconds(300);
  NodeCore leased(identity, 1, now_);
  // Why it ended within the next seconds, if it did.
  const auto ends = [&](int within) {
    std::string reason;
    for (int i = 0; i < within; ++i) {
      now_ = now_ + seconds(1);
      leased.Tick(now_);
      (void)Hello();
      for (const NodeEffect& effect : leased.TakeEffects()) {
        if (const auto* end = std::get_if<EndNode>(&effect)) reason = end->reason;
      }
    }
    return reason;
  };
  EXPECT_EQ(ends(299), "");
  (void)leased.OnFrame(wire::Encode(kFrameNodeAnswer, NodeAnswer{"head-1", 1}), now_);
  EXPECT_EQ(ends(299), "");
  EXPECT_THAT(ends(2), ::testing::HasSubstr("not heard for 300 s"));
  EXPECT_EQ(ended_, "") << "without a lease it stays";
}

TEST_F(NodeCoreTest, EndsAreKeptForAHeadThatWasRestarted) {
  for (size_t i = 0; i <= NodeCore::kEndedMax; ++i) {
    Order("p" + std::to_string(i));
    Exit("p" + std::to_string(i));
  }
  EXPECT_EQ(Hello()->ended.size(), NodeCore::kEndedMax);
  EXPECT_FALSE(hello_->all_ended);
  now_ = now_ + 2 * NodeCore::kEndedKept;
  Hear("head-2");
  EXPECT_EQ(Hello()->ended.size(), NodeCore::kEndedMax);
  now_ = now_ + 2 * NodeCore::kEndedKept;
  Hear("head-2");
  EXPECT_THAT(Hello()->ended, IsEmpty());
  EXPECT_TRUE(hello_->all_ended);
}

TEST_F(NodeCoreTest, ANodeWhoseNameAnotherHasEnds) {
  Say(kFrameNodeFenced, NodeFenced{5, 6, true, "another node is called n"});
  EXPECT_THAT(ended_, HasSubstr("another node is called n; this one ends"));
}

TEST_F(NodeCoreTest, TheFirstNoticeCounts) {
  EXPECT_TRUE(core_.Notice({"preempt", "aws", "spot"}, now_ + seconds(40)));
  EXPECT_FALSE(core_.Notice({"walltime", "slurm", "later"}, now_ + seconds(90)));
  EXPECT_FALSE(core_.Notice({"preempt", "file", "nearer"}, now_ + seconds(20)));
  now_ = now_ + seconds(5);
  ASSERT_TRUE(Hello());
  EXPECT_EQ(hello_->notice.reason, "spot");
  EXPECT_EQ(hello_->notice.kind, "preempt");
  EXPECT_EQ(hello_->notice.left_ms, 15'000U);
  EXPECT_FALSE(hello_->warning);
  core_.Leave();
  Order("late");
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(NodeCoreTest, WhatMayComeIsToldAndDrainsNothing) {
  core_.AtRisk({"rebalance", "aws", "recommended"}, Time::Never());
  ASSERT_TRUE(Hello());
  EXPECT_EQ(hello_->warning.kind, "rebalance");
  EXPECT_EQ(hello_->warning.left_ms, NodeNotice::kNoDeadline);
  EXPECT_FALSE(hello_->notice);
  Order("still");
  EXPECT_THAT(started_, ElementsAre("still"));
  core_.AtRisk({}, Time::Never());
  ASSERT_TRUE(Hello());
  EXPECT_FALSE(hello_->warning);
}

// Drained is a node of which the head knows that it drains, when nothing runs there or is on its
// way.
TEST_F(NodeCoreTest, ANodeHasDrainedWhenTheHeadKnowsAndAllHasEnded) {
  Order("a");
  EXPECT_FALSE(core_.drained());
  (void)core_.Notice({"preempt", "aws", "spot"}, now_ + seconds(40));
  Hear("head-1");  // To a hello of before.
  Hear("head-1");
  ASSERT_TRUE(Hello());
  Hear("head-1");
  Order("b");  // On its way when the head got to know.
  Hear("head-1");
  EXPECT_FALSE(core_.drained());
  Exit("a");
  EXPECT_FALSE(core_.drained());
  Exit("b");
  EXPECT_TRUE(core_.drained());
  Hear("head-2");  // It may not know.
  EXPECT_FALSE(core_.drained());
  Hear("head-2");
  EXPECT_TRUE(core_.drained());
}

TEST_F(NodeCoreTest, WhatCannotBeReadIsPassedOver) {
  EXPECT_FALSE(core_.OnFrame("", now_));
  std::string cut = wire::Encode(kFrameStartWorker, StartWorker{});
  cut.resize(cut.size() / 2);
  EXPECT_FALSE(core_.OnFrame(cut, now_));
  EXPECT_TRUE(core_.OnFrame(wire::Encode(kFrameOutputTaken, OutputTaken{}), now_));
  Take();
  EXPECT_THAT(started_, IsEmpty());
}

}  // namespace
}  // namespace troupe::daemons
