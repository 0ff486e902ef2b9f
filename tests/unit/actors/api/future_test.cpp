#include "actors/api/future.h"

#include <gtest/gtest.h>

#include <thread>

#include "actors/api/when.h"

namespace troupe {
namespace {

const Error kNo{ErrorCode::kUserError, "no"};

TEST(FutureTest, TheFirstResultCountsAndCopiesShareIt) {
  const Future<int> future;
  Future<int> copy;
  copy = future;
  EXPECT_FALSE(copy.Ready());
  future.Complete(1);
  future.Complete(2);
  future.Complete(kNo);
  EXPECT_TRUE(copy.Ready());
  EXPECT_EQ(copy.Get().value(), 1);
  EXPECT_EQ(copy.GetValue(), 1);
}

TEST(FutureTest, GetWaitsForAnotherThreadAndNoLongerThanItsLimit) {
  const Future<int> future;
  EXPECT_EQ(future.Get(Duration::zero()).error().code, ErrorCode::kDeadlineExceeded);
  std::thread other([future] { future.Complete(7); });
  EXPECT_EQ(future.Get(seconds(20)).value(), 7);
  other.join();
}

TEST(FutureTest, AnErrorIsThrownByGetValue) {
  try {
    (void)Future<int>::Failed(kNo).GetValue();
    FAIL();
  } catch (const ActorError& e) {
    EXPECT_EQ(e.error().code, ErrorCode::kUserError);
    EXPECT_STREQ(e.what(), "user_error: no");
  }
}

TEST(FutureTest, ThenRunsOnceBeforeOrAfter) {
  const Future<int> future;
  int runs = 0;
  const Future<std::string> text = future.Then([&](const Result<int>& r) {
    ++runs;
    return std::to_string(*r);
  });
  const Future<int> checked = future.Then(
      [](const Result<int>& r) -> Result<int> { return *r > 3 ? Result<int>(kNo) : *r; });
  const Future<void> status = future.Then([](const Result<int>&) -> Status { return kNo; });
  const Future<void> nothing = future.Then([](const Result<int>&) {});
  future.Complete(4);
  EXPECT_EQ(*text.Get(), "4");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(checked.Get().error().message, "no");
  EXPECT_FALSE(status.Get().ok());
  EXPECT_TRUE(nothing.Get().ok());
  EXPECT_EQ(*future.Then([](const Result<int>& r) { return *r + 1; }).Get(), 5);
}

// What is behind a future: counts who asks it to stop, and keeps what it is given.
class CountedCall final : public actors::PendingCall {
 public:
  explicit CountedCall(int* asked, std::shared_ptr<int> kept = nullptr)
      : asked_(asked), kept_(std::move(kept)) {}
  void Cancel(const actors::Cancellation&) override { ++*asked_; }
  void Await(FiberEvent& event, Time until) override {
    (void)event.WaitFor(until - SteadyClock().Now());
  }

