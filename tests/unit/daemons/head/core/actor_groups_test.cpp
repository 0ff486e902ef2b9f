// The groups of actors as a state machine: alone, and through random lives of their members.
#include "daemons/head/core/actor_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "actors/core/error_chain.h"

namespace troupe::daemons {
namespace {

using actors::ActorState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Does what the core wants, as far as it concerns actors.
class ActorGroupsTest : public ::testing::Test {
 protected:
  struct Life {
    ActorState state = ActorState::kPending;
    uint64_t incarnation = 1;
  };

  actors::ActorGroupSpec Spec(uint32_t min_size, uint32_t size, uint32_t max_size,
                              const std::string& id = "g") {
    actors::ActorGroupSpec spec;
    spec.group = id;
    spec.name = "name of " + id;
    spec.owner = "driver/1";
    spec.min_size = min_size;
    spec.size = size;
    spec.max_size = max_size;
    spec.member.type = "Trainer";
    return spec;
  }
  Status Make(uint32_t min_size, uint32_t size, uint32_t max_size) {
    return Did([&](ActorGroupActions& actions) {
      return groups_.Create(now_, Spec(min_size, size, max_size), actions);
    });
  }
  template <class F>
  Status Did(F change) {
    ActorGroupActions actions;
    Status status = change(actions);
    Do(actions);
    return status;
  }
  void Do(const ActorGroupActions& actions) {
    for (const ActorGroupAction& action : actions) {
      if (const auto* start = std::get_if<StartMembers>(&action)) {
        at_least_ = start->at_least;
        for (const actors::ActorSpec& spec : start->actors) {
          EXPECT_TRUE(lives_.try_emplace(spec.actor).second) << spec.actor;
          EXPECT_TRUE(spec.detached);
          EXPECT_EQ(spec.owner, "driver/1");
        }
      } else if (const auto* end = std::get_if<EndMember>(&action)) {
        ended_.push_back(end->actor);
        ending_.insert(end->actor);
      } else if (const auto* drain = std::get_if<DrainMember>(&action)) {
        drained_.push_back(drain->actor);
      } else if (const auto* dismiss = std::get_if<DismissMembers>(&action)) {
        dismissed_.insert(dismissed_.end(), dismiss->actors.begin(), dismiss->actors.end());
      } else if (std::get_if<ReadmitMembers>(&action) != nullptr) {
        dismissed_.clear();
      } else if (std::get_if<KeepGroup>(&action) != nullptr) {
        kept_ = groups_.RecordOf("g");
      } else if (std::get_if<ForgetGroup>(&action) != nullptr) {
        kept_.reset();
      }
    }
  }
  void Say(const std::string& actor, ActorState state, const std::string& why = "") {
    Life& life = lives_.at(actor);
    life.state = state;
    actors::ActorLocation where{actor, state, life.incarnation, {}, {}};
    if (!why.empty()) where.reason = actors::ToChain(Error{ErrorCode::kPeerGone, why});
    (void)Did([&](ActorGroupActions& actions) {
      groups_.OnActor(now_, where, actions);
      return Status::Ok();
    });
  }
  void AllAlive() {
    for (const ActorGroupStatus::Member& m : Look().members) Say(m.actor, ActorState::kAlive);
  }
  void Die(const std::string& actor) {
    ++lives_.at(actor).incarnation;
    Say(actor, ActorState::kRestarting, "killed by signal 9");
  }
  ActorGroupStatus Look(uint64_t since = 0) { return groups_.StatusOf("g", since).value(); }
  std::vector<std::string> Events(uint64_t since = 0) {
    std::vector<std::string> texts;
    for (const GroupEvent& event : Look(since).events) {
      texts.push_back(GroupEventKindName(event.kind) +
                      (event.member < 0 ? "" : " " + std::to_string(event.member)));
    }
    return texts;
  }
  std::vector<uint32_t> Numbers(bool draining) {
    std::vector<uint32_t> numbers;
    for (const ActorGroupStatus::Member& m : Look().members)
      if ((m.state == GroupMemberState::kDraining) == draining) numbers.push_back(m.number);
    return numbers;
  }
  Status Resize(uint32_t size) {
    return Did([&](ActorGroupActions& a) { return groups_.Resize(now_, "g", size, a); });
  }
  Status Drain(uint32_t member, Duration limit = seconds(10)) {
    return Did(
        [&](ActorGroupActions& a) { return groups_.Drain(now_, "g", member, "notice", limit, a); });
  }
  void Pass(Duration time) {
    now_ = now_ + time;
    (void)Did([&](ActorGroupActions& actions) {
      groups_.Tick(now_, actions);
      return Status::Ok();
    });
  }

