// ActorWatch and HeadClient against each other: whatever is lost, doubled or late, each follower
// ends up with the true state of every actor that it follows.
#include "daemons/head/core/actor_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "daemons/client/head_client.h"
#include "runtime/loopback_transport.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using actors::ActorLocation;
using actors::ActorState;
using actors::FollowActors;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr Time kNow{1'000'000'000};

class ActorWatchTest : public ::testing::Test {
 protected:
  struct Told {
    std::string to;
    std::vector<std::string> actors;
    uint64_t before = 0;
    uint64_t revision = 0;
    uint64_t version = 0;
  };
  // What was told since the last time.
  std::vector<Told> TakeTold() { return std::exchange(told_, {}); }
  Told Follow(uint64_t version, std::vector<std::string> add, uint64_t revision = 0,
              bool whole = false, std::vector<std::string> drop = {}) {
    feed_.OnFollow(now_, "f",
                   {"", "log", revision, version, whole, std::move(add), std::move(drop)});
    const std::vector<Told> told = TakeTold();
    return told.empty() ? Told{} : told.back();
  }

  Time now_ = kNow;
  std::vector<Told> told_;
  ActorWatch feed_{"log",
                   [](const std::string& id) {
                     return ActorLocation{id, {}, 1, {}, {}};
                   },
                   [this](const std::string& to, const actors::ActorStates& states) {
                     Told one{to, {}, states.before, states.revision, states.version};
                     for (const ActorLocation& w : states.actors) one.actors.push_back(w.actor);
                     told_.push_back(one);
                   }};
};

TEST_F(ActorWatchTest, WhatIsFollowedIsToldAtOnceAndAtEveryChange) {
  EXPECT_THAT(Follow(1, {"a", "b"}).actors, ElementsAre("a", "b"));
  feed_.Changed("a");
  feed_.Changed("other");
  const auto told = TakeTold();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].actors, ElementsAre("a"));
  EXPECT_LT(told[0].before, told[0].revision);
}

TEST_F(ActorWatchTest, WhoHasMissedAChangeIsToldIt) {
  const uint64_t stands = Follow(1, {"a", "b", "c"}).revision;
  feed_.Changed("a");
  feed_.Changed("b");
  (void)TakeTold();  // Lost.
  const Told again = Follow(1, {}, stands);
  EXPECT_EQ(again.before, stands);
  EXPECT_THAT(again.actors, ElementsAre("a", "b"));
  EXPECT_THAT(Follow(1, {}, again.revision).actors, IsEmpty());
}

TEST_F(ActorWatchTest, TheFirstWordOnAnActorIsToldAgainIfItWasLost) {
  feed_.Changed("b");
  const uint64_t stands = Follow(1, {"a"}).revision;
  (void)Follow(2, {"b"}, stands);  // The answer is lost; b does not change any more.
  EXPECT_THAT(Follow(2, {}, stands).actors, ElementsAre("b"));
}

TEST_F(ActorWatchTest, AChangeOfTheListThatDoesNotFollowIsLeftAside) {
  EXPECT_EQ(Follow(1, {"a"}).version, 1u);
  EXPECT_EQ(Follow(3, {"c"}).version, 1u) << "2 was lost";
  feed_.Changed("c");
  EXPECT_THAT(TakeTold(), IsEmpty());
  const Told whole = Follow(4, {"b", "c"}, 0, true);
  EXPECT_EQ(whole.version, 4u);
  EXPECT_THAT(whole.actors, UnorderedElementsAre("b", "c"));
  feed_.Changed("a");
  EXPECT_THAT(TakeTold(), IsEmpty()) << "a is not on it any more";
  EXPECT_EQ(Follow(5, {}, whole.revision, false, {"c"}).version, 5u);
  feed_.Changed("c");
  EXPECT_THAT(TakeTold(), IsEmpty());
}

TEST_F(ActorWatchTest, WhoHasAnotherHeadsRevisionsIsToldAll) {
  (void)Follow(1, {"a", "b"});
  feed_.OnFollow(now_, "f", {"", "another log", 1000, 1, false, {}, {}});
  const auto told = TakeTold();
  EXPECT_THAT(told.at(0).actors, ElementsAre("a", "b"));
  EXPECT_EQ(told.at(0).before, 0u);
}

TEST_F(ActorWatchTest, WhoIsSilentForLongIsForgotten) {
  (void)Follow(1, {"a"});
  now_ = now_ + kFollowerIdle;
  EXPECT_THAT(feed_.Forget(now_ - nanoseconds(1)), IsEmpty());
  EXPECT_TRUE(feed_.Knows("f"));
  EXPECT_THAT(feed_.Forget(now_), ElementsAre("f"));
  EXPECT_FALSE(feed_.Knows("f"));
  feed_.Changed("a");
  EXPECT_THAT(TakeTold(), IsEmpty());
  EXPECT_EQ(Follow(1, {}).version, 0u) << "so that it sends its list";
}

TEST_F(ActorWatchTest, FollowedActorsAreFoundByPrefix) {
  (void)Follow(1, {"process/x", "a", "process/y"});
  EXPECT_THAT(feed_.Followed("process/"), UnorderedElementsAre("process/x", "process/y"));
  feed_.Drop("f");
  feed_.Drop("f");
  EXPECT_EQ(feed_.followers(), 0u);
}

// ---- the two of them ----

