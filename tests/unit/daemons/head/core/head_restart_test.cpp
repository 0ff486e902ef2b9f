// What a head that is started anew makes of the runs that went on without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/wire.h"
#include "tests/unit/daemons/head/core/head_running.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class HeadRestart : public HeadRunning {
 protected:
  // The last epoch that was told says where its members run.
  void ExpectPids() {
    nlohmann::json last;
    for (const nlohmann::json& event : rig_.events())
      if (event["kind"] == "epoch") last = event;
    ASSERT_FALSE(last.is_null());
    for (const nlohmann::json& member : last["members"]) EXPECT_NE(member["pid"], 0);
  }
};

TEST_F(HeadRestart, WorkersThatAllWereHeardAreNotWaitedFor) {
  Start(0);
  rig_.Restart();
  rig_.JoinNode();
  Active();
  Die(1);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 3U);
}

// The head before may have had no time to tell it, and what is done for a run rests on it.
TEST_F(HeadRestart, TheEpochThatThereIsIsTold) {
  Start(0);
  EXPECT_THAT(rig_.told(), Contains("epoch 1").Times(1));
  rig_.Restart();
  Active();
  EXPECT_THAT(rig_.told(), Contains("epoch 1").Times(1)) << "where its members run is not known";
  rig_.JoinNode();
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), Contains("epoch 1").Times(2));
  ExpectPids();
}

// An epoch of its own, too, where members are heard before their nodes.
TEST_F(HeadRestart, AnEpochIsToldWhenItIsKnownWhereItsMembersRun) {
  Start(0);
  rig_.Restart();
  rig_.Report(0, MemberState::kReady, 1);
  rig_.Report(1, MemberState::kActive, 1);
  for (const MemberState state :
       {MemberState::kPrepared, MemberState::kLinked, MemberState::kActive}) {
    for (const size_t i : {0, 1}) rig_.Report(i, state, 2);
  }
  EXPECT_THAT(rig_.told(), Not(Contains("epoch 2")));
  rig_.JoinNode();
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), Contains("epoch 2").Times(1));
  ExpectPids();
}

TEST_F(HeadRestart, ARunThatTrainsIsNotFailedByThoseWhoJoinIt) {
  Start(0);
  rig_.Restart();
  rig_.JoinNode();
  Active();
  Die(1);  // No other epoch begins: all that is known is the one from before the restart.
  for (size_t next = 2; next < 2 + kStartFailuresMax + 1; ++next) {
    rig_.Pass(seconds(4));
    ASSERT_GT(rig_.started(), next);
    Die(next);
  }
  rig_.Pass(seconds(4));
  EXPECT_THAT(rig_.told(), Not(Contains(HasSubstr("done"))));
}

// Else two processes would be one member: the next head does not know of the first.
TEST_F(HeadRestart, NoWorkerIsStartedBeforeTheStoreKnowsItsIncarnation) {
  rig_.JoinNode();
  rig_.store().SetAvailable(false);
  rig_.Submit(2, 1);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 0U);
  rig_.store().SetAvailable(true);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 2U);
}

TEST_F(HeadRestart, ARunThatHasEndedIsToldOnceMore) {
  Start(0);
  for (const size_t i : {0, 1}) rig_.Say(kFrameWorkerResult, rig_.process(i), Returned(rig_, i));
  for (const size_t i : {0, 1}) {
    rig_.Vanish(i);
    rig_.Say(kFrameWorkerExited, "node-n",
             WorkerExited{rig_.process(i), true, "exit code 0", 0, {}});
  }
  EXPECT_THAT(rig_.told(), Contains("done succeeded").Times(1));
  rig_.Restart();
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), Contains("done succeeded").Times(2));
  EXPECT_THAT(rig_.results(), SizeIs(4)) << "each result was told by both heads";
  EXPECT_EQ(rig_.started(), 2U) << "and nothing runs again";
}

// The last word of a run is held back until its output is in: a head may die in that time.
TEST_F(HeadRestart, ResultsThatAreKeptEndTheRun) {
  Start(0);
  for (const size_t i : {0, 1}) rig_.Say(kFrameWorkerResult, rig_.process(i), Returned(rig_, i));
  EXPECT_THAT(rig_.told(), Not(Contains(HasSubstr("done"))));
  rig_.Restart();
  rig_.Pass(seconds(4));
  EXPECT_THAT(rig_.told(), Contains("done succeeded"));
  EXPECT_EQ(rig_.started(), 2U);
}

// Its order to end was lost in a cut, and the head that gave it is gone.
TEST_F(HeadRestart, WhoWasEvictedDoesNotComeBack) {
  Start(0);
  rig_.Cut();
  rig_.Pass(seconds(1));
  rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{rig_.process(1), false, "ended", 0, {}});
  rig_.Restart();
  rig_.Mend();
  rig_.Pass(seconds(2));
  EXPECT_THAT(rig_.signals(rig_.process(1)), Contains(SIGKILL));
  EXPECT_THAT(rig_.signals(rig_.process(0)), IsEmpty());
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

// The word of the head before may have been its last.
TEST_F(HeadRestart, SparesAreAskedForAgain) {
  Start(1);
  const size_t asked = rig_.spares().size();
  rig_.Restart();
  rig_.JoinNode();
  Active();
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.spares().size(), asked + 1);
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

TEST_F(HeadRestart, WhoHasLeftMaySettleUnderTheNextHead) {
  Start(0);
  ShrinkToOne();
  WorkerResult left = Returned(rig_, 1);
  left.payload.clear();
  rig_.Say(kFrameWorkerResult, rig_.process(1), left);
  ASSERT_THAT(rig_.told(), Contains("w1#1 drained"));
  rig_.Restart();
  rig_.Pass(seconds(10));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
  rig_.Pass(seconds(25));
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

}  // namespace
}  // namespace troupe::daemons::testing
