// Executor, FiberEvent and BlockingLane: how work is taken, ordered, waited for and refused.
#include "runtime/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <stdexcept>
#include <thread>

#include "runtime/blocking_lane.h"
#include "tests/support/soon.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using tests::kSoon;

TEST(ExecutorTest, FibersOfAThreadStartInOrderAndStayOnIt) {
  Executor executor({"test", 2, nullptr});
  EXPECT_EQ(executor.threads(), 2U);
  std::vector<int> order;
  std::set<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(executor
                    .Spawn(3,  // Modulo the number of threads.
                           [&, i] {
                             const auto before = std::this_thread::get_id();
                             order.push_back(i);
                             FiberEvent().WaitFor(milliseconds(1));
                             threads.insert(before);
                             threads.insert(std::this_thread::get_id());
                           })
                    .ok());
  }
  ASSERT_TRUE(executor.Stop(kSoon).ok());
  EXPECT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(threads.size(), 1U);
}

TEST(ExecutorTest, AWaitingFiberDoesNotHoldUpTheOthersOfItsThread) {
  Executor executor({"test", 1, nullptr});
  FiberEvent event;
  bool woken = false;
  ASSERT_TRUE(executor.Spawn(0, [&] { woken = event.WaitFor(kSoon); }).ok());
  ASSERT_TRUE(executor.Spawn(0, [&] { event.Set(); }).ok());
  ASSERT_TRUE(executor.Stop(kSoon).ok());
  EXPECT_TRUE(woken);
}

TEST(ExecutorTest, ManyFibersWaitForOneAnother) {
  constexpr size_t kFibers = 1000;
  Executor executor({"test", 2, nullptr});
  std::vector<FiberEvent> events(kFibers + 1);
  std::atomic<size_t> woken{0};
  for (size_t i = 0; i < kFibers; ++i) {
    ASSERT_TRUE(executor
                    .Spawn(i,
                           [&, i] {
                             if (events[i].WaitFor(kSoon)) ++woken;
                             events[i + 1].Set();
                           })
                    .ok());
  }
  events[0].Set();
  EXPECT_TRUE(events[kFibers].WaitFor(kSoon));  // A plain thread may wait, too.
  ASSERT_TRUE(executor.Stop(kSoon).ok());
  EXPECT_EQ(woken, kFibers);
}

// Two threads that fall asleep and wake each other all the time.
TEST(ExecutorTest, NoWakeUpFromAnotherThreadIsLost) {
  constexpr size_t kTurns = 20'000;
  Executor executor({"test", 2, nullptr});
  std::vector<FiberEvent> ping(kTurns);
  std::vector<FiberEvent> pong(kTurns);
  std::atomic<size_t> late{0};
  const auto play = [&](std::vector<FiberEvent>& mine, std::vector<FiberEvent>& other) {
    for (size_t i = 0; i < kTurns && late == 0; ++i) {
      other[i].Set();
      if (!mine[i].WaitFor(kSoon)) ++late;
    }
  };
  ASSERT_TRUE(executor.Spawn(0, [&] { play(ping, pong); }).ok());
  ASSERT_TRUE(executor.Spawn(1, [&] { play(pong, ping); }).ok());
  ASSERT_TRUE(executor.Stop(3 * kSoon).ok());
  EXPECT_EQ(late, 0U);
}

TEST(ExecutorTest, AnExceptionIsReportedAndTheThreadGoesOn) {
  std::vector<std::string> uncaught;
  Executor executor({"test", 1, [&](const std::string& what) { uncaught.push_back(what); }});
  ASSERT_TRUE(executor.Spawn(0, [] { throw std::runtime_error("boom"); }).ok());
  ASSERT_TRUE(executor.Spawn(0, [] { throw 7; }).ok());
  bool ran = false;
  ASSERT_TRUE(executor.Spawn(0, [&] { ran = true; }).ok());
  ASSERT_TRUE(executor.Stop(kSoon).ok());
  EXPECT_TRUE(ran);
  EXPECT_THAT(uncaught, ElementsAre("boom", HasSubstr("not a std::exception")));
}

