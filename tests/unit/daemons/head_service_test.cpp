#include "daemons/head_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/wire.h"
#include "tests/unit/daemons/head_rig.h"

namespace troupe::daemons::testing {
namespace {

using groups::MemberState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

WorkerResult Returned(const HeadRig& rig, size_t worker) {
  return {rig.process(worker), "j", "w" + std::to_string(worker) + "#1", true, 0, "value"};
}

// The pause of an epoch is known when its last member has told it; a member may be done by then.
TEST(HeadEvents, AnEpochComesBeforeTheEndOfItsMembers) {
  HeadRig rig;
  rig.JoinNode();
  rig.Submit(2);
  ASSERT_EQ(rig.started(), 2U);
  rig.Greet(0);
  rig.Greet(1);
  rig.FormGroup(2);
  rig.Say(kFrameWorkerResult, rig.process(0), Returned(rig, 0));
  EXPECT_THAT(rig.told(), ElementsAre("w0#1 started", "w1#1 started", "epoch 1", "w0#1 finished"));
}

}  // namespace
}  // namespace troupe::daemons::testing
