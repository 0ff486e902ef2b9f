// How a head keeps in step with what its nodes run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "runtime/metrics.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/head/core/head_running.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

using HeadNodes = HeadRunning;

TEST_F(HeadNodes, AWorkerWhoseEndWasNotToldIsReplaced) {
  Start(0);
  rig_.Vanish(1);
  rig_.Pass(seconds(2));
  EXPECT_THAT(rig_.told(), Contains("w1#1 died"));
  EXPECT_EQ(rig_.started(), 3U);
}

TEST_F(HeadNodes, AWorkerWhoseStartWasLostIsStartedAgain) {
  Start(0);
  rig_.Cut();
  rig_.Pass(seconds(1));  // Not long enough to be suspect.
  Die(1);
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  rig_.Mend();
  rig_.Pass(seconds(2));
  EXPECT_EQ(rig_.started(), 4U);
  EXPECT_THAT(rig_.told(), Not(Contains("w1#2 died"))) << "it never lived";
}

TEST_F(HeadNodes, AHelloFromBeforeTheOrderToStartAWorkerSaysNothingOfIt) {
  Start(0);
  Die(1);
  const NodeHello before = rig_.Hello();
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  rig_.Say(kFrameNodeHello, "node-n", before);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);
}

// Its numbers are those of the head that was there before.
TEST_F(HeadNodes, AHelloToTheHeadOfBeforeIsNoAnswerToThisOne) {
  Start(0);
  rig_.Pass(seconds(5));
  const NodeHello before = rig_.Hello();
  rig_.Restart();
  rig_.JoinNode();
  Active();
  Die(1);
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  NodeHello late = rig_.Hello();  // Had it got nothing from this head yet.
  late.heard = before.heard;
  late.workers.pop_back();
  rig_.Say(kFrameNodeHello, "node-n", late);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);
}

// It was put aside while its node was cut off, and the head that knew of it is gone.
TEST_F(HeadNodes, AWorkerThatTheRecordDoesNotKnowIsNoSpare) {
  Start(0);
  rig_.Restart();
  rig_.JoinNode();
  Active();
  NodeHello hello = rig_.Hello();
  hello.workers.push_back({"old", 100, MakeLeaseId(RunOwner("j") + "/w1", 0), false, {}});
  rig_.Say(kFrameNodeHello, "node-n", hello);
  WorkerHello worker;
  worker.process = "old";
  worker.node = "n";
  worker.assignment = "j";
  worker.member = "w1#0";
  rig_.Say(kFrameWorkerHello, "old", worker);
  EXPECT_THAT(rig_.signals("old"), Contains(SIGKILL));
  Die(1);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);
}

// The later one stays: otherwise the two would end each other's workers in turns.
TEST_F(HeadNodes, OfTwoNodesOfOneNameTheEarlierEnds) {
  Start(0);
  NodeHello other = rig_.Hello();
  other.incarnation = 5;
  other.workers.clear();
  rig_.Say(kFrameNodeHello, "node-other", other);
  rig_.JoinNode();
  EXPECT_FALSE(rig_.put_aside().has_value()) << "the other may be gone already";
  rig_.Freeze(milliseconds(500));
  rig_.Say(kFrameNodeHello, "node-other", other);
  rig_.JoinNode();
  ASSERT_TRUE(rig_.put_aside().has_value());
  EXPECT_TRUE(rig_.put_aside()->replaced);
  EXPECT_EQ(rig_.put_aside()->newest, 5U);
}

// Its clock was set back while it was down, and its run directory is a new one.
TEST_F(HeadNodes, ANodeThatIsStartedAgainWithASmallerNumberIsToTakeAGreaterOne) {
  Start(0);
  NodeHello before = rig_.Hello();
  before.incarnation = 5;
  rig_.Say(kFrameNodeHello, "node-n", before);
  rig_.Pass(seconds(1));  // The node's beats have number 1.
  EXPECT_FALSE(rig_.put_aside().has_value());
  rig_.Pass(seconds(2));
  ASSERT_TRUE(rig_.put_aside().has_value());
  EXPECT_FALSE(rig_.put_aside()->replaced);
  EXPECT_EQ(rig_.put_aside()->newest, 5U);
}

