#include "daemons/head/head_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/metrics.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/head/head_rig.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

WorkerResult Returned(const HeadRig& rig, size_t worker) {
  return {rig.process(worker), "j", "w" + std::to_string(worker) + "#1", true, 0, "value"};
}

// Two workers in epoch 1, which nobody has told yet.
class HeadEvents : public ::testing::Test {
 protected:
  HeadEvents() {
    rig_.JoinNode();
    rig_.Submit(2);
    for (const size_t i : {0, 1}) rig_.Greet(i);
    rig_.FormGroup(2);
  }
  // Worker 0 tells of state in the epoch.
  void NoteState(groups::Epoch epoch) {
    WorkerNote note;
    note.process = rig_.process(0);
    note.kind = "state";
    note.epoch = epoch;
    note.bytes = 8;
    rig_.Say(kFrameWorkerNote, note.process, note);
  }

  HeadRig rig_;
};

// The pause of an epoch is known when its last member has told it; a member may be done by then.
TEST_F(HeadEvents, AnEpochComesBeforeTheEndOfItsMembers) {
  ASSERT_EQ(rig_.started(), 2U);
  rig_.Say(kFrameWorkerResult, rig_.process(0), Returned(rig_, 0));
  EXPECT_THAT(rig_.told(), ElementsAre("w0#1 started", "w1#1 started", "epoch 1", "w0#1 finished"));
}

// A sum over an epoch's notes needs the epoch first.
TEST_F(HeadEvents, AnEpochComesBeforeWhatIsNotedInIt) {
  rig_.Report(0, MemberState::kActive, 1);
  NoteState(1);
  rig_.Report(1, MemberState::kActive, 1);
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), ElementsAre("w0#1 started", "w1#1 started", "epoch 1", "state 8"));
}

// Members that have nothing to link go before the head knows that all of them do.
TEST_F(HeadEvents, AnEpochComesBeforeWhatIsNotedAheadOfIt) {
  for (const size_t i : {0, 1}) rig_.Report(i, MemberState::kActive, 1);
  rig_.Say(kFrameWorkerExited, "node-n",
           WorkerExited{rig_.process(1), false, "its process ended", 0, {}});
  rig_.Report(0, MemberState::kReady, 1);
  rig_.Report(0, MemberState::kPrepared, 2);
  NoteState(2);
  EXPECT_THAT(rig_.told(), Not(Contains("state 8")));
  rig_.Report(0, MemberState::kLinked, 2);
  rig_.Report(0, MemberState::kActive, 2);
  rig_.Pass(seconds(1));
  std::vector<std::string> of_epochs;
  for (const std::string& told : rig_.told()) {
    if (told == "state 8" || told.rfind("epoch", 0) == 0) of_epochs.push_back(told);
  }
  EXPECT_THAT(of_epochs, ElementsAre("epoch 1", "epoch 2", "state 8"));
}

class HeadDrain : public ::testing::Test {
 protected:
  // Two workers in epoch 1, the second of which may not have said hello yet.
  void Start(bool both_greet) {
    rig_.JoinNode();
    rig_.Submit(2);
    rig_.Greet(0);
    if (both_greet) rig_.Greet(1);
    rig_.FormGroup(2);
    for (const size_t i : {0, 1}) rig_.Report(i, MemberState::kActive, 1);
  }
  void Drain(size_t worker, Duration limit) {
    const auto ms = std::chrono::duration_cast<milliseconds>(limit).count();
    rig_.Say(kFrameJobCommand, "d",
             JobCommand{2, "j", JobVerb::kDrain, 0, "w" + std::to_string(worker) + "#1",
                        static_cast<uint64_t>(ms)});
    EXPECT_EQ(rig_.reply_code(), 0);
  }
  [[nodiscard]] bool Told(size_t worker, groups::CommandKind kind) const {
    for (const groups::Command& command : rig_.commands(worker)) {
      if (command.kind == kind) return true;
    }
    return false;
  }

  HeadRig rig_;
};

