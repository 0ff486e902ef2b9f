#include "actors/host/call_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "runtime/clock.h"
#include "tests/support/soon.h"

namespace troupe::actors {
namespace {

using tests::kSoon;

// Waits until so many threads are in it.
class Meeting {
 public:
  bool Join(int wanted) {
    std::unique_lock lock(mu_);
    ++here_;
    changed_.notify_all();
    return changed_.wait_for(lock, kSoon, [&] { return here_ >= wanted; });
  }
  bool Await(int wanted) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, kSoon, [&] { return here_ >= wanted; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int here_ = 0;
};

TEST(CallThreadsTest, WhatBlocksDoesNotStopTheOthers) {
  CallThreads threads(3);
  Meeting all;
  Meeting done;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(threads
                    .Spawn([&] {
                      EXPECT_TRUE(all.Join(3)) << "each waits for the other two";
                      (void)done.Join(1);
                    })
                    .ok());
  }
  EXPECT_TRUE(done.Await(3));
}

TEST(CallThreadsTest, NoMoreRunAtOnceThanItIsMadeFor) {
  constexpr int kCalls = 50;
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  Meeting begun;
  Meeting open;
  Meeting done;
  CallThreads threads(2);
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_TRUE(threads
                    .Spawn([&] {
                      const int running = ++now;
                      int before = most.load();
                      while (before < running && !most.compare_exchange_weak(before, running)) {
                      }
                      (void)begun.Join(1);
                      EXPECT_TRUE(open.Await(1)) << "so that those that may run at once do";
                      --now;
                      (void)done.Join(1);
                    })
                    .ok());
  }
  EXPECT_TRUE(begun.Await(2));
  (void)open.Join(1);
  EXPECT_TRUE(done.Await(kCalls));
  EXPECT_EQ(most.load(), 2);
}

TEST(CallThreadsTest, ItsEndWaitsForWhatWasGivenToIt) {
  std::atomic<int> ran{0};
  {
    CallThreads threads(1);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(threads.Spawn([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran.load(), 10);
}

// An actor may be given up by the last of its own calls.
TEST(CallThreadsTest, MayEndOnAThreadOfItsOwn) {
  Meeting ended;
  auto threads = std::make_shared<CallThreads>(2);
  CallThreads* const raw = threads.get();
  ASSERT_TRUE(raw->Spawn([&ended, threads = std::move(threads)]() mutable {
                   threads.reset();
                   (void)ended.Join(1);
                 })
                  .ok());
  EXPECT_TRUE(ended.Await(1));
}

}  // namespace
}  // namespace troupe::actors
