#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/actors/core/directory_rig.h"

namespace troupe::actors::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DirectoryTest, ALifeFromItsCreationToItsEnd) {
  const Result<ActorAddress> address = Create(Spec("a"));
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->incarnation, 1u);
  EXPECT_TRUE(address->placed);
  EXPECT_THAT(Done(), ElementsAre("keep all of a", "want a#1", "tell a"));
  EXPECT_EQ(State("a"), ActorState::kPending);
  Place("a");
  EXPECT_THAT(Done(), ElementsAre("keep a", "tell a"));
  EXPECT_EQ(State("a"), ActorState::kStarting);
  Ready("a");
  EXPECT_THAT(Done(), ElementsAre("keep a", "tell a"));
  EXPECT_EQ(directory_.Where("a").process.peer, "peer-a");
  EXPECT_EQ(directory_.next_wake(), Time::Never());
  ASSERT_TRUE(directory_.Kill(now_, "a", false, "enough", "", actions_).ok());
  EXPECT_THAT(Done(), ElementsAre("end pa1", "drop a#1", "keep a", "tell a", "forget a"));
  EXPECT_EQ(Reason("a"), "T a: enough");
  EXPECT_TRUE(directory_.Where("a").process.peer.empty());
  Tick(kDeadKept);
  EXPECT_EQ(directory_.Find("a"), nullptr);
  EXPECT_THAT(Done(), ElementsAre("forget a")) << "the store may have been away when it ended";
  EXPECT_EQ(State("a"), ActorState::kDead) << "nobody is told that it waits";
}