TEST_F(HeadDrain, AfterItsDeadlineAWorkerIsEndedAndTheDriverTold) {
  Start(true);
  Drain(1, seconds(2));
  rig_.Pass(milliseconds(1500));
  EXPECT_TRUE(Told(1, groups::CommandKind::kPlan));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.signals(rig_.process(1)), Contains(SIGKILL));
  rig_.Say(kFrameWorkerExited, "node-n",
           WorkerExited{rig_.process(1), false, "its process ended", 0, {}});
  ASSERT_EQ(rig_.told().back(), "w1#1 drained");
  EXPECT_EQ(rig_.events().back().at("detail"),
            "ended by force: it was still there 2 s after it was asked to leave");
}

TEST_F(HeadDrain, WithoutADeadlineNobodyIsEnded) {
  Start(true);
  Drain(1, Duration::zero());
  rig_.Pass(seconds(60));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
}

TEST_F(HeadDrain, ASecondDrainMayBringTheDeadlineNearer) {
  Start(true);
  Drain(1, seconds(50));
  Drain(1, seconds(1));
  Drain(1, seconds(90));
  rig_.Pass(seconds(2));
  EXPECT_THAT(rig_.signals(rig_.process(1)), Contains(SIGKILL));
}

// Its first report may overtake its hello: it is a member and leaves like one, without a death.
TEST_F(HeadDrain, AMemberThatHasNotSaidHelloIsNotKilled) {
  Start(false);
  Drain(1, seconds(30));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
  EXPECT_TRUE(Told(1, groups::CommandKind::kPlan));
}

// A drain that comes before the group knows the worker is not lost.
TEST_F(HeadDrain, ReachesAWorkerThatTheGroupDoesNotKnowYet) {
  rig_.JoinNode();
  rig_.Submit(3);
  for (const size_t i : {0, 1, 2}) rig_.Greet(i);
  Drain(2, seconds(30));
  rig_.Report(2, MemberState::kReady, 0);
  rig_.Pass(milliseconds(500));
  EXPECT_TRUE(Told(2, groups::CommandKind::kExpel));
}

// Its number may have a successor by the time it has settled what it still had to.
TEST_F(HeadDrain, WhoHasLeftMaySettleInPeace) {
  Start(true);
  Drain(1, seconds(30));
  WorkerResult left = Returned(rig_, 1);
  left.payload.clear();
  rig_.Say(kFrameWorkerResult, rig_.process(1), left);
  ASSERT_EQ(rig_.told().back(), "w1#1 drained");
  rig_.Say(kFrameJobCommand, "d", JobCommand{3, "j", JobVerb::kResize, 2, "", 0});
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  rig_.Greet(1);
  rig_.Pass(milliseconds(500));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
}

class HeadRunning : public ::testing::Test {
 protected:
  // Two workers in epoch 1, and a spare if asked for.
  void Start(uint32_t spares) {
    rig_.JoinNode();
    rig_.Submit(2, 1, spares);
    for (const size_t i : {0, 1}) rig_.Greet(i);
    rig_.FormGroup(2);
    Active();
    rig_.Pass(seconds(1));
    ASSERT_EQ(rig_.started(), 2U + spares);
    if (spares > 0) rig_.GreetSpare(2);
  }
  void Active() {
    for (const size_t i : {0, 1}) rig_.Report(i, MemberState::kActive, 1);
  }
  void ShrinkToOne() {
    JobCommand resize;
    resize.request = 2;
    resize.job = "j";
    resize.verb = JobVerb::kResize;
    resize.workers = 1;
    rig_.Say(kFrameJobCommand, "d", resize);
    EXPECT_EQ(rig_.reply_code(), 0);
  }
  void Die(size_t worker) {
    const std::string process = rig_.process(worker);
    rig_.Vanish(worker);
    rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{process, true, "it was killed", 0, {}});
  }
  HeadRig rig_;
};

using HeadRestart = HeadRunning;

TEST_F(HeadRestart, WorkersThatAllWereHeardAreNotWaitedFor) {
  Start(0);
  rig_.Restart();
  rig_.JoinNode();
  Active();
  Die(1);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);
}

TEST_F(HeadRestart, AWorkerThatItsNodeDoesNotHaveAnyMoreIsReplaced) {
  Start(0);
  rig_.Vanish(1);
  rig_.Restart();
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), Contains("w1#1 died"));
  EXPECT_EQ(rig_.started(), 3U);
}

TEST_F(HeadRestart, WorkersKeepTheirGpus) {
  rig_.HaveGpus(2);
  Start(0);
  rig_.Restart();
  rig_.Pass(seconds(1));
  Active();
  rig_.Pass(seconds(10));
  EXPECT_EQ(rig_.started(), 2U);
  for (const size_t i : {0, 1}) EXPECT_THAT(rig_.signals(rig_.process(i)), IsEmpty());
}

