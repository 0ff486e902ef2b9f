// Which processes a node starts ahead: by the rules one at a time, then through random lives.
#include "daemons/node/core/spare_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SpareLimits kLimits{.limit = 3};
const SpareKind kPython{{"python", "--spare"}, {}};
const SpareKind kOther{{"python", "--spare"}, {{"PYTHONPATH", "/other"}}};

class SparePolicyTest : public ::testing::Test {
 protected:
  // All that is started until `span` has passed.
  std::vector<SpareKind> StartedIn(Duration span) {
    std::vector<SpareKind> started;
    for (const Time end = now_ + span; now_ < end; now_ = now_ + milliseconds(10)) {
      SparePolicy::Step step = policy_.Next(now_);
      ended_.insert(ended_.end(), step.end.begin(), step.end.end());
      if (!step.start) continue;
      started.push_back(step.start->second);
      last_ = step.start->first;
    }
    return started;
  }

  Time now_{nanoseconds(seconds(1000)).count()};
  SparePolicy policy_{kLimits};
  SparePolicy::Id last_ = 0;
  std::vector<SparePolicy::Id> ended_;
};

TEST_F(SparePolicyTest, WithoutAUseThereIsNone) {
  EXPECT_THAT(StartedIn(seconds(10)), IsEmpty());
  EXPECT_EQ(policy_.due(), Time::Never());
}

TEST_F(SparePolicyTest, TheFirstUseFillsUpOneAfterTheOther) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  EXPECT_EQ(policy_.due(), now_ + kLimits.settle);
  EXPECT_THAT(StartedIn(kLimits.settle), IsEmpty());
  EXPECT_THAT(StartedIn(milliseconds(10)), ElementsAre(kPython));
  EXPECT_THAT(StartedIn(kLimits.pace - milliseconds(10)), IsEmpty());
  EXPECT_THAT(StartedIn(seconds(10)), ElementsAre(kPython, kPython));
  EXPECT_EQ(policy_.due(), Time::Never());
}

TEST_F(SparePolicyTest, NoneIsStartedBeforeTheServerIsReady) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  policy_.ServerStarts(kPython);
  EXPECT_THAT(StartedIn(seconds(10)), IsEmpty());
  policy_.ServerReady(now_, kPython);
  EXPECT_EQ(policy_.due(), now_ + kLimits.settle);
  EXPECT_THAT(StartedIn(kLimits.settle), IsEmpty());
  EXPECT_THAT(StartedIn(seconds(1)), ElementsAre(kPython, kPython, kPython));
}

TEST_F(SparePolicyTest, AKindWhoseServerHasEndedHasNoneForAWhile) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  policy_.ServerStarts(kPython);
  EXPECT_TRUE(policy_.Forks(now_, kPython));
  policy_.ServerFailed(now_, kPython);
  EXPECT_FALSE(policy_.Forks(now_, kPython));
  EXPECT_TRUE(policy_.Forks(now_, kOther));
  EXPECT_THAT(StartedIn(kLimits.after_failure), IsEmpty());
  EXPECT_TRUE(policy_.Forks(now_, kPython));
  EXPECT_THAT(StartedIn(seconds(1)), ElementsAre(kPython, kPython, kPython));
}

// The server of a run that has needed none for a while is told to end, and just then the run needs
// one: that is no failure, after which there would be none for a minute.
TEST_F(SparePolicyTest, WhileTheServerOfAKindEndsNoneIsStartedAndThenAtOnce) {
  policy_.Keep(now_, kPython, 1);
  policy_.ServerEnds(kPython);
  now_ = now_ + seconds(5);
  EXPECT_FALSE(policy_.Next(now_).start);
  policy_.ServerGone(now_, kPython);
  EXPECT_EQ(policy_.due(), now_);
  EXPECT_TRUE(policy_.Next(now_).start);
}

