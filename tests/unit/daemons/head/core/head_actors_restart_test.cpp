// Placed actors, their groups and links, when the head is restarted.
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

TEST_F(HeadActorsTest, ARestartedHeadKeepsActorsAndTheirRoom) {
  cpus_ = 1;
  NodeSays();
  const std::string process = Alive(Spec("a"));
  Create(Spec("b"));
  EXPECT_THAT(started_, SizeIs(1)) << "there is no room";
  Restart();
  NodeSays();
  Pass(seconds(20));
  EXPECT_THAT(killed_, IsEmpty());
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(started_, SizeIs(1)) << "its room is still taken";
  EXPECT_EQ(State("b"), ActorState::kPending);
  Exit(process);
  Pass(seconds(1));
  EXPECT_THAT(started_, SizeIs(2)) << "and is given back";
}

// What has ended holds its memory and its GPUs until it has been reaped.
TEST_F(HeadActorsTest, WhoIsNotReapedHasItsRoomAlsoAfterARestart) {
  cpus_ = 1;
  kills_work_ = false;
  NodeSays();
  const std::string process = Alive(Spec("a"));
  unreaped_.insert(process);
  Say(kFrameWorkerExited, "node-n", WorkerExited{process, false, "its process ended", 0, {}});
  Create(Spec("b"), 2);
  Pass(seconds(4));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(started_, SizeIs(1));
  Restart();
  NodeSays();
  Pass(seconds(10));
  EXPECT_THAT(started_, SizeIs(1)) << "its room is still taken";
  Exit(process);
  Pass(seconds(1));
  EXPECT_THAT(started_, SizeIs(2)) << "and is given back";
}

TEST_F(HeadActorsTest, HalfARecordIsRemoved) {
  NodeSays();
  (void)Alive(Spec("a"));
  ASSERT_TRUE(store_.Put("actor/b/spec", *store_.Get("actor/a/spec").value(), seconds(60)).ok());
  ASSERT_TRUE(store_.Put("actor/c/life", *store_.Get("actor/a/life").value(), seconds(60)).ok());
  Restart();
  std::vector<std::string> keys;
  const auto kept = store_.List("actor/");
  ASSERT_TRUE(kept.ok());
  for (const auto& [key, value] : *kept) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("actor/a/life", "actor/a/spec"));
}

TEST_F(HeadActorsTest, WhatWaitedIsPlacedAsSoonAsAllIsKnown) {
  cpus_ = 2;
  NodeSays();
  (void)Alive(Spec("a"));
  lose_orders_ = true;
  Restart();
  lose_orders_ = false;
  Create(Spec("b"));
  EXPECT_THAT(started_, SizeIs(1));
  NodeSays();
  EXPECT_THAT(started_, SizeIs(2)) << "no need to wait for the grace";
}

TEST_F(HeadActorsTest, WhoDiedWhileThereWasNoHeadIsStartedAgain) {
  NodeSays();
  const std::string process = Alive(Spec("a", 1));
  (void)Alive(Spec("b", 0));
  running_.clear();
  Restart();
  NodeSays();
  Pass(seconds(2));
  EXPECT_EQ(Incarnation("a"), 2u);
  EXPECT_EQ(State("b"), ActorState::kDead);
  EXPECT_THAT(started_, SizeIs(3));
}

TEST_F(HeadActorsTest, WhoseNodeDoesNotComeBackIsLostWhenTheGraceIsOver) {
  NodeSays();
  (void)Alive(Spec("a", 0));
  node_speaks_ = false;
  Restart();
  NodeHello other;
  other.node = "m";
  other.incarnation = 1;
  Say(kFrameNodeHello, "node-m", other);
  Pass(seconds(4));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead);
}

// Then it may be the head that is cut off.
TEST_F(HeadActorsTest, WhileNoNodeIsHeardNobodyIsGivenUpForLonger) {
  NodeSays();
  (void)Alive(Spec("a", 0));
  (void)Alive(Spec("b", 0));
  node_speaks_ = false;
  Restart();
  Pass(seconds(30));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  // Those that come back are waited for once more.
  NodeHello other;
  other.node = "m";
  other.incarnation = 1;
  Say(kFrameNodeHello, "node-m", other);
  EXPECT_EQ(State("a"), ActorState::kAlive);
  node_speaks_ = true;
  NodeSays();
  Pass(seconds(5));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(killed_, IsEmpty());
}