  Time now_{std::chrono::nanoseconds(seconds(100)).count()};
  ActorGroups groups_;
  std::map<std::string, Life> lives_;
  std::vector<std::string> ended_, drained_, dismissed_;
  std::set<std::string> ending_;
  size_t at_least_ = 0;
  std::optional<ActorGroupRecord> kept_;
};

TEST_F(ActorGroupsTest, MembersAreWantedTogether) {
  ASSERT_TRUE(Make(2, 3, 5).ok());
  EXPECT_THAT(lives_, SizeIs(3));
  EXPECT_EQ(at_least_, 2U);
  EXPECT_THAT(Events(), ElementsAre("added 0", "added 1", "added 2"));
  AllAlive();
  EXPECT_THAT(Events(3), ElementsAre("alive 0", "alive 1", "alive 2"));
  ASSERT_TRUE(Make(2, 3, 5).ok());  // A repeat.
  EXPECT_THAT(lives_, SizeIs(3));
}

TEST_F(ActorGroupsTest, WhatCannotBeIsRefused) {
  for (const auto& [least, start, most] :
       std::vector<std::array<uint32_t, 3>>{{0, 1, 1}, {2, 1, 2}, {1, 3, 2}, {1, 65, 65}})
    EXPECT_EQ(Make(least, start, most).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(Make(1, 1, 1).ok());
  actors::ActorGroupSpec other = Spec(1, 1, 1, "other");
  other.name = "name of g";
  ActorGroupActions actions;
  EXPECT_EQ(groups_.Create(now_, other, actions).error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(groups_.Resize(now_, "nothing", 1, actions).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(Resize(2).error().message, HasSubstr("it has 1 to 1 members"));
  EXPECT_EQ(Drain(7).error().code, ErrorCode::kNotFound);
}

TEST_F(ActorGroupsTest, WhoDiesIsTheSameMemberWhenItIsBack) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  AllAlive();
  const uint64_t since = Look().sequence;
  Die("g-1");
  EXPECT_EQ(Look().members[1].state, GroupMemberState::kRestarting);
  EXPECT_THAT(Look().reason, HasSubstr("killed by signal 9"));
  Say("g-1", ActorState::kAlive);
  EXPECT_THAT(Events(since), ElementsAre("died 1", "below_min", "alive 1"));
  EXPECT_EQ(Look().members[1].incarnation, 2U);
  EXPECT_EQ(Look().reason, "");
  Pass(seconds(10'000));
  EXPECT_FALSE(Look().ended);
}

TEST_F(ActorGroupsTest, WhoLeavesIsFollowedByAnother) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0).ok());
  ASSERT_TRUE(Drain(0).ok());
  EXPECT_THAT(drained_, ElementsAre("g-0"));
  EXPECT_THAT(Numbers(true), ElementsAre(0));
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));  // At once.
  EXPECT_THAT(ended_, IsEmpty());
  Say("g-0", ActorState::kDead, "it was asked to leave");
  EXPECT_EQ(Events().back(), "left 0");
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  EXPECT_TRUE(Drain(0).ok());  // It has.
}

TEST_F(ActorGroupsTest, WhoDoesNotLeaveIsEnded) {
  ASSERT_TRUE(Make(1, 1, 1).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0, seconds(10)).ok());
  Pass(seconds(9));
  EXPECT_THAT(ended_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(ended_, ElementsAre("g-0"));
}

TEST_F(ActorGroupsTest, WhoDiesWhileItLeavesDoesNotComeBack) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  AllAlive();
  ASSERT_TRUE(Drain(1).ok());
  Die("g-1");
  EXPECT_THAT(ended_, ElementsAre("g-1"));
}

TEST_F(ActorGroupsTest, TheYoungestLeaveWhenItShrinks) {
  ASSERT_TRUE(Make(1, 4, 4).ok());
  for (const char* actor : {"g-0", "g-2", "g-3"}) Say(actor, ActorState::kAlive);
  ASSERT_TRUE(Resize(2).ok());
  EXPECT_THAT(ended_, ElementsAre("g-1"));  // It does nothing yet.
  EXPECT_THAT(drained_, ElementsAre("g-3"));
  EXPECT_THAT(Numbers(false), ElementsAre(0, 2));
  ASSERT_TRUE(Resize(4).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(0, 2, 4, 5));
}