// It is not reaped yet, and may never be: it hangs in the kernel.
TEST_F(HeadNodes, AWorkerThatIsListedAsEndedHasDied) {
  Start(0);
  NodeHello hello = rig_.Hello();
  for (RunningWorker& w : hello.workers) w.ended = w.process == rig_.process(1);
  rig_.Say(kFrameNodeHello, "node-n", hello);
  rig_.Pass(kCauseGrace + seconds(1));
  EXPECT_THAT(rig_.told(), Contains("w1#1 died"));
}

TEST_F(HeadNodes, ACauseThatCameWhileTheHeadWasStoppedIsStillTold) {
  Start(0);
  const std::string process = rig_.process(1);
  rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{process, false, "its process ended", 0, {}});
  rig_.Freeze(kCauseGrace + seconds(3));
  rig_.RunTimers();  // They come before what waits in the sockets.
  EXPECT_THAT(rig_.told(), Not(Contains("w1#1 died")));
  rig_.Vanish(1);
  rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{process, true, "signal SIGKILL", -9, {}});
  ASSERT_THAT(rig_.told(), Contains("w1#1 died"));
  const auto died = std::ranges::find(rig_.told(), "w1#1 died") - rig_.told().begin();
  EXPECT_EQ(rig_.events().at(static_cast<size_t>(died)).at("detail"), "signal SIGKILL");
}

TEST_F(HeadNodes, AWorkerOfARunThatNobodyKnowsIsEnded) {
  rig_.JoinNode();
  NodeHello hello = rig_.Hello();
  hello.workers.push_back({"stray", 100, MakeLeaseId(RunOwner("over") + "/w0", 1), false, {}});
  rig_.Say(kFrameNodeHello, "node-n", hello);
  EXPECT_THAT(rig_.signals("stray"), IsEmpty());  // It may be about to leave by itself.
  rig_.Freeze(seconds(4));
  rig_.Say(kFrameNodeHello, "node-n", hello);
  EXPECT_THAT(rig_.signals("stray"), Contains(SIGKILL));
}

TEST_F(HeadNodes, AnOrderToKillThatWasLostIsRepeated) {
  Start(0);
  rig_.Cut();
  rig_.Pass(milliseconds(500));
  rig_.Say(kFrameRunCommand, "d", RunCommand{2, "j", RunVerb::kCancel, 0, "", 0});
  rig_.Pass(seconds(4));
  for (const size_t i : {0, 1}) ASSERT_THAT(rig_.signals(rig_.process(i)), IsEmpty());
  rig_.Mend();
  rig_.Pass(seconds(1));
  for (const size_t i : {0, 1}) EXPECT_THAT(rig_.signals(rig_.process(i)), Contains(SIGKILL));
}

// While nobody at all is heard it may be the head that is cut off.
TEST_F(HeadNodes, ACutThatNobodyIsSparedCostsNothing) {
  Start(0);
  const auto told = rig_.told();
  rig_.Cut();
  rig_.Pass(seconds(9));
  rig_.Mend();
  rig_.Pass(seconds(2));
  EXPECT_EQ(rig_.told(), told);
  for (const size_t i : {0, 1}) EXPECT_THAT(rig_.signals(rig_.process(i)), IsEmpty());
}

TEST_F(HeadNodes, ASuspectIsGivenNoNewWorkers) {
  Start(0);
  rig_.JoinOther(2);
  rig_.Cut();
  rig_.Pass(seconds(3));
  EXPECT_EQ(rig_.started(), 2U);
  Die(1);
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  EXPECT_EQ(rig_.node(2), "m");
}

// On one machine what does not fit now never will, but a suspect is not gone.
TEST(HeadPlacement, ASuspectMayStillHaveTheRoom) {
  HeadOptions options;
  options.embedded = true;
  HeadRig rig(options);
  rig.JoinNode();
  rig.Cut();
  rig.Pass(seconds(3));
  rig.Submit(2);
  rig.Pass(seconds(1));
  EXPECT_EQ(rig.started(), 0U);
  rig.Mend();
  rig.Pass(seconds(1));
  EXPECT_EQ(rig.started(), 2U);
}

