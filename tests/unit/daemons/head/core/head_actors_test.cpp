// The head and placed actors: places, requests, owners, state, nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/daemons/head/core/head_actors_rig.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(HeadActorsTest, AnActorIsPlacedMadeAndCanBeCalled) {
  NodeSays();
  Create(Spec("a"));
  EXPECT_EQ(Answers().at(0).address.actor, "a");
  ASSERT_THAT(started_, SizeIs(1));
  EXPECT_EQ(running_.at(started_[0]), "actor/a#1");
  Hello(started_[0], "");
  EXPECT_EQ(assigned_.at(started_[0]).blueprint, "blueprint of a");
  EXPECT_EQ(State("a"), ActorState::kStarting);
  Hello(started_[0], "actor/a#1");
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(200));
  EXPECT_EQ(State("a"), ActorState::kAlive) << "its place is confirmed";
  EXPECT_THAT(killed_, IsEmpty());
}

TEST_F(HeadActorsTest, TheLogOfAnActorIsAskedOfItsNode) {
  const auto ask = [this](const std::string& whose, const std::string& node = "") {
    Say(kFrameQuery, "driver", Query{replies_.size() + 1, QueryVerb::kLog, whose, node, 10});
  };
  actors::ActorSpec spec = Spec("a");
  spec.name = "named";
  NodeSays();
  const std::string process = Alive(spec);
  ask("named");
  ASSERT_THAT(read_, SizeIs(1));
  EXPECT_EQ(read_[0].log, "worker-" + process);
  EXPECT_EQ(read_[0].lines, 10U);
  Say(kFrameLogTail, "node-n", LogTail{read_[0].number, 0, "", "/logs/x", "hello\n"});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_THAT(replies_[0].json, HasSubstr(R"("text":"hello\n")"));
  Exit(process);  // The dead are asked for, too.
  ask("a");
  ask("named");
  EXPECT_THAT(read_, SizeIs(2)) << "the second is a repeat of the first";
  Pass(kLogLimit + milliseconds(500));
  ASSERT_THAT(replies_, SizeIs(2));
  EXPECT_THAT(replies_[1].message, HasSubstr("did not answer"));
  node_speaks_ = false;
  Pass(seconds(40));
  for (const auto& [whose, node, why] :
       {std::tuple("named", "", "node n is dead"), std::tuple("node", "n", "node n is dead"),
        std::tuple("node", "m", "no node m"), std::tuple("other", "", "no actor other"),
        std::tuple("", "", "no actor ")}) {
    ask(whose, node);
    EXPECT_THAT(replies_.back().message, HasSubstr(why)) << whose;
  }
  EXPECT_THAT(replies_, SizeIs(7));
}

TEST_F(HeadActorsTest, AnOrderThatIsLostIsGivenAgainAndIsNoDeath) {
  NodeSays();
  lose_orders_ = true;
  Create(Spec("a", 0));
  Pass(milliseconds(300));
  lose_orders_ = false;
  Pass(seconds(2));
  ASSERT_THAT(started_, SizeIs(1));
  Start(started_[0]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, AProcessThatDiedBeforeItsFirstWordIsADeath) {
  NodeSays();
  Create(Spec("a", 0));
  NodeSays();  // It is listed.
  running_.clear();
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead) << dead_["a"];
}

TEST_F(HeadActorsTest, CallersAreToldOfALastDeathWithItsCause) {
  NodeSays();
  const std::string process = Alive(Spec("a"));
  Say(kFrameWorkerExited, "node-n", WorkerExited{process, false, "its process ended", 0, {}});
  NodeSays();
  EXPECT_EQ(State("a"), ActorState::kAlive) << "as far as anybody is told";
  Exit(process);
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(dead_["a"], HasSubstr("its process ended: killed by signal 9"));
}

TEST_F(HeadActorsTest, ALastDeathIsToldWithoutItsCauseIfThatDoesNotCome) {
  NodeSays();
  const std::string process = Alive(Spec("a"));
  const WorkerExited unexplained{process, false, "its process ended", 0, {}};
  Say(kFrameWorkerExited, "node-n", unexplained);
  Pass(kCauseGrace - milliseconds(300));
  Say(kFrameWorkerExited, "node-n", unexplained);
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(milliseconds(600));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(dead_["a"], HasSubstr("its process ended"));
}