TEST(ExecutorTest, StopRefusesWaitsAndSaysHowManyAreLeft) {
  Executor executor({"test", 1, nullptr});
  FiberEvent release;
  ASSERT_TRUE(executor.Spawn(0, [&] { release.WaitFor(kSoon); }).ok());
  const Status early = executor.Stop(milliseconds(1));
  EXPECT_EQ(early.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(early.error().message, HasSubstr("1 fibers still wait"));
  EXPECT_EQ(executor.Spawn(0, [] {}).error().code, ErrorCode::kCancelled);
  release.Set();
  EXPECT_TRUE(executor.Stop(kSoon).ok());
}

TEST(ExecutorTest, TheDestructorWaitsForWhatRuns) {
  std::atomic<bool> finished{false};
  {
    Executor executor({"test", 1, nullptr});
    ASSERT_TRUE(executor
                    .Spawn(0,
                           [&] {
                             FiberEvent().WaitFor(milliseconds(20));
                             finished = true;
                           })
                    .ok());
  }
  EXPECT_TRUE(finished);
}

TEST(FiberEventTest, IsOneShotAndHasALimit) {
  FiberEvent event;
  EXPECT_FALSE(event.IsSet());
  EXPECT_FALSE(event.WaitFor(milliseconds(1)));
  event.Set();
  event.Set();
  EXPECT_TRUE(event.IsSet());
  EXPECT_TRUE(event.WaitFor(Duration::zero()));
}

// The waiter may destroy the event as soon as it sees the flag, while Set still runs.
TEST(FiberEventTest, MayBeDestroyedByItsWaiter) {
  Executor executor({"test", 1, nullptr});
  for (int i = 0; i < 2000; ++i) {
    auto event = std::make_unique<FiberEvent>();
    ASSERT_TRUE(executor.Spawn(0, [e = event.get()] { e->Set(); }).ok());
    ASSERT_TRUE(event->WaitFor(kSoon));
  }
}

// A thread's fiber scheduler ends with the thread, while whoever woke it may still be waking it.
TEST(FiberEventTest, TheWaitingThreadMayEndAtOnce) {
  for (int i = 0; i < 1000; ++i) {
    FiberEvent event;
    std::thread waiter([&] { EXPECT_TRUE(event.WaitFor(kSoon)); });
    event.Set();
    waiter.join();
  }
}

TEST(ExecutorTest, ThreadsMayEndWhileTheyAreWoken) {
  for (int i = 0; i < 300; ++i) {
    Executor executor({"test", 2, nullptr});
    ASSERT_TRUE(executor.Spawn(0, [] {}).ok());
  }
}

// Its time is over just as it is set, by a thread that may find the fiber's thread ended.
TEST(FiberEventTest, MayBeSetWhileItsWaiterGivesUp) {
  std::atomic<int> set{0};
  std::atomic<int> late{0};
  for (int i = 0; i < 300; ++i) {
    std::vector<FiberEvent> events(10);
    std::thread setter([&] {
      for (FiberEvent& event : events) {
        std::this_thread::sleep_for(std::chrono::microseconds(i));
        event.Set();
      }
    });
    {
      Executor executor({"test", 2, nullptr});
      for (size_t k = 0; k < events.size(); ++k) {
        ASSERT_TRUE(
            executor
                .Spawn(k,
                       [&, k] {
                         (events[k].WaitFor(std::chrono::microseconds(150 * (k + 1))) ? set : late)
                             .fetch_add(1);
                       })
                .ok());
      }
    }
    setter.join();
  }
  EXPECT_EQ(set + late, 3000);
}

TEST(FiberEventTest, WakesEveryWaiterOnThreadsAndFibers) {
  Executor executor({"test", 1, nullptr});
  FiberEvent event;
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { woken += event.WaitFor(kSoon) ? 1 : 0; });
    ASSERT_TRUE(executor.Spawn(0, [&] { woken += event.WaitFor(kSoon) ? 1 : 0; }).ok());
  }
  event.Set();
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(executor.Stop(kSoon).ok());
  EXPECT_EQ(woken, 8);
}

TEST(BlockingLaneTest, RunsInOrderOnOneThreadAndFinishesWhatIsQueued) {
  std::vector<int> order;
  std::set<std::thread::id> threads;
  {
    BlockingLane lane("lane");
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(lane.Post([&, i] {
                        order.push_back(i);
                        threads.insert(std::this_thread::get_id());
                      })
                      .ok());
    }
  }
  EXPECT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
}

TEST(BlockingLaneTest, StopDropsWhatHasNotStartedAndRefusesMore) {
  BlockingLane lane("lane");
  std::promise<void> started;
  std::promise<void> release;
  std::atomic<bool> finished{false};
  std::atomic<bool> later{false};
  ASSERT_TRUE(lane.Post([&] {
                    started.set_value();
                    release.get_future().wait_for(kSoon);
                    finished = true;
                  })
                  .ok());
  ASSERT_TRUE(lane.Post([&] { later = true; }).ok());
  started.get_future().wait();
  std::thread stopper([&] { lane.Stop(); });
  // Refusal is how the stopping shows.
  while (lane.Post([] {}).ok()) std::this_thread::yield();
  release.set_value();
  stopper.join();
  EXPECT_TRUE(finished);
  EXPECT_FALSE(later);
  const Status refused = lane.Post([] {});
  EXPECT_EQ(refused.error().code, ErrorCode::kCancelled);
  EXPECT_THAT(refused.error().message, HasSubstr("lane lane"));
}

TEST(BlockingLaneTest, TheQueueIsBounded) {
  BlockingLane lane("lane");
  std::promise<void> started;
  std::promise<void> release;
  ASSERT_TRUE(lane.Post([&] {
                    started.set_value();
                    release.get_future().wait_for(kSoon);
                  })
                  .ok());
  started.get_future().wait();
  for (size_t i = 0; i < kLaneQueueMax; ++i) ASSERT_TRUE(lane.Post([] {}).ok());
  EXPECT_EQ(lane.Post([] {}).error().code, ErrorCode::kBackpressure);
  release.set_value();
}

}  // namespace
}  // namespace troupe