TEST_F(DirectoryTest, EachRequestTwiceIsOnce) {
  const ActorSpec spec = Spec("a", 5);
  ASSERT_TRUE(Create(spec).ok());
  (void)Done();
  EXPECT_TRUE(Create(spec).ok());
  EXPECT_THAT(Done(), IsEmpty());
  Place("a");
  (void)Done();
  Place("a");
  EXPECT_THAT(Done(), IsEmpty());
  Ready("a");
  (void)Done();
  Ready("a");
  EXPECT_THAT(Done(), IsEmpty());
  Die("a");
  (void)Done();
  Die("a");
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_EQ(directory_.Find("a")->life.restarts, 1);
  directory_.Exited(now_, "a", 2, kCrash, actions_);
  (void)Done();
  directory_.Exited(now_, "a", 2, kCrash, actions_);
  EXPECT_TRUE(directory_.Kill(now_, "a", false, "x", "", actions_).ok());
  EXPECT_TRUE(directory_.Kill(now_, "a", true, "x", "d/1", actions_).ok());
  directory_.OwnerGone(now_, "driver/d", "x", actions_);
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_TRUE(Create(spec).ok()) << "it has lived: it is not made again";
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(DirectoryTest, ARestartAskedForTwiceIsOneRestart) {
  Alive(Spec("a", -1));
  ASSERT_TRUE(directory_.Kill(now_, "a", true, "x", "driver#7", actions_).ok());
  EXPECT_THAT(Done(), ElementsAre("end pa1", "drop a#1", "keep a", "tell a"));
  Tick();
  Place("a", 2);
  Ready("a", 2);
  (void)Done();
  EXPECT_TRUE(directory_.Kill(now_, "a", true, "x", "driver#7", actions_).ok());
  EXPECT_THAT(Done(), IsEmpty()) << "its answer was lost";
  // Not even by a head that was restarted meanwhile.
  Directory next;
  next.Restore(now_, Spec("a", -1), directory_.Find("a")->life);
  EXPECT_TRUE(next.Kill(now_, "a", true, "x", "driver#7", actions_).ok());
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_TRUE(next.Kill(now_, "a", true, "x", "driver#8", actions_).ok());
  EXPECT_EQ(next.Find("a")->life.incarnation, 3u);
}

TEST_F(DirectoryTest, LateNewsOfAnotherIncarnationIsHarmless) {
  Alive(Spec("a", -1));
  Die("a");
  Tick();
  Place("a", 2);
  (void)Done();
  Place("a", 1);
  Ready("a", 1);
  Ready("a", 3);
  Die("a", 1);
  Die("a", 3);
  directory_.Exited(now_, "a", 1, kCrash, actions_);
  directory_.Unplaced(now_, "a", 1, kCrash, true, actions_);
  directory_.Lost(now_, "a", 1, kCrash, actions_);
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_EQ(State("a"), ActorState::kStarting);
  EXPECT_EQ(directory_.Find("a")->life.incarnation, 2u);
}

TEST_F(DirectoryTest, NewsOfUnknownActorsIsHarmless) {
  Place("x");
  Ready("x");
  Die("x");
  directory_.Exited(now_, "x", 1, kCrash, actions_);
  directory_.Unplaced(now_, "x", 1, kCrash, true, actions_);
  directory_.Drain(now_, "n", "notice", actions_);
  EXPECT_EQ(directory_.Kill(now_, "x", true, "", "", actions_).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(directory_.Kill(now_, "x", false, "", "", actions_).ok());
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_FALSE(Create(Spec("")).ok());
}

TEST_F(DirectoryTest, ItIsStartedAgainAsOftenAsItMay) {
  Alive(Spec("a", 2));
  for (uint64_t life = 2; life <= 3; ++life) {
    Die("a", life - 1);
    EXPECT_EQ(State("a"), ActorState::kRestarting);
    EXPECT_THAT(Reason("a"), HasSubstr("signal 9; it is being started again"));
    Tick(seconds(20));
    EXPECT_THAT(Done(), Contains("want a#" + std::to_string(life)));
    EXPECT_EQ(State("a"), ActorState::kPending);
    Place("a", life);
    Ready("a", life);
  }
  Die("a", 3);
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(DirectoryTest, TheBackOffDoublesUpToItsLimitAndBeginsAnewAfterAProvenLife) {
  ActorSpec spec = Spec("a", -1);
  spec.backoff_ms = 100;
  spec.backoff_max_ms = 500;
  Alive(spec);
  uint64_t life = 1;
  const auto wait = [&] {
    Die("a", life++);
    const Duration backoff = directory_.next_wake() - now_;
    Tick(backoff - nanoseconds(1));
    EXPECT_TRUE(backoff == Duration{} || State("a") == ActorState::kRestarting);
    Tick(nanoseconds(1));
    Place("a", life);
    Ready("a", life);
    return backoff;
  };
  EXPECT_EQ(wait(), Duration{}) << "at once";
  EXPECT_EQ(wait(), milliseconds(100));
  EXPECT_EQ(wait(), milliseconds(200));
  EXPECT_EQ(wait(), milliseconds(400));
  EXPECT_EQ(wait(), milliseconds(500));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(wait(), milliseconds(500));
  now_ = now_ + kProvenLife + nanoseconds(1);
  EXPECT_EQ(wait(), Duration{});
}

TEST_F(DirectoryTest, AConstructorThatNeverSucceededIsNotTriedAgain) {
  ASSERT_TRUE(Create(Spec("a", -1)).ok());
  Place("a");
  Die("a", 1, true);
  EXPECT_EQ(State("a"), ActorState::kDead);
  Alive(Spec("b", -1));
  Die("b");
  Tick();
  Place("b", 2);
  Die("b", 2, true);
  EXPECT_EQ(State("b"), ActorState::kRestarting) << "it has succeeded before";
}

TEST_F(DirectoryTest, WhoDoesNotStartInTimeIsEndedAsAfterACrash) {
  ActorSpec spec = Spec("a", 1);
  spec.start_timeout_s = 3;
  ASSERT_TRUE(Create(spec).ok());
  Place("a");
  EXPECT_EQ(directory_.next_wake(), now_ + seconds(3));
  Tick(seconds(3) - nanoseconds(1));
  (void)Done();
  Tick(nanoseconds(1));
  EXPECT_THAT(Done(), ElementsAre("end pa1", "drop a#1", "keep a", "tell a", "keep a", "tell a",
                                  "want a#2"));
  Place("a", 2);
  Tick(seconds(3));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(Reason("a"), HasSubstr("did not start within"));
}

TEST_F(DirectoryTest, TimesThatMakeNoSenseAreCutToOnesThatDo) {
  for (const double limit : {-1.0, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    Directory directory;
    ActorSpec spec = Spec("a", -1);
    spec.start_timeout_s = limit;
    spec.backoff_ms = spec.backoff_max_ms = ~uint64_t{0};
    ASSERT_TRUE(directory.Create(now_, spec, actions_).ok());
    directory.Placed(now_, "a", 1, "n", "p", actions_);
    EXPECT_GT(directory.next_wake(), now_);
    EXPECT_LT(directory.next_wake(), now_ + std::chrono::hours(24 * 366));
    for (uint64_t life = 1; life < 4; ++life) {
      directory.Died(now_, "a", life, kCrash, false, actions_);
      EXPECT_GE(directory.next_wake(), now_);
      EXPECT_LT(directory.next_wake(), now_ + std::chrono::hours(24 * 366));
      directory.Tick(directory.next_wake(), actions_);
      directory.Placed(now_, "a", life + 1, "n", "p", actions_);
    }
  }
}

TEST_F(DirectoryTest, AnOrderThatWasLostIsNoDeath) {
  ASSERT_TRUE(Create(Spec("a")).ok());
  Place("a");
  (void)Done();
  directory_.Lost(now_, "a", 1, kCrash, actions_);
  EXPECT_THAT(Done(), ElementsAre("drop a#1", "keep a", "tell a"));
  Tick();
  EXPECT_THAT(Done(), Contains("want a#2"));
  EXPECT_EQ(directory_.Find("a")->life.restarts, 0);
  Place("a", 2);
  Ready("a", 2);
  directory_.Lost(now_, "a", 2, kCrash, actions_);
  EXPECT_EQ(State("a"), ActorState::kAlive) << "it has been heard";
  Die("a", 2);
  EXPECT_EQ(State("a"), ActorState::kDead) << "none of its deaths was allowed";
}

TEST_F(DirectoryTest, WhoWaitsIsToldWhyWhenThatChanges) {
  ASSERT_TRUE(Create(Spec("a")).ok());
  (void)Done();
  const Error why{ErrorCode::kUnavailable, "no GPU is free"};
  directory_.Unplaced(now_, "a", 1, why, false, actions_);
  EXPECT_THAT(Done(), ElementsAre("tell a"));
  directory_.Unplaced(now_, "a", 1, why, false, actions_);
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_EQ(Reason("a"), "no GPU is free");
  directory_.Unplaced(now_, "a", 1, {ErrorCode::kResourceExhausted, "never"}, true, actions_);
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_EQ(directory_.Where("a").reason[0].code,
            static_cast<uint8_t>(ErrorCode::kResourceExhausted));
}

TEST_F(DirectoryTest, WhoHasAPlaceCannotBeRefusedOne) {
  Alive(Spec("a"));
  directory_.Unplaced(now_, "a", 1, kCrash, true, actions_);
  EXPECT_EQ(State("a"), ActorState::kAlive);
}

TEST_F(DirectoryTest, NoTwoLivingActorsHaveOneName) {
  ActorSpec first = Spec("a");
  first.name = "till";
  Alive(first);
  EXPECT_EQ(directory_.Named("till")->spec.actor, "a");
  ActorSpec second = Spec("b");
  second.name = "till";
  const Result<ActorAddress> taken = Create(second);
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(taken.error().message, HasSubstr("\"till\" is taken by T a"));
  second.get_if_exists = true;
  EXPECT_EQ(Create(second)->actor, "a");
  second.type = "U";
  EXPECT_EQ(Create(second).error().code, ErrorCode::kAlreadyExists) << "another type";
  EXPECT_EQ(directory_.Find("b"), nullptr);
  Die("a");
  EXPECT_EQ(directory_.Named("till"), nullptr);
  EXPECT_EQ(Create(second)->actor, "b") << "the name is free again";
  Tick(kDeadKept);
  EXPECT_EQ(directory_.Named("till")->spec.actor, "b");
  second.name = std::string(kActorNameBytesMax + 1, 'x');
  second.actor = "c";
  EXPECT_EQ(Create(second).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(DirectoryTest, ANameStaysWithAnActorThatRestarts) {
  ActorSpec spec = Spec("a", 1);
  spec.name = "till";
  Alive(spec);
  Die("a");
  EXPECT_EQ(directory_.Named("till")->spec.actor, "a");
}

TEST_F(DirectoryTest, WhatAnOwnerOwnsEndsWithItAndSoOn) {
  Alive(Spec("a", -1));
  Alive(Spec("b", -1, "actor/a"));
  Alive(Spec("c", -1, "actor/b"));
  Alive(Spec("d", -1, "driver/other"));
  ActorSpec detached = Spec("e", -1, "actor/b");
  detached.detached = true;
  Alive(detached);
  Alive(Spec("f", -1, "actor/e"));
  Die("a");
  EXPECT_EQ(State("b"), ActorState::kAlive) << "it restarts: it is not gone";
  directory_.OwnerGone(now_, "driver/d", "the driver has left", actions_);
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(State(id), ActorState::kDead) << id;
  for (const char* id : {"d", "e", "f"}) EXPECT_EQ(State(id), ActorState::kAlive) << id;
  EXPECT_THAT(Reason("a"), HasSubstr("the driver has left"));
  EXPECT_THAT(Reason("c"), HasSubstr("its owner b has ended"));
}

TEST_F(DirectoryTest, AChainOfOwnersMayBeLong) {
  Alive(Spec("0"));
  for (int i = 1; i < 200'000; ++i)
    ASSERT_TRUE(Create(Spec(std::to_string(i), 0, "actor/" + std::to_string(i - 1))).ok());
  Die("0");
  EXPECT_EQ(State("199999"), ActorState::kDead);
}

// A request that was on its way, or is repeated, when the owner ended.
TEST_F(DirectoryTest, AnActorWhoseOwnerIsGoneIsNotMade) {
  Alive(Spec("a"));
  Die("a");
  (void)Done();
  const Result<ActorAddress> late = Create(Spec("b", 0, "actor/a"));
  EXPECT_EQ(late.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(Create(Spec("b", 0, "actor/never-known")).error().code, ErrorCode::kPeerGone);
  EXPECT_THAT(Done(), IsEmpty());
  ActorSpec detached = Spec("c", 0, "actor/a");
  detached.detached = true;
  EXPECT_TRUE(Create(detached).ok());
}

TEST_F(DirectoryTest, ADrainMovesWhoCanBeStartedAgainWithoutCounting) {
  Alive(Spec("a", 1));
  Alive(Spec("b", 0));
  ASSERT_TRUE(Create(Spec("c", 1)).ok());
  Place("c", 1, "other");
  (void)Done();
  directory_.Drain(now_, "n", "notice", actions_);
  EXPECT_THAT(Done(), ElementsAre("end pa1", "drop a#1", "keep a", "tell a"));
  EXPECT_EQ(directory_.Find("a")->life.restarts, 0);
  EXPECT_EQ(State("b"), ActorState::kAlive) << "until the node goes";
  directory_.Drain(now_, "n", "notice", actions_);
  EXPECT_THAT(Done(), IsEmpty());
  EXPECT_EQ(directory_.next_wake(), now_) << "no back-off";
  Tick();
  Place("a", 2, "other");
  Ready("a", 2);
  Die("a", 2);
  EXPECT_EQ(State("a"), ActorState::kRestarting) << "the drain has not used its restart";
}

TEST_F(DirectoryTest, ARestartOfWhatHasNoProcessIsDone) {
  ASSERT_TRUE(Create(Spec("a")).ok());
  (void)Done();
  EXPECT_TRUE(directory_.Kill(now_, "a", true, "x", "d#1", actions_).ok());
  EXPECT_THAT(Done(), ElementsAre("keep a"));
  EXPECT_EQ(State("a"), ActorState::kPending);
  Place("a");
  EXPECT_TRUE(directory_.Kill(now_, "a", true, "x", "d#1", actions_).ok());
  EXPECT_EQ(State("a"), ActorState::kStarting) << "a repeat comes too late";
}

class RestoreTest : public DirectoryTest {
 protected:
  void Restore(const ActorSpec& spec, ActorState state, const std::string& process = "") {
    ActorLife life;
    life.state = state;
    life.incarnation = 4;
    life.process = process;
    life.node = process.empty() ? "" : "n";
    directory_.Restore(now_, spec, life);
  }
};

TEST_F(RestoreTest, ARestartGoesOn) {
  Restore(Spec("a", -1), ActorState::kRestarting);
  Tick();
  EXPECT_THAT(Done(), Contains("want a#4"));
}

TEST_F(RestoreTest, WhoNeverStartsIsNotWaitedForForEver) {
  Restore(Spec("a", 1), ActorState::kStarting, "p");
  EXPECT_EQ(directory_.next_wake(), now_ + seconds(60));
  Tick(seconds(60));
  EXPECT_THAT(Done(), Contains("end p"));
}

TEST_F(RestoreTest, NamesAndOwnersAreKnownAgain) {
  ActorSpec named = Spec("a");
  named.name = "till";
  Restore(named, ActorState::kAlive, "p");
  ActorSpec other = Spec("b");
  other.name = "till";
  EXPECT_EQ(Create(other).error().code, ErrorCode::kAlreadyExists);
  directory_.OwnerGone(now_, "driver/d", "gone", actions_);
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(RestoreTest, TheDeadStayDeadAndAreForgotten) {
  Restore(Spec("a", -1), ActorState::kDead);
  Die("a", 4);
  Ready("a", 4);
  EXPECT_EQ(State("a"), ActorState::kDead);
  Tick(kDeadKept);
  EXPECT_EQ(directory_.Find("a"), nullptr);
}

TEST_F(DirectoryTest, OneProgramIsKeptOnce) {
  ASSERT_TRUE(Create(Spec("a")).ok());
  ASSERT_TRUE(Create(Spec("b")).ok());
  EXPECT_EQ(directory_.Find("a")->program, directory_.Find("b")->program);
  EXPECT_THAT(directory_.Find("a")->program->argv, ElementsAre("/bin/p"));
}

TEST_F(DirectoryTest, WhatATaskMakesBelongsToTheOwnerOfItsProcess) {
  (void)Create(Tasks("pooled", "driver/d"));
  (void)Create(Tasks("nested", "actor/pooled"));
  (void)Create(Spec("made", 0, "actor/nested"));
  (void)Create(Spec("actor", 0, "driver/d"));
  (void)Create(Tasks("of-actor", "actor/actor"));
  (void)Create(Spec("made-there", 0, "actor/of-actor"));
  EXPECT_EQ(directory_.Find("made")->spec.owner, "driver/d");
  EXPECT_EQ(directory_.Find("nested")->spec.owner, "actor/pooled");
  EXPECT_EQ(directory_.Find("made-there")->spec.owner, "actor/actor");
  (void)directory_.Kill(now_, "pooled", false, "idle", "", actions_);
  EXPECT_TRUE(directory_.Find("nested")->dead());
  EXPECT_FALSE(directory_.Find("made")->dead());
  (void)directory_.Kill(now_, "actor", false, "killed", "", actions_);
  EXPECT_TRUE(directory_.Find("made-there")->dead());
  directory_.OwnerGone(now_, "driver/d", "gone", actions_);
  EXPECT_TRUE(directory_.Find("made")->dead());
}

// Or it ended before the word of what it had made came.
TEST_F(DirectoryTest, WhatATaskMakesOutlivesItsProcessAlsoWhenThatHasEnded) {
  (void)Create(Tasks("pooled", "driver/d"));
  (void)directory_.Kill(now_, "pooled", false, "idle", "", actions_);
  EXPECT_TRUE(Create(Spec("made", 0, "actor/pooled")).ok());
  EXPECT_EQ(directory_.Find("made")->spec.owner, "driver/d");
}

}  // namespace
}  // namespace troupe::actors::testing