TEST_F(HeadNodes, ANodeThatWasPutAsideReturns) {
  Start(0);
  rig_.JoinOther(2);
  rig_.Cut();
  rig_.Pass(seconds(8));
  ASSERT_EQ(rig_.started(), 4U);
  for (const size_t i : {2, 3}) EXPECT_EQ(rig_.node(i), "m");
  rig_.Mend();
  rig_.Pass(seconds(1));
  rig_.Say(kFrameRunCommand, "d", RunCommand{3, "j", RunVerb::kResize, 3, "", 0});
  rig_.Pass(seconds(1));
  ASSERT_EQ(rig_.started(), 5U);
  EXPECT_EQ(rig_.node(4), "n");
}

HeadOptions ShortKeys() {
  HeadOptions options;
  options.key_ttl = seconds(20);
  return options;
}

TEST(HeadStore, TheKeysOfARunningRunDoNotExpire) {
  HeadRig rig(ShortKeys());
  rig.JoinNode();
  rig.Submit(1);
  rig.Greet(0);
  rig.FormGroup(1);
  rig.Report(0, MemberState::kActive, 1);
  rig.Pass(seconds(60));
  EXPECT_THAT(rig.Keys(), IsSupersetOf({"job/j/spec", "job/j/state", "group/j/record"}));
}

TEST(HeadStore, NothingIsLeftOfARunThatEndedEvenWhileTheStoreWasAway) {
  HeadRig rig(ShortKeys());
  rig.JoinNode();
  rig.Submit(1);
  rig.Greet(0);
  rig.FormGroup(1);
  rig.store().SetAvailable(false);
  rig.Say(kFrameWorkerResult, rig.process(0), Returned(rig, 0));
  rig.store().SetAvailable(true);
  rig.Say(kFrameWorkerExited, "node-n", WorkerExited{rig.process(0), true, "exited", 0, {}});
  ASSERT_EQ(rig.told().back(), "done succeeded");
  EXPECT_THAT(rig.Keys(), Not(IsEmpty()));
  rig.Silence();
  rig.Pass(seconds(400));
  EXPECT_THAT(rig.Keys(), IsEmpty());
}

// Workers count calls and state themselves and tell their totals; the head adds what is new.
TEST(HeadMetrics, TheCountsOfWorkersAddUp) {
  metrics::Enable();
  const double calls = metrics::Value(metrics::Id::kActorCalls);
  HeadRig rig;
  rig.JoinNode();
  rig.Submit(1);
  WorkerHello hello;
  hello.process = rig.process(0);
  hello.node = "n";
  hello.counts = {5, 1, 3, 0, 0};
  rig.Say(kFrameWorkerHello, hello.process, hello);
  EXPECT_EQ(metrics::Value(metrics::Id::kMailboxDepth), 3);
  hello.counts = {7, 1, 2, 0, 0};
  rig.Say(kFrameWorkerHello, hello.process, hello);
  rig.Say(kFrameWorkerHello, hello.process, hello);
  EXPECT_EQ(metrics::Value(metrics::Id::kActorCalls) - calls, 7);
  EXPECT_EQ(metrics::Value(metrics::Id::kMailboxDepth), 2);
  rig.Say(kFrameWorkerExited, "node-n", WorkerExited{rig.process(0), false, "killed", 0, {}});
  EXPECT_EQ(metrics::Value(metrics::Id::kMailboxDepth), 0);
  EXPECT_EQ(metrics::Value(metrics::Id::kActorCalls) - calls, 7);
}

TEST(HeadLost, ARunThatNobodyKnowsIsToldAsLost) {
  HeadRig rig;
  rig.Say(kFrameSubscribe, "d", Subscribe{"d", "unknown", "another head's", 7});
  ASSERT_EQ(rig.told(), std::vector<std::string>{"done failed"});
  EXPECT_NE(rig.events().back().at("reason").get<std::string>().find("lost this run"),
            std::string::npos);
}

TEST(HeadLost, ALargeRunOutlivesItsHead) {
  HeadRig rig;
  rig.JoinNode();
  SubmitRun submit;
  submit.request = 1;
  submit.driver = "d";
  submit.spec.id = "j";
  submit.spec.resources = {{"CPU", 1}};
  submit.spec.payload = std::string(size_t{20} << 20, 'p');
  rig.Say(kFrameSubmitRun, "d", submit);
  rig.Restart();
  rig.Say(kFrameSubscribe, "d", Subscribe{"d", "j", "", 0});
  EXPECT_EQ(rig.told(), std::vector<std::string>{}) << "it is not lost";
}

}  // namespace
}  // namespace troupe::daemons::testing