TEST_F(HeadActorsTest, ACauseThatCameWhileTheHeadWasStoppedIsStillHeard) {
  NodeSays();
  const std::string process = Alive(Spec("a"));
  Say(kFrameWorkerExited, "node-n", WorkerExited{process, false, "its process ended", 0, {}});
  clock_.Advance(kCauseGrace + seconds(3));
  while (transport_.RunTimer(clock_.Now())) {  // They come before what waits in the sockets.
  }
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Exit(process);
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(dead_["a"], HasSubstr("its process ended: killed by signal 9"));
}

TEST_F(HeadActorsTest, ADeathThatIsNotTheLastIsActedOnAtOnce) {
  NodeSays();
  const std::string process = Alive(Spec("a", 1));
  Say(kFrameWorkerExited, "node-n", WorkerExited{process, false, "its process ended", 0, {}});
  EXPECT_EQ(Incarnation("a"), 2U);
}

TEST_F(HeadActorsTest, AProcessThatNeverSaysHelloIsEnded) {
  NodeSays();
  actors::ActorSpec spec = Spec("a", 1);
  spec.start_timeout_s = 5;
  Create(spec);
  Pass(seconds(4));
  EXPECT_THAT(killed_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(killed_, Contains(started_.at(0)));
  ASSERT_THAT(started_, SizeIs(2)) << "it may be started again";
  Pass(seconds(6));
  EXPECT_THAT(dead_["a"], HasSubstr("did not start within its time-out"));
}

TEST_F(HeadActorsTest, AConstructorThatFailsIsTheReason) {
  NodeSays();
  Create(Spec("a", 5));
  Hello(started_.at(0), "");
  const actors::ActorSaved failure{
      "", 0, actors::ToChain(Error{ErrorCode::kUserError, "start is negative"})};
  WorkerResult result;
  result.process = started_[0];
  result.assignment = "actor/a#1";
  result.payload = wire::Encode(actors::kFrameActorSaved, failure);
  Say(kFrameWorkerResult, started_[0], result);
  Say(kFrameWorkerResult, started_[0], result);
  EXPECT_THAT(dead_["a"], HasSubstr("start is negative"));
  EXPECT_THAT(started_, SizeIs(1));
}

TEST_F(HeadActorsTest, EachRequestTwiceIsOnce) {
  NodeSays();
  Create(Spec("a", -1), 1);
  Create(Spec("a", -1), 1);
  EXPECT_THAT(Answers(), SizeIs(2)) << "both are answered";
  ASSERT_THAT(started_, SizeIs(1));
  Start(started_[0]);
  Ask(actors::ActorVerb::kRestart, "a", 2);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(2));
  Start(started_[1]);
  Ask(actors::ActorVerb::kRestart, "a", 2);
  Pass(seconds(1));
  EXPECT_THAT(started_, SizeIs(2));
  Ask(actors::ActorVerb::kFailed, "a", 3, 2);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(3));
  Start(started_[2]);
  Ask(actors::ActorVerb::kFailed, "a", 3, 2);
  Ask(actors::ActorVerb::kExited, "a", 4, 2);
  Pass(seconds(1));
  EXPECT_EQ(State("a"), ActorState::kAlive) << "they are of another incarnation";
  for (int i = 0; i < 2; ++i) Ask(actors::ActorVerb::kKill, "a", 5);
  for (int i = 0; i < 2; ++i) Ask(actors::ActorVerb::kOwnerGone, "driver/d", 6);
  EXPECT_EQ(State("a"), ActorState::kDead);
  for (const actors::ActorAnswer& answer : Answers()) EXPECT_THAT(answer.error, IsEmpty());
}

TEST_F(HeadActorsTest, WhatCannotBeIsRefusedAtOnce) {
  NodeSays();
  actors::ActorSpec odd = Spec("a");
  odd.wish.resources = {{"CPU", -1}};
  Create(odd);
  EXPECT_EQ(actors::FromChain(Answers().at(0).error).code, ErrorCode::kInvalidArgument);
  actors::ActorSpec group = Spec("b");
  group.wish.group = "no such group";
  Create(group);
  Pass(seconds(1));
  EXPECT_THAT(started_, IsEmpty());
  EXPECT_THAT(dead_["b"], HasSubstr("no such group"));
}

// ---- owners ----