TEST_F(HeadActorsTest, IfNoNodeIsEverHeardAllAreGivenUpInTheEnd) {
  NodeSays();
  (void)Alive(Spec("a", 0));
  node_speaks_ = false;
  Restart();
  Pass(seconds(40));
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(HeadActorsTest, AnActorThatBecameReadyMeanwhileIsFound) {
  NodeSays();
  Create(Spec("a"));
  Hello(started_.at(0), "");
  Restart();
  NodeSays();
  Hello(started_[0], "actor/a#1");
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(killed_, IsEmpty());
}

// It does not know yet that it will be an actor, so only its node can say so.
TEST_F(HeadActorsTest, AProcessThatSpeaksBeforeItsNodeIsItsActorsStill) {
  NodeSays();
  Create(Spec("a"));
  Restart();
  Hello(started_.at(0), "");
  NodeSays();
  Pass(seconds(10));
  EXPECT_THAT(killed_, IsEmpty());
  Start(started_[0]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, WhoEndsUnheardAfterARestartIsMissed) {
  NodeSays();
  const std::string process = Alive(Spec("a", 1));
  Restart();
  NodeSays();
  Pass(seconds(1));
  ASSERT_EQ(Incarnation("a"), 1u);
  running_.erase(process);  // The word of its end was lost.
  Pass(seconds(1));
  EXPECT_EQ(Incarnation("a"), 2u);
}

// The head dies between its record of an order and the order.
TEST_F(HeadActorsTest, AnOrderThatWasLostWithItsHeadIsGivenAnew) {
  NodeSays();
  lose_orders_ = true;
  Create(Spec("a", 0));
  ASSERT_EQ(State("a"), ActorState::kStarting);
  lose_orders_ = false;
  Restart();
  NodeSays();
  EXPECT_THAT(started_, IsEmpty()) << "the order may still arrive before our first answer does";
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(1)) << "and it needs no other life";
  Start(started_[0]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, AnOrderOfTheHeadBeforeThatArrivesLateIsTheOnlyOne) {
  NodeSays();
  Create(Spec("a", 0));
  ASSERT_THAT(started_, SizeIs(1));
  const auto running = std::exchange(running_, {});
  Restart();
  NodeSays();
  running_ = running;  // It was in the node's queue.
  Pass(seconds(10));
  Start(started_[0]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(started_, SizeIs(1));
  EXPECT_THAT(killed_, IsEmpty());
}

TEST_F(HeadActorsTest, WhoEndedAtItsStartWhileThereWasNoHeadIsNotMadeTwice) {
  NodeSays();
  Create(Spec("a", 0));
  ASSERT_THAT(started_, SizeIs(1));
  running_.clear();
  ended_ = started_;
  Restart();
  NodeSays();
  Pass(seconds(10));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(started_, SizeIs(1));
}

TEST_F(HeadActorsTest, WhoStartedOnANodeThatWasItselfStartedAnewIsGone) {
  NodeSays();
  Create(Spec("a", 0));
  running_.clear();
  heard_ = {};
  Restart();
  NodeSays();
  Pass(seconds(10));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(started_, SizeIs(1));
}

// The head dies between its order and its record of it.
TEST_F(HeadActorsTest, AProcessThatWasOrderedButNotRecordedIsTakenOver) {
  Create(Spec("a"));
  const std::string pending = **store_.Get("actor/a/life");
  NodeSays();
  ASSERT_THAT(started_, SizeIs(1));
  ASSERT_TRUE(store_.Put("actor/a/life", pending, seconds(1000)).ok());
  Restart();
  NodeSays();
  Pass(seconds(1));
  EXPECT_THAT(killed_, IsEmpty());
  Start(started_[0]);
  Pass(seconds(10));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(started_, SizeIs(1));
}

TEST_F(HeadActorsTest, ARestartOfTheHeadLeavesItsGpusToWhoHasThem) {
  NodeSays();
  actors::ActorSpec spec = Spec("a");
  spec.wish.resources = {{"GPU", 1}};
  const std::string first = Alive(spec);
  spec.actor = "b";
  const std::string second = Alive(spec);
  ASSERT_NE(first, second);
  ASSERT_NE(rooms_.at(first).devices, rooms_.at(second).devices);
  Exit(first, 0);
  Restart();
  Pass(seconds(3));
  EXPECT_EQ(State("b"), ActorState::kAlive);
  EXPECT_THAT(killed_, IsEmpty());
  spec.actor = "c";
  const std::string third = Alive(spec);
  EXPECT_EQ(rooms_.at(third).devices, rooms_.at(first).devices) << "not the one of b";
}

// ---- placement groups ----

TEST_F(HeadActorsTest, ActorsLiveInBundlesAlsoOverARestart) {
  NodeSays();
  actors::GroupRequest create{
      1, actors::PlacementGroupVerb::kCreate, {}, {{{{"CPU", 2}}, {}}, {{{"CPU", 2}}, {}}}, {}};
  create.spec.group = "pg-1";
  create.spec.owner = "driver/d";
  Say(actors::kFrameGroupRequest, "driver", create);
  EXPECT_TRUE(Answers().at(0).error.empty());
  actors::ActorSpec spec = Spec("a", 1);
  spec.wish.group = "pg-1";
  spec.wish.bundle = 1;
  spec.wish.resources = {{"CPU", 2}};
  const std::string process = Alive(spec);
  EXPECT_EQ(rooms_.at(process).bundle, 1);
  spec.actor = "b";
  Create(spec, 2);
  Pass(milliseconds(300));
  EXPECT_EQ(State("b"), ActorState::kPending) << "the bundle is full";
  Restart();
  Pass(seconds(3));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_EQ(State("b"), ActorState::kPending);
  EXPECT_THAT(killed_, IsEmpty());
  Create(spec, 2);  // A repeat, which the driver follows to the new head.
  // It goes with all that is in it.
  actors::GroupRequest remove{3, actors::PlacementGroupVerb::kRemove, create.spec, {}, {}};
  Say(actors::kFrameGroupRequest, "driver", remove);
  Pass(seconds(1));
  EXPECT_THAT(killed_, Contains(process));
  EXPECT_EQ(State("a"), ActorState::kDead) << dead_["a"];
  EXPECT_EQ(State("b"), ActorState::kDead) << dead_["b"];
  EXPECT_THAT(dead_["b"], HasSubstr("placement group"));
}

TEST_F(HeadActorsTest, AGroupGoesWithTheActorThatMadeIt) {
  NodeSays();
  (void)Alive(Spec("a"));
  actors::GroupRequest create{1, actors::PlacementGroupVerb::kCreate, {}, {{{{"CPU", 7}}, {}}}, {}};
  create.spec.group = "pg-1";
  create.spec.owner = "actor/a";
  Say(actors::kFrameGroupRequest, "driver", create);
  actors::ActorSpec large = Spec("b");
  large.wish.resources = {{"CPU", 7}};
  Create(large, 2);
  Pass(milliseconds(300));
  EXPECT_EQ(State("b"), ActorState::kPending);
  Ask(actors::ActorVerb::kKill, "a", 3);
  Pass(seconds(1));
  EXPECT_EQ(State("b"), ActorState::kStarting) << "the room of the group is free";
}

// ---- links ----

TEST_F(HeadActorsTest, LinkedActorsEndTogetherAlsoAfterARestart) {
  NodeSays();
  const auto link = [this](actors::ActorVerb verb, const std::string& one,
                           const std::string& other) {
    Answers();
    Say(actors::kFrameActorRequest, "driver", actors::ActorRequest{9, verb, one, 0, other});
    return Answers().at(0).error;
  };
  for (const char* id : {"a", "b", "c", "d"}) (void)Alive(Spec(id));
  EXPECT_TRUE(link(actors::ActorVerb::kLink, "a", "b").empty());
  EXPECT_TRUE(link(actors::ActorVerb::kLink, "b", "c").empty());
  EXPECT_TRUE(link(actors::ActorVerb::kLink, "c", "d").empty());
  EXPECT_TRUE(link(actors::ActorVerb::kUnlink, "d", "c").empty());
  EXPECT_EQ(actors::FromChain(link(actors::ActorVerb::kLink, "a", "a")).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(actors::FromChain(link(actors::ActorVerb::kLink, "a", "nobody")).code,
            ErrorCode::kPeerGone);
  Restart();
  Pass(seconds(1));
  Ask(actors::ActorVerb::kKill, "c", 10);
  Pass(milliseconds(200));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_EQ(State("b"), ActorState::kDead);
  EXPECT_EQ(State("d"), ActorState::kAlive);
}

}  // namespace
}  // namespace troupe::daemons::testing