TEST_F(ActorGroupsTest, WhoHasEndedForGoodIsLost) {
  ASSERT_TRUE(Make(2, 3, 3).ok());
  AllAlive();
  Say("g-0", ActorState::kDead, "it has exited");
  EXPECT_EQ(Events().back(), "lost 0");
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  ASSERT_TRUE(Resize(3).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2, 3));
}

TEST_F(ActorGroupsTest, ItEndsWithTooFewMembers) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  AllAlive();
  Say("g-0", ActorState::kDead, "it raised in its constructor");
  EXPECT_TRUE(Look().ended);
  EXPECT_THAT(Look().reason, HasSubstr("it raised in its constructor"));
  EXPECT_THAT(ended_, ElementsAre("g-1"));
  EXPECT_FALSE(kept_);
  EXPECT_EQ(Resize(2).error().code, ErrorCode::kPeerGone);
  Pass(actors::kDeadKept + seconds(2));
  EXPECT_EQ(groups_.StatusOf("g", 0).error().code, ErrorCode::kNotFound);
}

TEST_F(ActorGroupsTest, ItEndsWhenItIsTooSmallForTooLong) {
  ASSERT_TRUE(Make(2, 2, 2).ok());
  Pass(seconds(10'000));
  EXPECT_FALSE(Look().ended);  // It waits for room as long as it takes.
  AllAlive();
  Die("g-1");
  Pass(seconds(599));
  EXPECT_FALSE(Look().ended);
  Pass(seconds(2));
  EXPECT_THAT(Look().reason, HasSubstr("1 of at least 2 members are alive"));
  EXPECT_TRUE(Look().ended);
}

TEST_F(ActorGroupsTest, NobodyWaitsForThoseThatHaveReturned) {
  ASSERT_TRUE(Make(1, 3, 3).ok());
  AllAlive();
  const auto begin = [&] {
    (void)Did([&](ActorGroupActions& actions) {
      groups_.RunBegins("g", actions);
      return Status::Ok();
    });
  };
  begin();
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
  groups_.Returned(now_, "g", 1);
  Pass(kReturnGrace - seconds(1));
  groups_.Returned(now_, "g", 2);
  EXPECT_THAT(dismissed_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(dismissed_, ElementsAre("g-0"));
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, ElementsAre("g-0"));  // Once.
  begin();
  EXPECT_THAT(dismissed_, IsEmpty());
  for (const uint32_t member : {0U, 1U, 2U}) groups_.Returned(now_, "g", member);
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
  begin();
  ASSERT_TRUE(Drain(0, seconds(1'000)).ok());
  groups_.Returned(now_, "g", 0);  // As it was told to; the others go on.
  Pass(seconds(100));
  EXPECT_THAT(dismissed_, IsEmpty());
}

TEST_F(ActorGroupsTest, ItEndsWithItsOwner) {
  ASSERT_TRUE(Make(1, 2, 2).ok());
  (void)Did([&](ActorGroupActions& actions) {
    groups_.OwnerGone(now_, "driver/2", actions);
    return Status::Ok();
  });
  EXPECT_FALSE(Look().ended);
  (void)Did([&](ActorGroupActions& actions) {
    groups_.OwnerGone(now_, "driver/1", actions);
    return Status::Ok();
  });
  EXPECT_TRUE(Look().ended);
  EXPECT_THAT(ended_, SizeIs(2));
  EXPECT_TRUE(Make(1, 2, 2).ok());  // A late repeat makes no other one.
  EXPECT_THAT(lives_, SizeIs(2));
}

TEST_F(ActorGroupsTest, AnotherHeadGoesOn) {
  ASSERT_TRUE(Make(1, 2, 4).ok());
  AllAlive();
  ASSERT_TRUE(Drain(0).ok());
  const uint64_t since = Look().sequence;
  const ActorGroupRecord record = *kept_;
  groups_ = ActorGroups();
  ActorGroupActions actions;
  groups_.Restore(now_, record, actions);
  EXPECT_GT(Look().sequence, since);
  EXPECT_THAT(Numbers(true), ElementsAre(0));
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2));
  drained_.clear();
  Say("g-0", ActorState::kAlive);
  EXPECT_THAT(drained_, ElementsAre("g-0"));  // The word may have been lost with the other head.
  ASSERT_TRUE(Resize(4).ok());
  EXPECT_THAT(Numbers(false), ElementsAre(1, 2, 3, 4));
}

TEST_F(ActorGroupsTest, WhoIsLateIsToldWhatItHasMissed) {
  ASSERT_TRUE(Make(1, 1, 2).ok());
  AllAlive();
  for (size_t i = 0; i < kGroupEventsKept; ++i) {
    Die("g-0");
    Say("g-0", ActorState::kAlive);
  }
  const ActorGroupStatus all = Look(2);
  EXPECT_THAT(all.events, SizeIs(kGroupEventsKept));
  EXPECT_EQ(all.missed, all.sequence - 2 - kGroupEventsKept);
  EXPECT_EQ(Look(all.sequence).missed, 0U);
}

// Whatever its members do and users ask for, what the group promises holds after every event.
class RandomLives : public ActorGroupsTest, public ::testing::WithParamInterface<int> {
 protected:
  void Check() {
    const ActorGroupStatus status = Look();
    std::set<uint32_t> numbers;
    uint32_t staying = 0;
    for (const ActorGroupStatus::Member& m : status.members) {
      EXPECT_TRUE(numbers.insert(m.number).second);
      staying += m.state != GroupMemberState::kDraining ? 1 : 0;
      EXPECT_EQ(groups_.MemberOf(m.actor)->second, m.number);
    }
    EXPECT_LE(staying, status.max_size);  // AG-1
    if (status.ended) {
      EXPECT_THAT(status.members, IsEmpty());
      EXPECT_NE(status.reason, "");
    } else {
      EXPECT_GE(status.members.size(), status.min_size);  // AG-4
    }
    for (const auto& [actor, life] : lives_) {  // AG-3
      const bool member = groups_.MemberOf(actor).has_value();
      const bool dead = life.state == ActorState::kDead;
      EXPECT_TRUE(member || dead || ending_.contains(actor)) << actor;
    }
  }
};

TEST_P(RandomLives, KeepWhatIsPromised) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  const auto pick = [&](size_t n) { return random() % n; };
  ASSERT_TRUE(Make(2, 3, 6).ok());
  for (int i = 0; i < 300 && !Look().ended; ++i) {
    std::vector<std::string> living;
    for (const auto& [actor, life] : lives_)
      if (life.state != ActorState::kDead) living.push_back(actor);
    const std::string actor = living.empty() ? "" : living[pick(living.size())];
    switch (pick(9)) {
      case 0:
      case 1:
      case 2:
        if (!actor.empty()) Say(actor, ActorState::kAlive);
        break;
      case 3:
        if (!actor.empty()) Die(actor);
        break;
      case 4:  // What was to end has ended; others only now and then.
        for (const std::string& one : living)
          if (ending_.contains(one)) Say(one, ActorState::kDead, "ended");
        break;
      case 5:
        if (!actor.empty() && pick(10) == 0) Say(actor, ActorState::kDead, "exited");
        break;
      case 6:
        EXPECT_TRUE(Resize(static_cast<uint32_t>(2 + pick(5))).ok());
        break;
      case 7:
        (void)Drain(static_cast<uint32_t>(pick(20)), seconds(5));
        break;
      default:
        Pass(seconds(static_cast<int64_t>(pick(4))));
    }
    Check();
    if (pick(20) == 0 && kept_ && !Look().ended) {  // Another head, which is told of all of them.
      const ActorGroupRecord record = *kept_;
      groups_ = ActorGroups();
      ActorGroupActions actions;
      groups_.Restore(now_, record, actions);
      Do(actions);
      for (const auto& [id, life] : std::map<std::string, Life>(lives_)) Say(id, life.state);
      Check();
    }
  }
  if (Look().ended) return;
  // AG-5: who is to leave does, in time.
  Pass(kDrainLimit + seconds(1));
  for (const ActorGroupStatus::Member& m : Look().members) {
    if (m.state == GroupMemberState::kDraining) {
      EXPECT_TRUE(ending_.contains(m.actor)) << m.actor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLives, ::testing::Range(0, 100));

}  // namespace
}  // namespace troupe::daemons
