// What becomes of a run whose driver is silent, dead or another one.
#include "daemons/head/head_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/process_place.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/head/core/head_running.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::Not;

// A driver that is suspended, or stands in a debugger, is not dead.
TEST(HeadDriver, ASilentDriverLosesItsRunOnlyAfterItsOwnTime) {
  HeadRig rig;
  rig.JoinNode();
  rig.Submit(1);
  rig.Greet(0);
  rig.FormGroup(1);
  rig.Report(0, MemberState::kActive, 1);
  rig.Silence();
  rig.Pass(seconds(14));  // The rig's runs say 15.
  EXPECT_THAT(rig.told(), Not(Contains("done cancelled")));
  rig.Pass(seconds(6));
  EXPECT_EQ(rig.told().back(), "done cancelled");
  EXPECT_NE(rig.events().back().at("reason").get<std::string>().find("driver_silence_s"),
            std::string::npos);
}

TEST(HeadDriver, ADriverWhoseProcessHasEndedHereIsNotWaitedFor) {
  HeadRig rig;
  rig.JoinNode();
  rig.Submit(1);
  const std::string ours = ProcessPlace();
  rig.Say(kFrameDriverHello, "d", DriverHello{"d", ours, 3600});
  rig.Silence();
  rig.Pass(seconds(5));
  EXPECT_THAT(rig.told(), Not(Contains("done cancelled")));
  // The same pid, but another life of it.
  rig.Say(kFrameDriverHello, "d", DriverHello{"d", ours + "0", 3600});
  rig.Pass(seconds(5));
  EXPECT_EQ(rig.told().back(), "done cancelled");
}

TEST(HeadDriver, ADriverThatLeavesTakesItsRunsAlong) {
  HeadRig rig;
  rig.JoinNode();
  rig.Submit(1);
  rig.Say(kFrameRunCommand, "other", RunCommand{9, "other", RunVerb::kLeave, 0, "", 0});
  rig.Pass(seconds(1));
  EXPECT_THAT(rig.told(), Not(Contains("done cancelled")));
  rig.Say(kFrameRunCommand, "d", RunCommand{9, "d", RunVerb::kLeave, 0, "", 0});
  rig.Pass(seconds(4));
  EXPECT_EQ(rig.told().back(), "done cancelled");
}

TEST(HeadDriver, ADetachedRunGoesOnWithoutAnyAndIsReadAfterItsEnd) {
  HeadOptions options;
  options.detached_kept = seconds(600);
  HeadRig rig(options);
  rig.Detach();
  rig.JoinNode();
  rig.Submit(1);
  rig.Say(kFrameDriverHello, "d", DriverHello{"d", ProcessPlace() + "0", 1});
  rig.Say(kFrameRunCommand, "d", RunCommand{9, "d", RunVerb::kLeave, 0, "", 0});
  rig.Silence();
  rig.Greet(0);
  rig.FormGroup(1);
  rig.Report(0, MemberState::kActive, 1);
  rig.Pass(seconds(500));
  rig.Say(kFrameWorkerResult, rig.process(0), Returned(rig, 0));
  rig.Say(kFrameWorkerExited, "node-n", WorkerExited{rig.process(0), true, "exited", 0, {}});
  rig.Pass(seconds(500));
  rig.Say(kFrameSubscribe, "e", Subscribe{"e", "j", "", 0});
  EXPECT_EQ(rig.told().back(), "done succeeded");
  EXPECT_THAT(rig.told(), Contains("epoch 1"));
  rig.Pass(seconds(601));
  rig.Say(kFrameRunCommand, "e", RunCommand{9, "j", RunVerb::kCancel, 0, "", 0});
  EXPECT_EQ(rig.reply_code(), static_cast<int>(ErrorCode::kNotFound));
}

TEST(HeadDriver, WhoLooksOnGetsTheEventsAndTakesUpARunThatNobodyReads) {
  HeadRig rig;
  rig.MayBeSilent(25);
  rig.JoinNode();
  rig.Submit(1);
  rig.Greet(0);
  rig.Say(kFrameSubscribe, "e", Subscribe{"e", "j", "", 0});
  rig.Silence();
  for (int i = 0; i < 40; ++i) {  // Beyond the silence of "d", whose run it was.
    rig.Pass(seconds(1));
    rig.Say(kFrameSubscribe, "e", Subscribe{"e", "j", "", 0});
  }
  EXPECT_THAT(rig.told(), Not(Contains("done cancelled")));
  rig.Pass(seconds(32));
  EXPECT_EQ(rig.told().back(), "done cancelled");
}

}  // namespace
}  // namespace troupe::daemons::testing
