#include "runtime/timer_queue.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

class TimerQueueTest : public ::testing::Test {
 protected:
  TimerId At(int64_t ns, char name) {
    return queue_.Schedule(Time{ns}, [this, name] { ran_.push_back(name); });
  }
  TimerQueue queue_;
  std::string ran_;
};

TEST_F(TimerQueueTest, RunsWhatIsDueByTimeThenByOrderOfScheduling) {
  At(20, 'c');
  At(10, 'a');
  At(20, 'd');
  At(10, 'b');
  At(21, 'x');
  EXPECT_EQ(queue_.NextDue(), Time{10});
  EXPECT_EQ(queue_.RunDue(Time{20}), 4U);
  EXPECT_EQ(ran_, "abcd");
  EXPECT_EQ(queue_.NextDue(), Time{21});
  EXPECT_EQ(queue_.RunDue(Time{20}), 0U);
}

TEST_F(TimerQueueTest, AnEmptyQueueIsNeverDue) {
  EXPECT_EQ(queue_.NextDue(), Time::Never());
  EXPECT_EQ(queue_.RunDue(Time{100}), 0U);
}

TEST_F(TimerQueueTest, CancelTakesOneOutAndForgivesTheRest) {
  const TimerId a = At(10, 'a');
  const TimerId b = At(10, 'b');
  queue_.Cancel(a);
  queue_.Cancel(a);
  queue_.Cancel(kNoTimer);
  queue_.Cancel(12345);
  EXPECT_EQ(queue_.size(), 1U);
  EXPECT_EQ(queue_.RunDue(Time{10}), 1U);
  queue_.Cancel(b);
  EXPECT_EQ(ran_, "b");
  EXPECT_EQ(queue_.size(), 0U);
}

TEST_F(TimerQueueTest, IdsAreNeverReusedAndNeverNone) {
  const TimerId a = At(1, 'a');
  queue_.RunDue(Time{1});
  const TimerId b = At(2, 'b');
  EXPECT_NE(a, kNoTimer);
  EXPECT_NE(a, b);
  queue_.Cancel(a);  // Must not hit the newer one.
  EXPECT_EQ(queue_.RunDue(Time{2}), 1U);
}

TEST_F(TimerQueueTest, WhatIsScheduledWhileRunningWaitsForTheNextCall) {
  queue_.Schedule(Time{10}, [this] {
    ran_.push_back('a');
    At(1, 'z');
  });
  At(10, 'b');
  EXPECT_EQ(queue_.RunDue(Time{10}), 2U);
  EXPECT_EQ(ran_, "ab");
  EXPECT_EQ(queue_.RunDue(Time{10}), 1U);
  EXPECT_EQ(ran_, "abz");
}

TEST_F(TimerQueueTest, ATimerMayCancelAnotherThatIsDue) {
  TimerId second = kNoTimer;
  queue_.Schedule(Time{10}, [&] { queue_.Cancel(second); });
  second = At(10, 'x');
  At(10, 'b');
  EXPECT_EQ(queue_.RunDue(Time{10}), 2U);
  EXPECT_EQ(ran_, "b");
}

}  // namespace
}  // namespace troupe