TEST_F(HeadRestart, ASpareStaysTheSpareOfItsJob) {
  Start(1);
  rig_.Restart();
  rig_.JoinNode();
  rig_.GreetSpare(2);
  Active();
  Die(1);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);  // Nothing new: the spare takes over.
}

// The record may still say that they are starting.
TEST_F(HeadRestart, WhoIsNotHeardYetIsNotEndedByAShrink) {
  Start(0);
  rig_.Restart();
  rig_.JoinNode();
  ShrinkToOne();
  Active();
  rig_.Pass(seconds(1));
  for (const size_t i : {0, 1}) EXPECT_THAT(rig_.signals(rig_.process(i)), IsEmpty());
  const auto drained = [](const groups::Command& command) {
    return command.kind == groups::CommandKind::kPlan;
  };
  EXPECT_TRUE(std::ranges::any_of(rig_.commands(1), drained));
}

TEST_F(HeadRestart, WhoLeavesBeforeItIsHeardIsNotWaitedForForEver) {
  rig_.JoinNode();
  rig_.Submit(2);
  rig_.Greet(0);
  rig_.Restart();
  rig_.JoinNode();
  ShrinkToOne();
  rig_.Pass(seconds(10));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
  rig_.Pass(seconds(120));
  EXPECT_THAT(rig_.signals(rig_.process(1)), Contains(SIGKILL));
}

// Longer than the leases of members, nodes and drivers.
TEST_F(HeadRestart, ItsOwnStopIsNobodysSilence) {
  Start(0);
  const auto told = rig_.told();
  rig_.Freeze(seconds(30));
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.told(), told);
  for (const size_t i : {0, 1}) EXPECT_THAT(rig_.signals(rig_.process(i)), IsEmpty());
}

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
  hello.workers.push_back({"old", 100, "j", false, {}});
  rig_.Say(kFrameNodeHello, "node-n", hello);
  WorkerHello worker;
  worker.process = "old";
  worker.node = "n";
  worker.job = "j";
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
  ASSERT_TRUE(rig_.put_aside().has_value());
  EXPECT_TRUE(rig_.put_aside()->replaced);
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

TEST_F(HeadNodes, AWorkerOfAJobThatNobodyKnowsIsEnded) {
  rig_.JoinNode();
  NodeHello hello = rig_.Hello();
  hello.workers.push_back({"stray", 100, "over", false, {}});
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
  rig_.Say(kFrameJobCommand, "d", JobCommand{2, "j", JobVerb::kCancel, 0, "", 0});
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
  rig_.Say(kFrameJobCommand, "d", JobCommand{3, "j", JobVerb::kResize, 3, "", 0});
  rig_.Pass(seconds(1));
  ASSERT_EQ(rig_.started(), 5U);
  EXPECT_EQ(rig_.node(4), "n");
}

HeadOptions ShortKeys() {
  HeadOptions options;
  options.key_ttl = seconds(20);
  return options;
}

TEST(HeadStore, TheKeysOfARunningJobDoNotExpire) {
  HeadRig rig(ShortKeys());
  rig.JoinNode();
  rig.Submit(1);
  rig.Greet(0);
  rig.FormGroup(1);
  rig.Report(0, MemberState::kActive, 1);
  rig.Pass(seconds(60));
  EXPECT_THAT(rig.Keys(), IsSupersetOf({"job/j/spec", "job/j/state", "group/j/record"}));
}

TEST(HeadStore, NothingIsLeftOfAJobThatEndedEvenWhileTheStoreWasAway) {
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
  SubmitJob submit;
  submit.request = 1;
  submit.driver = "d";
  submit.spec.job = "j";
  submit.spec.resources = {{"CPU", 1}};
  submit.spec.payload = std::string(size_t{20} << 20, 'p');
  rig.Say(kFrameSubmitJob, "d", submit);
  rig.Restart();
  rig.Say(kFrameSubscribe, "d", Subscribe{"d", "j", "", 0});
  EXPECT_EQ(rig.told(), std::vector<std::string>{}) << "it is not lost";
}

}  // namespace
}  // namespace troupe::daemons::testing
