// The head and who has handles of actors whose handles are counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemons/head/core/head_actors_rig.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kOne = "00000000000000a1";
constexpr uint64_t kOneNumber = 0xa1;
constexpr const char* kTwo = "00000000000000a2";
constexpr uint64_t kTwoNumber = 0xa2;

class HeadHandlesTest : public HeadActorsTest {
 protected:
  HeadHandlesTest() {
    on_sent_ = [this](const std::string& to, const std::string& frame) {
      if (*wire::PeekType(frame) != actors::kFrameLeaveActor) return;
      const auto leave = *wire::Decode<actors::LeaveActor>(actors::kFrameLeaveActor, frame);
      EXPECT_TRUE(leave.unheld && running_.contains(to));
      left_.push_back(leave.actor);
      heard_of_ = leave.heard;
    };
  }
  static actors::ActorSpec Counted(const std::string& id, int32_t max_restarts = 0) {
    actors::ActorSpec spec = Spec(id, max_restarts);
    spec.counted = true;
    return spec;
  }
  void Hold(const std::string& from, uint64_t actor, uint64_t version, bool held,
            const std::string& owner = "") {
    Say(actors::kFrameHoldActors, from,
        actors::HoldActors{900 + version, owner, {{actor, version, held}}});
  }
  // As a process that knows this head, and has told it of all its handles.
  void Told(const std::string& from, const std::string& owner, bool told = true) {
    actors::FollowActors follow{owner, "", 0, 0, false, {}, {}, told};
    std::string log;
    const auto before = std::exchange(on_sent_, [&](const std::string&, const std::string& frame) {
      if (*wire::PeekType(frame) == actors::kFrameActorStates)
        log = wire::Decode<actors::ActorStates>(actors::kFrameActorStates, frame)->log;
    });
    Say(actors::kFrameFollowActors, from, follow);
    on_sent_ = before;
    follow.log = log;
    Say(actors::kFrameFollowActors, from, follow);
  }
  std::vector<std::string> Left() { return std::exchange(left_, {}); }

  uint64_t heard_of_ = 0;  // As the last order to leave says.

 private:
  std::vector<std::string> left_;
};

TEST_F(HeadHandlesTest, AnActorThatNobodyHoldsIsAskedToLeave) {
  NodeSays();
  const std::string process = Alive(Counted(kOne, -1));
  Pass(seconds(20));
  EXPECT_THAT(Left(), IsEmpty()) << "its maker holds it";
  Hold("other", kOneNumber, 1, true);
  Hold("driver", kOneNumber, 1, false);
  EXPECT_THAT(Left(), IsEmpty());
  Hold("other", kOneNumber, 2, false);
  EXPECT_THAT(Left(), ElementsAre(kOne));
  Exit(process, 0);
  EXPECT_EQ(State(kOne), ActorState::kDead) << "it is not started again";
}

TEST_F(HeadHandlesTest, OneWithoutAPlaceEnds) {
  Create(Counted(kOne));
  Hold("driver", kOneNumber, 1, false);
  EXPECT_EQ(State(kOne), ActorState::kDead);
  Pass(milliseconds(100));
  EXPECT_THAT(dead_[kOne], HasSubstr("nobody refers to it any more"));
}

TEST_F(HeadHandlesTest, WhoTakesItInTimeKeepsIt) {
  NodeSays();
  (void)Alive(Counted(kOne));
  Hold("driver", kOneNumber, 1, false);
  EXPECT_THAT(Left(), ElementsAre(kOne));
  Hold("itself", kOneNumber, 1, true);  // Its process has passed it on just then.
  Pass(seconds(10));
  EXPECT_THAT(Left(), IsEmpty());
  EXPECT_EQ(State(kOne), ActorState::kAlive);
}

TEST_F(HeadHandlesTest, AnOrderToLeaveSaysWhatTheHeadHasHeardOfItsProcess) {
  NodeSays();
  const std::string process = Alive(Counted(kOne));
  Hold(process, kOneNumber, 5, true);
  Hold("driver", kOneNumber, 1, false);
  EXPECT_THAT(Left(), IsEmpty());
  Hold(process, kOneNumber, 6, false);
  EXPECT_THAT(Left(), ElementsAre(kOne));
  EXPECT_EQ(heard_of_, 6U);
}