TEST_F(SparePolicyTest, WhatCannotBeForkedIsStartedOneByOne) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  policy_.ServerStarts(kPython);
  policy_.ServerUnfit(now_, kPython);
  EXPECT_FALSE(policy_.Forks(now_ + seconds(100'000), kPython));
  EXPECT_THAT(StartedIn(kLimits.settle_alone), IsEmpty());
  EXPECT_THAT(StartedIn(milliseconds(10)), ElementsAre(kPython));
  EXPECT_THAT(StartedIn(kLimits.pace_alone - milliseconds(10)), IsEmpty());
  EXPECT_THAT(StartedIn(seconds(10)), ElementsAre(kPython, kPython));
}

TEST_F(SparePolicyTest, TheOldestIsTakenAndReplaced) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  (void)StartedIn(seconds(5));
  EXPECT_EQ(policy_.Take(now_, kPython), 1U);
  EXPECT_EQ(policy_.Take(now_, kPython), 2U);
  EXPECT_EQ(policy_.Take(now_, kOther), std::nullopt);
  EXPECT_THAT(StartedIn(seconds(5)), ElementsAre(kOther, kOther));
  EXPECT_EQ(policy_.Take(now_, kPython), 3U);
}

TEST_F(SparePolicyTest, AnotherKindMakesRoomButLeavesOne) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  (void)StartedIn(seconds(5));
  EXPECT_EQ(policy_.Take(now_, kOther), std::nullopt);
  (void)StartedIn(seconds(5));
  EXPECT_THAT(ended_, ElementsAre(1U, 2U));
  EXPECT_EQ(policy_.size(), 3U);
  EXPECT_EQ(policy_.Take(now_, kPython), 3U);
}

TEST_F(SparePolicyTest, AKindThatNobodyUsesAnyMoreGoes) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  (void)StartedIn(kLimits.kept - seconds(1));
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_THAT(StartedIn(seconds(2)), IsEmpty());
  EXPECT_THAT(ended_, ElementsAre(1U, 2U, 3U));
  EXPECT_EQ(policy_.size(), 0U);
}

TEST_F(SparePolicyTest, OneThatEndsByItselfIsNotReplacedAtOnce) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  EXPECT_THAT(StartedIn(kLimits.settle + milliseconds(10)), ElementsAre(kPython));
  EXPECT_TRUE(policy_.Failed(now_, last_));
  EXPECT_EQ(policy_.size(), 0U);
  EXPECT_THAT(StartedIn(kLimits.after_failure - milliseconds(10)), IsEmpty());
  EXPECT_THAT(StartedIn(seconds(5)), ElementsAre(kPython, kPython, kPython));
}

TEST_F(SparePolicyTest, ThatAKindFailsIsNewsOncePerTry) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  EXPECT_THAT(StartedIn(milliseconds(600)), ElementsAre(kPython, kPython, kPython));
  EXPECT_TRUE(policy_.Failed(now_, last_));
  EXPECT_FALSE(policy_.Failed(now_ + milliseconds(50), last_ - 1));
  EXPECT_FALSE(policy_.Failed(now_, last_)) << "it is gone already";
  EXPECT_THAT(StartedIn(kLimits.after_failure + seconds(1)), Not(IsEmpty()));
  EXPECT_TRUE(policy_.Failed(now_, last_));
}

TEST_F(SparePolicyTest, AsManyAreKeptAsAreAskedFor) {
  policy_.Keep(now_, kOther, 2);
  EXPECT_EQ(policy_.due(), now_);
  EXPECT_THAT(StartedIn(seconds(5)), ElementsAre(kOther, kOther));
  policy_.Keep(now_, kOther, 1);
  EXPECT_THAT(StartedIn(seconds(1)), IsEmpty());
  EXPECT_THAT(ended_, ElementsAre(1U));
  policy_.Keep(now_, kOther, 0);
  EXPECT_THAT(StartedIn(seconds(1)), IsEmpty());
  EXPECT_THAT(ended_, ElementsAre(1U, 2U));
}

// Who has asked may be gone.
TEST_F(SparePolicyTest, ThoseThatWereAskedForGoWhenNobodyAsksAnyMore) {
  policy_.Keep(now_, kOther, 1);
  EXPECT_THAT(StartedIn(kSparesKept - seconds(1)), ElementsAre(kOther));
  policy_.Keep(now_, kOther, 1);
  EXPECT_THAT(StartedIn(kSparesKept - seconds(1)), IsEmpty());
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_THAT(StartedIn(seconds(2)), IsEmpty());
  EXPECT_THAT(ended_, ElementsAre(1U));
  EXPECT_EQ(policy_.size(), 0U);
}