 private:
  int* const asked_;
  const std::shared_ptr<int> kept_;
};

TEST(FutureTest, CancelAsksOnceAndNotWhenItIsOver) {
  const Future<int> future;
  int asked = 0;
  future.Cancel();  // Nobody to ask.
  EXPECT_FALSE(future.Ready());
  future.SetCall(std::make_shared<CountedCall>(&asked));
  future.Cancel();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(future.Get().error().code, ErrorCode::kCancelled);
  future.Cancel();
  future.SetCall(std::make_shared<CountedCall>(&asked));
  future.Cancel();
  EXPECT_EQ(asked, 1);
}

// A future may be kept for long; what was behind it is not.
TEST(FutureTest, ACompleteFutureKeepsNothingOfItsCall) {
  auto call = std::make_shared<int>(0);
  const std::weak_ptr<int> weak = call;
  {
    const Future<int> future;
    int asked = 0;
    future.SetCall(std::make_shared<CountedCall>(&asked, call));
    future.OnComplete([call](const Result<int>&) {});
    call.reset();
    EXPECT_FALSE(weak.expired());
    future.Complete(1);
    EXPECT_TRUE(weak.expired());
  }
}

TEST(WhenTest, AllInOrderOrTheFirstError) {
  const std::vector<Future<int>> three(3);
  std::vector<Future<int>> futures{Future<int>(), Future<int>(), Future<int>()};
  const auto all = WhenAll(futures);
  for (int i = 2; i >= 0; --i) {
    EXPECT_FALSE(all.Ready());
    futures[static_cast<size_t>(i)].Complete(i * 10);
  }
  EXPECT_EQ(*all.Get(), (std::vector<int>{0, 10, 20}));
  std::vector<Future<int>> some{Future<int>(), Future<int>()};
  const auto failed = WhenAll(some);
  some[1].Complete(kNo);
  EXPECT_EQ(failed.Get().error().message, "no") << "at once";
  some[0].Complete(1);
  EXPECT_FALSE(failed.Get().ok());
  EXPECT_TRUE(WhenAll(std::vector<Future<int>>{}).Get()->empty());
}

TEST(WhenTest, AllOfCallsWithoutAResult) {
  std::vector<Future<void>> futures{Future<void>(), Future<void>()};
  const auto all = WhenAll(futures);
  futures[0].Complete(true);
  futures[1].Complete(true);
  EXPECT_EQ(all.Get()->size(), 2u);
}

TEST(WhenTest, AnyIsTheFirstSuccessOrTheLastError) {
  std::vector<Future<int>> futures{Future<int>(), Future<int>(), Future<int>()};
  const auto any = WhenAny(futures);
  futures[0].Complete(kNo);
  EXPECT_FALSE(any.Ready());
  futures[2].Complete(5);
  futures[1].Complete(6);
  EXPECT_EQ(any.Get()->first, 2u);
  EXPECT_EQ(any.Get()->second, 5);
  const std::vector<Future<int>> errors{Future<int>::Failed(kNo),
                                        Future<int>::Failed({ErrorCode::kPeerGone, "last"})};
  EXPECT_EQ(WhenAny(errors).Get().error().message, "last");
  EXPECT_EQ(WhenAny(std::vector<Future<int>>{}).Get().error().code, ErrorCode::kInvalidArgument);
}

// What is behind a future that nobody completes: says why.
class StuckCall final : public actors::PendingCall {
 public:
  void Cancel(const actors::Cancellation& /*how*/) override {}
  void Await(FiberEvent& event, Time until) override {
    (void)event.WaitFor(until - SteadyClock().Now());
  }
  [[nodiscard]] std::string WhyNot() const override { return "Till 5f0c is pending: no CPU"; }
};

TEST(FutureTest, WhoGivesUpWaitingIsToldWhatItWaitedFor) {
  const Future<int> future;
  EXPECT_EQ(future.Get(milliseconds(1)).error().message, "no result yet");
  future.SetCall(std::make_shared<StuckCall>());
  EXPECT_EQ(future.Get(milliseconds(1)).error().message,
            "no result yet: Till 5f0c is pending: no CPU");
  EXPECT_EQ(future.Get(Duration::zero()).error().message,
            "no result yet: Till 5f0c is pending: no CPU");
}

// Who looks again and again leaves nothing behind in the future.
TEST(FutureTest, WhoGivesUpWaitingIsForgotten) {
  const Future<int> future;
  const auto kept = std::make_shared<int>(0);
  const uint64_t subscription = future.Subscribe([kept](const Result<int>&) { ++*kept; });
  EXPECT_EQ(kept.use_count(), 2);
  future.Unsubscribe(subscription);
  EXPECT_EQ(kept.use_count(), 1);
  future.Complete(1);
  EXPECT_EQ(*kept, 0);
  EXPECT_EQ(future.Subscribe([kept](const Result<int>&) { ++*kept; }), 0U);
  EXPECT_EQ(*kept, 1);
}

TEST(WaitTest, SaysWhichAreCompleteWhenThereAreEnough) {
  const std::vector<Future<int>> futures{Future<int>(), Future<int>(), Future<int>()};
  futures[2].Complete(1);
  futures[0].Complete(kNo);
  const Result<Waited> two = Wait(futures, 2, seconds(20));
  EXPECT_EQ(two->ready, (std::vector<size_t>{0, 2})) << "an error is complete, too";
  EXPECT_EQ(two->pending, (std::vector<size_t>{1}));
  std::thread other([future = futures[1]] { future.Complete(7); });
  EXPECT_EQ(Wait(futures, 3, seconds(20))->ready.size(), 3U);
  other.join();
}

TEST(WaitTest, AtItsLimitItSaysWhatThereIs) {
  const std::vector<Future<int>> futures{Future<int>(), Future<int>()};
  EXPECT_EQ(Wait(futures, 1, Duration::zero())->pending.size(), 2U);
  futures[1].Complete(1);
  EXPECT_EQ(Wait(futures, 2, milliseconds(1))->ready, (std::vector<size_t>{1}));
}

TEST(WaitTest, ANumberThatCannotBeIsRefused) {
  const std::vector<Future<int>> futures{Future<int>()};
  EXPECT_EQ(Wait(futures, 0, seconds(1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Wait(futures, 2, seconds(1)).error().message,
            "Wait for 2 of 1 futures: the number must be from 1 to that of the futures");
  EXPECT_FALSE(Wait(std::vector<Future<int>>{}, 1, seconds(1)).ok());
}

TEST(WhenTest, ManyThreadsCompleteTheirsAtOnce) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 50; ++round) {
    std::vector<Future<int>> futures;
    for (int i = 0; i < kThreads; ++i) futures.emplace_back();
    const auto all = WhenAll(futures);
    const auto any = WhenAny(futures);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([i, f = futures[static_cast<size_t>(i)]] { f.Complete(i); });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(all.Get()->at(kThreads - 1), kThreads - 1);
    ASSERT_EQ(static_cast<int>(any.Get()->first), any.Get()->second);
  }
}

}  // namespace
}  // namespace troupe