// An actor system that only records what it is told.
class Follower {
 public:
  Follower(LoopbackNetwork* network, const std::string& name)
      : transport_(network->MakeTransport(name)),
        link_(std::make_shared<HeadClient>(
            &transport_->loop(),
            [this](std::string frame) { return transport_->Send("head", std::move(frame)); }, "")) {
    link_->SetTold([this](const ActorLocation& w) { seen[w.actor] = w; });
    transport_->SetHandler(
        [this](const std::string&, const std::string& frame) { (void)link_->OnFrame(frame); });
    link_->Start();
  }
  void Follow(const std::string& actor) {
    follows.insert(actor);
    seen.erase(actor);
    link_->Follow(actor);
  }
  void Unfollow(const std::string& actor) {
    follows.erase(actor);
    link_->Unfollow(actor);
  }

  std::set<std::string> follows;
  std::map<std::string, ActorLocation> seen;

 private:
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<HeadClient> link_;
};

class LossyFeed {
 public:
  explicit LossyFeed(uint64_t seed) : network_(seed), random_(seed) {
    Restart();
    for (int i = 0; i < 3; ++i)
      followers_.push_back(std::make_unique<Follower>(&network_, "f" + std::to_string(i)));
  }
  // A head that knows nothing of who follows.
  void Restart() {
    head_.reset();
    feed_.reset();
    head_ = network_.MakeTransport("head");
    feed_ = std::make_unique<ActorWatch>(
        "log" + std::to_string(heads_++),
        [this](const std::string& id) {
          const uint64_t state = truth_[id];
          return ActorLocation{id, static_cast<ActorState>(state % 4), state, {}, {}};
        },
        [this](const std::string& to, const actors::ActorStates& states) {
          (void)head_->Send(to, wire::Encode(actors::kFrameActorStates, states));
        });
    head_->SetHandler([this](const std::string& from, const std::string& frame) {
      const auto follow = wire::Decode<FollowActors>(actors::kFrameFollowActors, frame);
      ASSERT_TRUE(follow.ok());
      feed_->OnFollow(network_.Now(), from, *follow);
    });
  }
  void Change(const std::string& id) {
    ++truth_[id];
    feed_->Changed(id);
  }
  std::string Actor() { return "a" + std::to_string(random_() % 20); }
  void Event() {
    Follower& follower = *followers_[random_() % followers_.size()];
    const std::string actor = Actor();
    const uint64_t what = random_() % 100;
    if (what < 50) Change(actor);
    if (what >= 50 && what < 75 && !follower.follows.contains(actor)) follower.Follow(actor);
    if (what >= 75 && what < 90 && follower.follows.contains(actor)) follower.Unfollow(actor);
    if (what == 90) Restart();
    if (what == 91) (void)feed_->Forget(network_.Now());
    network_.RunFor(milliseconds(static_cast<int64_t>(random_() % 100)));
  }
  void RunFor(Duration d) { network_.RunFor(d); }
  void Heal() {
    network_.SetFaults({});
    network_.RunFor(seconds(5));
  }
  void SetFaults(LoopbackFaults faults) { network_.SetFaults(faults); }
  // Empty if all is well.
  std::string Wrong() {
    for (const auto& follower : followers_) {
      for (const std::string& actor : follower->follows) {
        const auto seen = follower->seen.find(actor);
        if (seen == follower->seen.end()) return actor + " was never told";
        if (seen->second.incarnation != truth_[actor])
          return actor + " is " + std::to_string(truth_[actor]) + ", told " +
                 std::to_string(seen->second.incarnation);
      }
    }
    return "";
  }
  std::vector<std::unique_ptr<Follower>>& followers() { return followers_; }

 private:
  LoopbackNetwork network_;
  std::mt19937_64 random_;
  std::map<std::string, uint64_t> truth_;
  std::unique_ptr<Transport> head_;
  std::unique_ptr<ActorWatch> feed_;
  std::vector<std::unique_ptr<Follower>> followers_;
  int heads_ = 0;
};

TEST(ActorFeedAndLinkTest, EveryFollowerEndsUpWithTheTruth) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    LossyFeed feed(seed);
    LoopbackFaults faults;
    faults.loss = static_cast<double>(seed % 5) / 8;
    faults.duplicate = static_cast<double>(seed % 3) / 6;
    if (seed % 2 == 0) faults.delay_max = milliseconds(400);
    feed.SetFaults(faults);
    for (int i = 0; i < 100; ++i) feed.Event();
    feed.Heal();
    ASSERT_EQ(feed.Wrong(), "") << "seed " << seed;
  }
}

// What a reordered frame says may be older than what is known.
TEST(ActorFeedAndLinkTest, AnOldStateNeverReplacesANewerOne) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    LossyFeed feed(seed);
    Follower& follower = *feed.followers()[0];
    follower.Follow("a0");
    LoopbackFaults faults;
    faults.duplicate = 0.3;
    faults.delay_max = milliseconds(500);
    feed.SetFaults(faults);
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i) {
      if (i % 3 == 0) feed.Change("a0");
      feed.Event();
      const uint64_t seen =
          follower.follows.contains("a0") ? follower.seen["a0"].incarnation : last;
      ASSERT_GE(seen, last) << "seed " << seed;
      last = follower.follows.contains("a0") ? seen : 0;
    }
  }
}

TEST(ActorFeedAndLinkTest, AListOfManyPartsArrivesWhole) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    LossyFeed feed(seed);
    Follower& follower = *feed.followers()[0];
    for (size_t i = 0; i < 2 * actors::kFollowedPerFrame + 1; ++i)
      follower.Follow("m" + std::to_string(i));
    LoopbackFaults faults;
    faults.loss = 0.4;
    feed.SetFaults(faults);
    feed.Restart();  // The whole list is sent again, in parts, of which some are lost.
    feed.RunFor(seconds(3));
    feed.Heal();
    ASSERT_EQ(feed.Wrong(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace troupe::daemons
