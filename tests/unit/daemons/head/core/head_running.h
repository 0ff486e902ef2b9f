// A head with a run of two workers, for the tests of what happens to it then.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/daemons/head/core/head_rig.h"

namespace troupe::daemons::testing {

inline WorkerResult Returned(const HeadRig& rig, size_t worker) {
  return {rig.process(worker), "j", "w" + std::to_string(worker) + "#1", true, 0, "value"};
}

class HeadRunning : public ::testing::Test {
 protected:
  // Two workers in epoch 1.
  void Start(uint32_t spares) {
    rig_.JoinNode();
    rig_.Submit(2, 1, spares);
    for (const size_t i : {0, 1}) rig_.Greet(i);
    rig_.FormGroup(2);
    Active();
    rig_.Pass(seconds(1));
    ASSERT_EQ(rig_.started(), 2U);
  }
  void Active() {
    for (const size_t i : {0, 1}) rig_.Report(i, groups::MemberState::kActive, 1);
  }
  void ShrinkToOne() {
    RunCommand resize;
    resize.request = 2;
    resize.run = "j";
    resize.verb = RunVerb::kResize;
    resize.workers = 1;
    rig_.Say(kFrameRunCommand, "d", resize);
    EXPECT_EQ(rig_.reply_code(), 0);
  }
  void Die(size_t worker) {
    const std::string process = rig_.process(worker);
    rig_.Vanish(worker);
    rig_.Say(kFrameWorkerExited, "node-n", WorkerExited{process, true, "it was killed", 0, {}});
  }
  HeadRig rig_;
};

}  // namespace troupe::daemons::testing
