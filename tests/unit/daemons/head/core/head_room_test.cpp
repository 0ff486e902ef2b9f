// The workers of a run as actors of the directory: their places, their ends, their spares.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "actors/core/cluster_protocol.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/head/core/head_running.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class RunWorkers : public HeadRunning {
 protected:
  // Another run, of two workers.
  void SubmitOther(uint64_t request) {
    SubmitRun submit;
    submit.request = request;
    submit.driver = "d";
    submit.spec.id = "k";
    submit.spec.name = "other";
    submit.spec.workers = submit.spec.max_workers = 2;
    submit.spec.resources = {{"CPU", 1}};
    rig_.Say(kFrameSubmitRun, "d", submit);
  }
};

TEST_F(RunWorkers, AreListedAmongTheActors) {
  Start(0);
  rig_.Say(kFrameQuery, "d", Query{9, QueryVerb::kState, "", "", 0});
  std::vector<std::string> ids;
  const nlohmann::json state = rig_.reply();
  for (const nlohmann::json& actor : state.at("actors")) ids.push_back(actor.at("id"));
  EXPECT_THAT(ids, ElementsAre("run/j/w0", "run/j/w1"));
}

TEST_F(RunWorkers, OneThatIsKilledAsAnActorIsReplaced) {
  Start(0);
  actors::ActorRequest kill;
  kill.request = 9;
  kill.verb = actors::ActorVerb::kKill;
  kill.actor = RunOwner("j") + "/w1";
  kill.reason = "nobody likes it";
  rig_.Say(actors::kFrameActorRequest, "d", kill);
  rig_.Pass(milliseconds(500));
  EXPECT_THAT(rig_.signals(rig_.process(1)), Not(IsEmpty()));
  EXPECT_EQ(rig_.started(), 3U);
  Die(1);
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.told(), Contains("w1#1 died").Times(1));
}

// Those that wait are known to the next head, and are not asked for twice.
TEST_F(RunWorkers, WhoWaitsForRoomGoesOnWaiting) {
  rig_.JoinNode();
  rig_.Submit(8);
  rig_.Pass(milliseconds(500));
  ASSERT_EQ(rig_.started(), 8U);
  SubmitOther(2);
  rig_.Pass(seconds(1));
  rig_.Restart();
  rig_.Pass(seconds(7));
  EXPECT_EQ(rig_.started(), 8U);
  rig_.JoinOther(4);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 10U);
}

TEST_F(RunWorkers, WhoWaitsAndIsNotNeededAnyMoreIsNotStarted) {
  rig_.JoinNode();
  rig_.Submit(8);
  rig_.Pass(milliseconds(500));
  for (size_t i = 0; i < 8; ++i) rig_.Greet(i);
  rig_.Say(kFrameRunCommand, "d", RunCommand{2, "j", RunVerb::kResize, 8, "", 0});
  ASSERT_EQ(rig_.reply_code(), 0);
  SubmitOther(3);
  rig_.Pass(seconds(1));
  rig_.Say(kFrameRunCommand, "d", RunCommand{4, "k", RunVerb::kResize, 1, "", 0});
  ASSERT_EQ(rig_.reply_code(), 0);
  rig_.JoinOther(4);
  rig_.Pass(seconds(1));
  EXPECT_EQ(rig_.started(), 9U);
}

TEST_F(RunWorkers, NoActorOfARunIsLeftBehindInTheStore) {
  Start(0);
  EXPECT_THAT(rig_.Keys(), Contains("actor/run/j/w0/life"));
  for (const size_t i : {0, 1}) rig_.Say(kFrameWorkerResult, rig_.process(i), Returned(rig_, i));
  rig_.Pass(seconds(3));
  for (const size_t i : {0, 1}) Die(i);
  rig_.Pass(seconds(1));
  for (const std::string& key : rig_.Keys()) EXPECT_FALSE(key.starts_with("actor/")) << key;
}

TEST_F(RunWorkers, ASpareIsKeptFromTheFirstEpochToTheEnd) {
  rig_.JoinNode();
  rig_.Submit(2, 1, 1);
  for (const size_t i : {0, 1}) rig_.Greet(i);
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.spares(), IsEmpty()) << "the workers need the machine for themselves";
  rig_.FormGroup(2);
  Active();
  rig_.Pass(seconds(1));
  EXPECT_THAT(rig_.spares(), ElementsAre(1));
  rig_.Pass(seconds(12));
  EXPECT_THAT(rig_.spares(), SizeIs(3)) << "the word may be lost";
  EXPECT_THAT(rig_.spares(), Each(1));
  for (const size_t i : {0, 1}) rig_.Say(kFrameWorkerResult, rig_.process(i), Returned(rig_, i));
  rig_.Pass(seconds(3));
  EXPECT_EQ(rig_.spares().back(), 0U);
}

TEST_F(RunWorkers, AfterADeathASpareIsAskedForWhenTheNextLifeHasJoined) {
  Start(1);
  const size_t asked = rig_.spares().size();
  Die(1);
  rig_.Pass(seconds(4));
  ASSERT_EQ(rig_.started(), 3U);
  EXPECT_THAT(rig_.spares(), SizeIs(asked)) << "it still prepares";
}

}  // namespace
}  // namespace troupe::daemons::testing
