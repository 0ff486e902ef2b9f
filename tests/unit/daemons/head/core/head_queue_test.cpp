// HeadQueue: the order of steps, of those that wait for the store, of those that have a time.
#include "daemons/head/core/head_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace troupe::daemons {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Time kQueueNow{1'000'000'000};

class HeadQueueTest : public ::testing::Test {
 protected:
  static HeadStep Step(const std::string& name) { return step::DeathTold{{name}}; }
  static std::string NameOf(const HeadStep& step) {
    return std::get<step::DeathTold>(std::get<HeadTask>(step)).run;
  }
  // All that there is to take at this time.
  std::vector<std::string> Taken(Time now = kQueueNow) {
    std::vector<std::string> names;
    while (const std::optional<HeadStep> next = queue_.Take(now)) names.push_back(NameOf(*next));
    return names;
  }
  HeadQueue queue_;
};

TEST_F(HeadQueueTest, Hq1StepsAreTakenInTheirOrder) {
  queue_.Put(Step("a"));
  queue_.Put(Step("b"));
  ASSERT_EQ(NameOf(*queue_.Take(kQueueNow)), "a");
  EXPECT_EQ(queue_.now(), kQueueNow);
  queue_.Put(Step("of a"));  // What comes of one stands behind what was there.
  EXPECT_THAT(Taken(), ElementsAre("b", "of a"));
}

TEST_F(HeadQueueTest, Hq2WhatWaitsForTheStoreIsTakenUpLast) {
  queue_.PutWhenKept("d#1", Step("answer"));
  queue_.Put(Step("a"));
  EXPECT_THAT(Taken(), ElementsAre("a"));
  const std::optional<HeadQueue::Kept> kept = queue_.TakeWhenKept();
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->name, "d#1");
  EXPECT_EQ(NameOf(kept->step), "answer");
  EXPECT_FALSE(queue_.TakeWhenKept().has_value());
}

TEST_F(HeadQueueTest, Hq3WhatHasATimeIsNotTakenBefore) {
  EXPECT_EQ(queue_.NextAt(), Time::Never());
  queue_.PutAt(kQueueNow + seconds(2), Step("later"));
  queue_.PutAt(kQueueNow + seconds(1), Step("sooner"));
  queue_.PutAt(kQueueNow + seconds(1), Step("as soon"));
  EXPECT_EQ(queue_.NextAt(), kQueueNow + seconds(1));
  EXPECT_THAT(Taken(kQueueNow + milliseconds(999)), IsEmpty());
  queue_.Put(Step("now"));
  EXPECT_THAT(Taken(kQueueNow + seconds(1)), ElementsAre("now", "sooner", "as soon"));
  EXPECT_THAT(Taken(kQueueNow + seconds(3)), ElementsAre("later"));
  EXPECT_EQ(queue_.NextAt(), Time::Never());
}

TEST_F(HeadQueueTest, WordsForTheLogAreSteps) {
  queue_.Warn("node ", 3, " is gone");
  const auto log = std::get<step::Log>(std::get<HeadEffect>(*queue_.Take(kQueueNow)));
  EXPECT_TRUE(log.warning);
  EXPECT_EQ(log.text, "node 3 is gone");
}

}  // namespace
}  // namespace troupe::daemons