TEST_F(SparePolicyTest, OneThatIsTakenIsNotReplacedBeforeTheNextWord) {
  EXPECT_EQ(policy_.Take(now_, kOther, false), std::nullopt);
  EXPECT_THAT(StartedIn(seconds(1)), IsEmpty()) << "it speaks for no others";
  policy_.Keep(now_, kOther, 1);
  EXPECT_THAT(StartedIn(seconds(1)), ElementsAre(kOther));
  EXPECT_EQ(policy_.Take(now_, kOther, false), 1U);
  EXPECT_THAT(StartedIn(seconds(5)), IsEmpty());
  policy_.Keep(now_, kOther, 1);
  EXPECT_THAT(StartedIn(seconds(1)), ElementsAre(kOther));
}

TEST_F(SparePolicyTest, ThoseThatAreAskedForComeFirst) {
  EXPECT_EQ(policy_.Take(now_, kPython), std::nullopt);
  (void)StartedIn(seconds(5));
  policy_.Keep(now_, kOther, 2);
  EXPECT_THAT(StartedIn(seconds(5)), ElementsAre(kOther, kOther));
  EXPECT_EQ(policy_.size(), kLimits.limit);
}

TEST_F(SparePolicyTest, NoneAreAllowed) {
  SparePolicy none({.limit = 0});
  EXPECT_EQ(none.Take(now_, kPython), std::nullopt);
  EXPECT_EQ(none.Next(now_ + seconds(1)).start, std::nullopt);
  EXPECT_EQ(none.due(), Time::Never());
}

// SP-1 to SP-4, and that `due` is when something is to be done: never later than that.
TEST(SparePolicyWalk, KeepsItsInvariants) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const SpareLimits limits{.limit = random() % 5};
    SparePolicy policy(limits);
    std::map<SparePolicy::Id, SpareKind> alive;
    std::map<SpareKind, Time> failed;
    std::set<SparePolicy::Id> seen;
    Time now{nanoseconds(seconds(1000)).count()};
    Time last_take{};
    Time last_start{};
    for (int turn = 0; turn < 300; ++turn) {
      now = now + milliseconds(random() % (random() % 20 == 0 ? 200'000 : 150));
      SpareKind kind = kPython;
      kind.env["KIND"] = std::to_string(random() % 4);
      if (random() % 4 == 0) {
        if (const auto taken = policy.Take(now, kind, random() % 2 == 0)) {
          ASSERT_EQ(alive.at(*taken), kind);
          alive.erase(*taken);  // SP-2
        }
        last_take = now;
      } else if (random() % 6 == 0) {
        policy.Keep(now, kind, random() % 3);
      } else if (!alive.empty() && random() % 10 == 0) {
        const auto victim = std::next(alive.begin(), random() % alive.size());
        failed[victim->second] = now;
        (void)policy.Failed(now, victim->first);
        alive.erase(victim);
      } else {
        const SparePolicy::Step step = policy.Next(now);
        for (const SparePolicy::Id id : step.end) ASSERT_EQ(alive.erase(id), 1U);
        if (step.start) {
          ASSERT_TRUE(seen.insert(step.start->first).second);
          ASSERT_GE(now, last_take + limits.settle);  // SP-3
          ASSERT_GE(now, last_start + limits.pace);
          if (const auto since = failed.find(step.start->second); since != failed.end()) {
            ASSERT_GE(now, since->second + limits.after_failure);  // SP-4
          }
          alive.insert(*step.start);
          last_start = now;
        }
        ASSERT_LE(alive.size(), limits.limit) << "seed " << seed;  // SP-1
        ASSERT_EQ(policy.Next(now).start, std::nullopt);
        if (policy.due() == Time::Never()) continue;
        ASSERT_GT(policy.due(), now);
      }
      ASSERT_EQ(policy.size(), alive.size());
    }
  }
}

}  // namespace
}  // namespace troupe::daemons