TEST_F(HeadHandlesTest, DetachedAndUncountedActorsLive) {
  NodeSays();
  actors::ActorSpec detached = Counted(kOne);
  detached.detached = true;
  (void)Alive(detached);
  (void)Alive(Spec(kTwo));
  Hold("driver", kOneNumber, 1, false);
  Hold("driver", kTwoNumber, 2, false);
  Pass(seconds(10));
  EXPECT_THAT(Left(), IsEmpty());
}

TEST_F(HeadHandlesTest, WhatAProcessHeldThatHasEndedSettlesFirst) {
  NodeSays();
  const std::string holder = Alive(Spec("holder"));
  (void)Alive(Counted(kOne));
  Hold(holder, kOneNumber, 1, true);
  Hold("driver", kOneNumber, 1, false);
  Exit(holder);
  Pass(actors::kRefSettle - milliseconds(500));
  EXPECT_THAT(Left(), IsEmpty());
  Hold(holder, kOneNumber, 2, true);  // Its last words.
  Pass(seconds(1));
  EXPECT_THAT(Left(), ElementsAre(kOne));
}

TEST_F(HeadHandlesTest, WhatAnActorHeldThatIsStartedAgainWaitsForItsNextLife) {
  NodeSays();
  const std::string holder = Alive(Spec("holder", 1));
  (void)Alive(Counted(kOne));
  Hold(holder, kOneNumber, 1, true);
  Hold("driver", kOneNumber, 1, false);
  Exit(holder);
  Pass(seconds(20));
  EXPECT_THAT(Left(), IsEmpty()) << "its next life is being made";
  Start(started_.back());
  Pass(actors::kRefSettle - milliseconds(500));
  EXPECT_THAT(Left(), IsEmpty());
  Pass(seconds(1));
  EXPECT_THAT(Left(), ElementsAre(kOne));
}

TEST_F(HeadHandlesTest, AnActorThatItsMakerDidNotLiveToHearOfEnds) {
  NodeSays();
  const std::string maker = Alive(Spec("maker"));
  Exit(maker);
  Say(actors::kFrameCreateActor, maker, actors::CreateActor{1, Counted(kOne)});
  Pass(milliseconds(200));
  Start(started_.back());
  EXPECT_EQ(State(kOne), ActorState::kAlive);
  Pass(actors::kRefSettle + milliseconds(500));
  EXPECT_THAT(Left(), ::testing::Contains(kOne));
}

TEST_F(HeadHandlesTest, ANewHeadWaitsForAllProcessesAndDrivers) {
  NodeSays();
  const std::string holder = Alive(Spec("holder"));
  const std::string one = Alive(Counted(kOne));
  const std::string two = Alive(Counted(kTwo));
  Restart();
  driver_speaks_ = false;
  NodeSays();
  Pass(seconds(12));
  EXPECT_THAT(Left(), IsEmpty()) << "nobody has said what it holds";
  Told(one, "");
  Told(two, "");
  Hold(holder, kOneNumber, 7, true);
  Told(holder, "actor/holder");
  Told("driver", "driver/d", false);
  Pass(seconds(1));
  EXPECT_THAT(Left(), IsEmpty()) << "the driver has not said all";
  Told("driver", "driver/d");
  Pass(seconds(1));
  EXPECT_THAT(Left(), ElementsAre(kTwo));
}

TEST_F(HeadHandlesTest, ANewHeadKnowsAgainWhoIsMakingAnActor) {
  NodeSays();
  const std::string one = Alive(Counted(kOne));
  Restart();
  driver_speaks_ = false;
  NodeSays();
  Told(one, "");
  Say(actors::kFrameCreateActor, "driver", actors::CreateActor{1, Counted(kOne)});
  Told("driver", "driver/d");
  Pass(seconds(12));
  EXPECT_THAT(Left(), IsEmpty()) << "the answer to its maker is on its way";
  Hold("driver", kOneNumber, 1, false);
  EXPECT_THAT(Left(), ElementsAre(kOne));
}

TEST_F(HeadHandlesTest, ADriverThatOnlyHoldsIsMissedWhenItIsLost) {
  NodeSays();
  (void)Alive(Counted(kOne));
  Hold("second", kOneNumber, 1, true, "driver/second");
  Hold("driver", kOneNumber, 1, false);
  Pass(seconds(5));
  EXPECT_THAT(Left(), IsEmpty());
  Pass(HeadOptions{}.driver_lease + actors::kRefSettle + seconds(2));
  EXPECT_THAT(Left(), ::testing::Contains(kOne));
}

}  // namespace
}  // namespace troupe::daemons::testing