TEST_F(HeadActorsTest, ASilentDriverLosesWhatItHasNotDetached) {
  NodeSays();
  (void)Alive(Spec("a", -1));
  actors::ActorSpec detached = Spec("b", -1);
  detached.detached = true;
  (void)Alive(detached);
  driver_speaks_ = false;
  Pass(seconds(14));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_EQ(State("b"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, AnOwnerThatWaitsForRoomIsNotSilent) {
  cpus_ = 2;
  NodeSays();
  const std::string owner = Alive(Spec("a", -1));
  actors::ActorSpec owned = Spec("b", -1);
  owned.owner = "actor/a";
  (void)Alive(owned);
  Create(Spec("c"));  // Takes its place.
  Exit(owner);
  cpus_ = 2;
  Pass(seconds(40));
  EXPECT_EQ(State("b"), ActorState::kAlive);
  Ask(actors::ActorVerb::kKill, "a", 9);
  EXPECT_EQ(State("b"), ActorState::kDead);
}

// ---- state ----

TEST_F(HeadActorsTest, OnlyTheCurrentIncarnationMaySaveAndTheNextOneHasItsState) {
  NodeSays();
  const std::string first = Alive(Spec("a", -1));
  const actors::SaveActor save{"a", 1, 7, "seven"};
  Say(actors::kFrameSaveActor, first, save);
  Say(actors::kFrameSaveActor, first, save);
  EXPECT_THAT(saved_, SizeIs(2));
  for (const auto& answer : std::exchange(saved_, {})) EXPECT_THAT(answer.error, IsEmpty());
  Exit(first);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(2));
  Say(actors::kFrameSaveActor, first, actors::SaveActor{"a", 1, 8, "a zombie's"});
  EXPECT_EQ(actors::FromChain(saved_.at(0).error).code, ErrorCode::kFenced);
  Start(started_[1]);
  EXPECT_EQ(assigned_.at(started_[1]).saved, "seven");
  EXPECT_EQ(assigned_.at(started_[1]).incarnation, 2u);
  const std::string large(actors::kActorStateBytesMax + 1, 'x');
  Say(actors::kFrameSaveActor, started_[1], actors::SaveActor{"a", 2, 9, large});
  EXPECT_EQ(actors::FromChain(saved_.at(1).error).code, ErrorCode::kResourceExhausted);
}

// ---- nodes ----

TEST_F(HeadActorsTest, WhatANodeTakesWithItIsStartedAgainElsewhere) {
  NodeSays();
  (void)Alive(Spec("a", 1));
  node_speaks_ = false;
  Pass(seconds(40));  // All nodes are silent, which may be the head's own fault: that takes longer.
  EXPECT_EQ(State("a"), ActorState::kPending);
  EXPECT_EQ(Incarnation("a"), 2u);
}

TEST_F(HeadActorsTest, ADrainMovesWhoCanBeStartedAgainAndLeavesTheRest) {
  NodeSays();
  const std::string moves = Alive(Spec("a", 1));
  const std::string stays = Alive(Spec("b", 0));
  NodeSays("spot notice");
  Pass(seconds(1));
  EXPECT_THAT(killed_, ElementsAre(moves));
  EXPECT_EQ(State("b"), ActorState::kAlive);
  EXPECT_EQ(Incarnation("a"), 2u);
  const auto life =
      wire::Decode<actors::ActorLife>(actors::kActorRecord, **store_.Get("actor/a/life"));
  EXPECT_EQ(life->restarts, 0);
}

TEST_F(HeadActorsTest, TheNextLifeBeginsWhenTheProcessOfTheLastHasEnded) {
  NodeSays();
  const std::string first = Alive(Spec("a", -1));
  kills_work_ = false;
  Ask(actors::ActorVerb::kRestart, "a", 2);
  Pass(seconds(2));
  EXPECT_EQ(Incarnation("a"), 2u) << "it has its place";
  ASSERT_THAT(started_, SizeIs(1)) << "and waits";
  Exit(first);
  ASSERT_THAT(started_, SizeIs(2));
  Start(started_[1]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(60));
  EXPECT_THAT(started_, SizeIs(2));
}

TEST_F(HeadActorsTest, AProcessThatNothingCanKillDoesNotKeepItsActorAwayForEver) {
  NodeSays();
  (void)Alive(Spec("a", -1));
  kills_work_ = false;
  Ask(actors::ActorVerb::kRestart, "a", 2);
  Pass(seconds(29));
  EXPECT_THAT(started_, SizeIs(1));
  Pass(seconds(11));
  EXPECT_THAT(started_, SizeIs(2));
}

TEST_F(HeadActorsTest, AProcessThatDoesNotEndIsKilledAgain) {
  NodeSays();
  const std::string process = Alive(Spec("a"));
  kills_work_ = false;
  Ask(actors::ActorVerb::kKill, "a", 2);
  Pass(seconds(6));
  EXPECT_GE(killed_.size(), 3u);
  EXPECT_THAT(killed_, ::testing::Each(process));
}

}  // namespace
}  // namespace troupe::daemons::testing
