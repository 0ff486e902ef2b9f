// How calls can be made, in a real cluster: with futures, of blocking methods, of an actor's own
// type; and what who waits for one is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/integration/actors/shared_cluster.h"
#include "tests/integration/actors/test_actors.h"

namespace troupe::testing {
namespace {

using ::testing::HasSubstr;

class CallKinds : public SharedCluster<CallKinds> {
 public:
  static std::map<std::string, double> Resources() { return {{"CPU", 4}, {"gadget", 1}}; }

 protected:
  template <class T, class... A>
  static ActorHandle<T> Spawned(const ActorOptions& options, A... arguments) {
    return Started(runtime().Spawn<T>(options, arguments...));
  }
};

// What who gives up waiting is told, as soon as it names `word`.
template <class R>
std::string WhyNot(const Future<R>& future, const std::string& word) {
  const Time until = SteadyClock().Now() + kSoon;
  std::string why;
  while (why.find(word) == std::string::npos && SteadyClock().Now() < until)
    why = ErrorOf(future.Get(milliseconds(20)));
  return why;
}

TEST_F(CallKinds, NumbersTravelInOnePiece) {
  auto counter = Spawned<Counter>({}, 0);
  std::vector<int> many(5'000'000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int>(i) - 7;
  EXPECT_EQ(In(counter.Call(&Counter::EchoNumbers, many)), many);
  EXPECT_TRUE(In(counter.Call(&Counter::EchoNumbers, std::vector<int>{})).empty());
}

TEST_F(CallKinds, AFutureCanBeAnArgument) {
  auto counter = Spawned<Counter>({}, 10);
  const auto squared = runtime().Run<&Square>(runtime().Run<&Square>(3));
  EXPECT_EQ(In(counter.Call(&Counter::Add, squared)), 91);
  const auto text = Cluster::Put(std::string("put once"));
  EXPECT_EQ(In(counter.Call(&Counter::Echo, text)), "put once");
  EXPECT_EQ(In(counter.Call(&Counter::Echo, text)), "put once");
  const Result<int> failed =
      counter.Call(&Counter::Add, runtime().Run<&FailTask>("far out")).Get(kSoon);
  EXPECT_EQ(failed.error().code, ErrorCode::kUserError);
  EXPECT_THAT(failed.error().message, HasSubstr("argument 1 of the call"));
  EXPECT_EQ(failed.error().origin->type, "std::out_of_range");
  EXPECT_EQ(In(counter.Call(&Counter::Value)), 91) << "it was never called";
}

TEST_F(CallKinds, ACallWhoseFutureNeverComesEndsAtItsTime) {
  auto counter = Spawned<Counter>({}, 0);
  const Future<int> never;
  const auto late = counter.CallWithin(milliseconds(100), &Counter::Add, never);
  const Result<int> ended = late.Get(kSoon);
  EXPECT_EQ(ended.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(ended.error().message, HasSubstr("the futures among the call's arguments"));
  never.Complete(1);
  EXPECT_EQ(In(counter.Call(&Counter::Value)), 0) << "it is over";
}

TEST_F(CallKinds, WaitSaysWhichAreComplete) {
  auto counter = Spawned<Counter>({.max_concurrency = 2}, 0);
  const std::vector<Future<int>> calls{counter.Call(&Counter::Gate, 60'000),
                                       counter.Call(&Counter::Gate, 0)};
  const Result<Waited> one = Wait(calls, 1, kSoon);
  EXPECT_EQ(one->ready, (std::vector<size_t>{1}));
  EXPECT_EQ(one->pending, (std::vector<size_t>{0}));
  EXPECT_EQ(Wait(calls, 2, milliseconds(10))->ready.size(), 1u);
  calls[0].Cancel();
  EXPECT_EQ(Wait(calls, 2, kSoon)->ready.size(), 2u);
}

TEST_F(CallKinds, WhoGivesUpWaitingIsToldWhatForAndWhy) {
  auto all = Spawned<Counter>({.resources = {{"gadget", 1}}}, 0);
  auto waits = runtime().SpawnLater<Counter>({.resources = {{"gadget", 1}}}, 0).value();
  const auto call = waits.Call(&Counter::Value);
  EXPECT_THAT(WhyNot(call, "gadget"),
              HasSubstr("no result yet: troupe::testing::Counter " + waits.id() + " is pending: "));
  TaskOptions narrow;
  narrow.resources = {{"gadget", 1}};
  const auto task = runtime().RunWith<&Square>(narrow, 1);
  EXPECT_THAT(WhyNot(task, "gadget"), HasSubstr("no result yet: a process for it is pending: "));
  task.Cancel();
  EXPECT_TRUE(waits.Kill().ok() && all.Kill().ok());
}

TEST_F(CallKinds, CallsOnThreadsMayBlock) {
  auto crowd = Spawned<Crowd>({.max_concurrency = 4, .threads = true});
  std::vector<Future<int>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(crowd.Call(&Crowd::Meet, 4));
  for (const auto& call : calls) EXPECT_EQ(In(call), 4) << "each blocks until all are there";
  EXPECT_THAT(ErrorOf(runtime().Spawn<Crowd>({.max_concurrency = 2000, .threads = true})),
              HasSubstr("calls on threads are at most 1000 at once"));
  EXPECT_EQ(runtime().SpawnHere<Crowd>({.max_concurrency = 2000, .threads = true}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(CallKinds, OnThreadsItsContextIsThere) {
  auto crowd = Spawned<Crowd>({.max_concurrency = 2, .threads = true});
  auto counter = Spawned<Counter>({}, 1);
  EXPECT_EQ(In(crowd.Call(&Crowd::AddTo, counter, 2)), 3) << "it waits for another";
  const auto lingering = crowd.Call(&Crowd::Linger);
  EXPECT_EQ(Wait(std::vector{lingering}, 1, milliseconds(100))->ready.size(), 0u);
  lingering.Cancel();
  EXPECT_EQ(In(crowd.Call(&Crowd::Cancelled)), 1) << "the method was told";
  const auto late = crowd.CallWithin(milliseconds(100), &Crowd::Meet, 2);
  EXPECT_EQ(late.Get(kSoon).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(In(crowd.Call(&Crowd::Meet, 2)), 2) << "it still runs there";
}

// In this process its end waits for what runs on its threads.
TEST_F(CallKinds, AnActorOnThreadsEndsAsOthersDo) {
  auto here = runtime().SpawnHere<Crowd>({.max_concurrency = 2, .threads = true}).value();
  const auto lingering = here.Call(&Crowd::Linger);
  EXPECT_EQ(Wait(std::vector{lingering}, 1, milliseconds(100))->ready.size(), 0u);
  ASSERT_TRUE(here.Kill().ok());
  EXPECT_EQ(lingering.Get(kSoon).error().code, ErrorCode::kPeerGone);
  auto placed = Spawned<Crowd>({.max_restarts = 1, .max_concurrency = 2, .threads = true});
  const auto blocked = placed.Call(&Crowd::Meet, 1000);
  EXPECT_EQ(Wait(std::vector{blocked}, 1, milliseconds(100))->ready.size(), 0u);
  ASSERT_TRUE(placed.Restart().ok());
  EXPECT_EQ(blocked.Get(kSoon).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(In(placed.CallWith({kSoon, true}, &Crowd::Meet, 1)), 1);
}

TEST_F(CallKinds, AMethodInItsClassCallsItsOwnType) {
  auto chain = Spawned<Chain>({});
  EXPECT_EQ(In(chain.Call(&Chain::Length, ActorHandle<Chain>())), 1);
  EXPECT_EQ(In(chain.Call(&Chain::Length, Spawned<Chain>({}))), 2);
  EXPECT_EQ(In(chain.Call(&Chain::LengthWithOneMore)), 2);
}

TEST_F(CallKinds, AnActorKnowsThatItWasRestarted) {
  auto crowd = Spawned<Crowd>({.max_restarts = 1});
  EXPECT_FALSE(In(crowd.Call(&Crowd::Restarted)));
  ASSERT_TRUE(crowd.Restart().ok());
  EXPECT_TRUE(In(crowd.CallWith({kSoon, true}, &Crowd::Restarted)));
}

// Lines that are printed on the driver: what is there has to wait for kTellAfter.
TEST_F(CallKinds, WhatWaitsForRoomSaysWhyOnTheDriver) {
  auto all = Spawned<Counter>({.resources = {{"gadget", 1}}}, 0);
  ::testing::internal::CaptureStderr();
  auto waits = runtime().SpawnLater<Counter>({.resources = {{"gadget", 1}}}, 0).value();
  TaskOptions narrow;
  narrow.resources = {{"gadget", 0.5}};
  const auto task = runtime().RunWith<&Square>(narrow, 1);
  const auto group = runtime().CreatePlacementGroup({.bundles = {{.resources = {{"gadget", 1}}}}});
  ASSERT_TRUE(group.ok());
  EXPECT_FALSE(group->Wait(actors::kTellAfter + seconds(8)).ok());
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("room for 1"));
  EXPECT_THAT(printed, HasSubstr("gadget"));
  EXPECT_THAT(printed, ::testing::AnyOf(HasSubstr("Counter " + waits.id()), HasSubstr("a task"),
                                        HasSubstr("placement group " + group->id())));
  EXPECT_TRUE(group->Remove().ok());
  task.Cancel();
  EXPECT_TRUE(waits.Kill().ok() && all.Kill().ok());
}

}  // namespace
}  // namespace troupe::testing
