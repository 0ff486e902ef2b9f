#include "daemons/head/head_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "runtime/wire.h"
#include "tests/unit/daemons/head/core/head_running.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

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
    note.kind = NoteKind::kState;
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
    rig_.Say(kFrameRunCommand, "d",
             RunCommand{2, "j", RunVerb::kDrain, 0, "w" + std::to_string(worker) + "#1",
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
            "ended by force: it was still there 2 s after it was asked to leave: "
            "asked by the driver");
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
  rig_.Say(kFrameRunCommand, "d", RunCommand{3, "j", RunVerb::kResize, 2, "", 0});
  rig_.Pass(milliseconds(200));
  ASSERT_EQ(rig_.started(), 3U);
  rig_.Greet(1);
  rig_.Pass(milliseconds(500));
  EXPECT_THAT(rig_.signals(rig_.process(1)), IsEmpty());
}

}  // namespace
}  // namespace troupe::daemons::testing
