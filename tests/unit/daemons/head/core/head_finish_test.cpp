// The end of a run some of whose members have finished: who may still join it, and who is waited
// for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemons/head/core/head_rig.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::Not;

class HeadFinish : public ::testing::Test {
 protected:
  // Two workers in epoch 1.
  void Start() {
    rig_.JoinNode();
    rig_.Submit(2);
    for (const size_t i : {0, 1}) rig_.Greet(i);
    rig_.FormGroup(2);
    for (const size_t i : {0, 1}) rig_.Report(i, MemberState::kActive, 1);
    rig_.Pass(seconds(1));
    ASSERT_EQ(rig_.started(), 2U);
  }
  // Worker 0 goes on alone.
  void GoOn() {
    rig_.Report(0, MemberState::kReady, 1);
    for (const MemberState state :
         {MemberState::kPrepared, MemberState::kLinked, MemberState::kActive}) {
      rig_.Report(0, state, 2);
    }
    ASSERT_THAT(rig_.told(), Contains("epoch 2"));
  }
  void Finish(size_t worker, groups::Epoch epoch) {
    rig_.Report(worker, MemberState::kFinished, epoch);
    const std::string member = "w" + std::to_string(worker) + "#1";
    rig_.Say(kFrameWorkerResult, rig_.process(worker),
             WorkerResult{rig_.process(worker), "j", member, true, 0, "value"});
  }
  void Die(size_t worker, const std::string& how) {
    const std::string process = rig_.process(worker);
    rig_.Vanish(worker);
    rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{process, true, how, 0, {}});
  }

  HeadRig rig_;
};

// It may import for a long time yet, and would be sent away then.
TEST_F(HeadFinish, AReplacementThatStartsDoesNotHoldUpTheEnd) {
  Start();
  Die(1, "signal SIGKILL");
  GoOn();
  rig_.Pass(seconds(1));
  ASSERT_EQ(rig_.started(), 3U);  // It never says a word.
  Finish(0, 2);
  rig_.Pass(seconds(3));  // The last output is waited for.
  EXPECT_EQ(rig_.told().back(), "done succeeded");
}

TEST_F(HeadFinish, WhoDiesAfterAMemberHasFinishedIsNotReplaced) {
  Start();
  Finish(0, 1);
  Die(1, "signal SIGKILL");
  rig_.Pass(seconds(3));
  EXPECT_EQ(rig_.started(), 2U);
  EXPECT_EQ(rig_.told().back(), "done succeeded");
}

// Without state to go on from, what it was to return is still wanted.
TEST_F(HeadFinish, WhoCrashesRunsAgainIfTheGroupHasNoState) {
  Start();
  Die(1, "exited with code 3");
  rig_.Pass(seconds(1));
  ASSERT_EQ(rig_.started(), 3U);
  Finish(0, 1);
  rig_.Pass(seconds(3));
  EXPECT_THAT(rig_.told(), Not(Contains("done succeeded")));
}

TEST_F(HeadFinish, WhoCrashesIsNotWaitedForIfItHas) {
  rig_.HoldState();
  Start();
  Die(1, "exited with code 3");
  rig_.Pass(seconds(1));
  ASSERT_EQ(rig_.started(), 3U);
  Finish(0, 1);
  rig_.Pass(seconds(3));
  EXPECT_EQ(rig_.told().back(), "done succeeded");
}

}  // namespace
}  // namespace troupe::daemons::testing
