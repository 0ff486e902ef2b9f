// Actors that nobody refers to any more, in the directory; and who holds them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/core/actor_holders.h"
#include "actors/core/directory.h"

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Time kMade{1'000'000'000};
const Error kCrash{ErrorCode::kPeerGone, "killed by signal 9"};

class UnheldActorsTest : public ::testing::Test {
 protected:
  static ActorSpec Spec(const std::string& id, const std::string& name = "") {
    ActorSpec spec;
    spec.actor = id;
    spec.name = name;
    spec.type = "T";
    spec.owner = "driver/d";
    spec.max_restarts = -1;
    return spec;
  }
  void Create(const ActorSpec& spec) { ASSERT_TRUE(directory_.Create(kMade, spec, actions_).ok()); }
  void Place(const std::string& id) { directory_.Placed(kMade, id, 1, "n", "p" + id, actions_); }
  void Ready(const std::string& id) {
    directory_.Ready(kMade, id, 1, {"peer", "ipc://x", ""}, actions_);
  }
  void Unheld(const std::string& id) { directory_.Unheld(kMade, id, actions_); }
  std::vector<std::string> Asked() {
    std::vector<std::string> asked;
    for (const DirectoryAction& action : std::exchange(actions_, {})) {
      if (const auto* ask = std::get_if<AskToLeave>(&action)) asked.push_back(ask->actor);
    }
    return asked;
  }
  [[nodiscard]] ActorState State(const std::string& id) const { return directory_.Where(id).state; }

  Directory directory_;
  DirectoryActions actions_;
};

TEST_F(UnheldActorsTest, OneWithoutAProcessEndsAtOnce) {
  Create(Spec("a"));
  Unheld("a");
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_THAT(FromChain(directory_.Where("a").reason).message, HasSubstr("nobody refers to it"));
  Unheld("a");
  Unheld("unknown");
}

TEST_F(UnheldActorsTest, OneThatIsMadeIsAskedToLeaveUntilItHas) {
  Create(Spec("a"));
  Place("a");
  Ready("a");
  Unheld("a");
  EXPECT_THAT(Asked(), ElementsAre("a"));
  Unheld("a");
  directory_.Tick(kMade + kLeaveRepeat - milliseconds(1), actions_);
  EXPECT_THAT(Asked(), IsEmpty());
  directory_.Tick(kMade + kLeaveRepeat, actions_);
  EXPECT_THAT(Asked(), ElementsAre("a"));
  directory_.Exited(kMade, "a", 1, kCrash, actions_);
  directory_.Tick(kMade + 3 * kLeaveRepeat, actions_);
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(UnheldActorsTest, OneThatIsBeingMadeIsAskedWhenItIs) {
  Create(Spec("a"));
  Place("a");
  Unheld("a");
  EXPECT_THAT(Asked(), IsEmpty());
  EXPECT_EQ(State("a"), ActorState::kStarting);
  Ready("a");
  EXPECT_THAT(Asked(), ElementsAre("a"));
}

TEST_F(UnheldActorsTest, OneIsNotStartedAgain) {
  Create(Spec("a"));
  Place("a");
  Ready("a");
  Unheld("a");
  EXPECT_TRUE(directory_.Find("a")->in_last_life());
  directory_.Died(kMade, "a", 1, kCrash, false, actions_);
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(UnheldActorsTest, OneIsNotStartedAgainWhenItsNodeIsDrained) {
  Create(Spec("a"));
  Place("a");
  Ready("a");
  Unheld("a");
  directory_.Drain(kMade, "n", "notice", actions_);
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(UnheldActorsTest, OneGoesOnWhenSomebodyRefersToItAfterAll) {
  Create(Spec("a", "name"));
  Place("a");
  Ready("a");
  Unheld("a");
  EXPECT_EQ(directory_.Named("name"), nullptr);
  directory_.Held("a", actions_);
  EXPECT_EQ(directory_.Named("name"), directory_.Find("a"));
  (void)Asked();
  directory_.Tick(kMade + 3 * kLeaveRepeat, actions_);
  EXPECT_THAT(Asked(), IsEmpty());
  directory_.Died(kMade, "a", 1, kCrash, false, actions_);
  EXPECT_EQ(State("a"), ActorState::kRestarting);
  directory_.Held("a", actions_);
  directory_.Held("unknown", actions_);
}

TEST_F(UnheldActorsTest, TheNameOfOneIsFreeAndStaysWithWhoTakesIt) {
  Create(Spec("a", "name"));
  Place("a");
  Ready("a");
  Unheld("a");
  Create(Spec("b", "name"));
  directory_.Held("a", actions_);
  EXPECT_EQ(directory_.Named("name"), directory_.Find("b"));
  directory_.Exited(kMade, "a", 1, kCrash, actions_);
  EXPECT_EQ(directory_.Named("name"), directory_.Find("b"));
}

TEST(ActorHoldersTest, IdsAndNumbers) {
  EXPECT_EQ(HandleOf("00000000000000ff"), 255U);
  EXPECT_EQ(ActorOfHandle(255), "00000000000000ff");
  for (const char* other : {"", "ff", "00000000000000FF", "000000000000000x", "00000000000000000"})
    EXPECT_EQ(HandleOf(other), std::nullopt) << other;
}

TEST(ActorHoldersTest, WhoIsNotCountedIsNotNoted) {
  ActorHolders holders;
  holders.OnNotes("p", {{1, 1, true}, {1, 2, false}});
  EXPECT_EQ(holders.holds(), 0U);
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
}

TEST(ActorHoldersTest, TheLastOfAllIsTold) {
  ActorHolders holders;
  holders.Made(1, "maker");
  holders.OnNotes("other", {{1, 1, true}});
  holders.OnNotes("maker", {{1, 1, false}});
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Made(1, "maker");  // A repeat that is late.
  holders.OnNotes("other", {{1, 2, false}});
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(1));
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.OnNotes("third", {{1, 1, true}});
  holders.OnNotes("third", {{1, 2, false}});
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(1));
  holders.Ended(1);
  EXPECT_EQ(holders.holds() + holders.counted(), 0U);
}

TEST(ActorHoldersTest, WhatTheDeadHaveHeldSettles) {
  ActorHolders holders;
  holders.Made(1, "maker");
  holders.Gone(kMade, "maker");
  holders.Tick(kMade + kRefSettle - milliseconds(1));
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Tick(kMade + kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(1));
  EXPECT_EQ(holders.holds(), 0U);
}

TEST(ActorHoldersTest, WhatAnActorHeldThatIsStartedAgainWaitsForIt) {
  ActorHolders holders;
  holders.Made(1, "p1");
  holders.Gone(kMade, "p1", "actor/a");
  holders.Tick(kMade + 10 * kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Back(kMade, "actor/a");
  holders.Gone(kMade, "p2", "actor/a");  // Before it has said what it found.
  holders.Tick(kMade + kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Back(kMade, "actor/a");
  holders.Tick(kMade + kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(1));
}

TEST(ActorHoldersTest, AnActorIsNotWaitedForForEver) {
  ActorHolders holders;
  holders.Made(1, "p1");
  holders.Gone(kMade, "p1", "actor/a");
  holders.Tick(kMade + kHeirsMost);
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Tick(kMade + kHeirsMost + kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(1));
}

TEST(ActorHoldersTest, ANewHeadWaitsForAllWhoMayHoldSomething) {
  ActorHolders holders;
  holders.Restored(1);
  holders.Restored(2);
  holders.Expect("p");
  holders.Expect("q");
  holders.Expect("r");
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.ExpectNoMore();
  holders.OnNotes("p", {{1, 5, true}});
  holders.Heard("p");
  holders.Heard("q");
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Gone(kMade, "r");  // What it had passed on may be on its way.
  holders.Tick(kMade);
  EXPECT_THAT(holders.TakeUnheld(), IsEmpty());
  holders.Tick(kMade + kRefSettle);
  EXPECT_THAT(holders.TakeUnheld(), ElementsAre(2));
}

}  // namespace
}  // namespace troupe::actors
