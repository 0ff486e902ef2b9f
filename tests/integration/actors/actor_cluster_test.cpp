// Actors on a real embedded cluster: daemons, Redis, processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <set>

#include "tests/integration/actors/shared_cluster.h"
#include "tests/integration/actors/test_actors.h"

namespace troupe::testing {
namespace {

using ::testing::HasSubstr;

class ActorCluster : public SharedCluster<ActorCluster> {
 public:
  static std::map<std::string, double> Resources() {
    return {{"CPU", 64}, {"GPU", 2}, {"widget", 1}, {"gadget", 1}};
  }

 protected:
  template <class T, class... A>
  static ActorHandle<T> Spawned(const ActorOptions& options, A&&... arguments) {
    return Started(runtime().Spawn<T>(options, std::forward<A>(arguments)...));
  }
};

TEST_F(ActorCluster, CallsRunInOrderAndKeepState) {
  auto counter = Spawned<Counter>({}, 10);
  std::vector<Future<int>> sums;
  for (int i = 0; i < 100; ++i) sums.push_back(counter.Call(&Counter::Add, 1));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(In(sums[static_cast<size_t>(i)]), 11 + i);
  EXPECT_NE(counter.Call(&Counter::Pid).Get().value(), ::getpid());
}

TEST_F(ActorCluster, AnExceptionComesBackWithItsTypeAndPlace) {
  auto counter = Spawned<Counter>({}, 0);
  const Result<bool> failed = counter.Call(&Counter::Fail, "no such thing").Get(kSoon);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUserError);
  EXPECT_THAT(failed.error().message, HasSubstr("no such thing"));
  ASSERT_TRUE(failed.error().origin);
  EXPECT_EQ(failed.error().origin->type, "std::runtime_error");
  EXPECT_THAT(failed.error().origin->actor, HasSubstr(counter.id()));
  EXPECT_EQ(failed.error().origin->node, "local");
  EXPECT_EQ(In(counter.Call(&Counter::Add, 1)), 1) << "it lives on";
  EXPECT_EQ(counter.Call(&Counter::Refuse).Get(kSoon).error().code, ErrorCode::kPermissionDenied);
}

TEST_F(ActorCluster, AConstructorThatThrowsIsTheErrorOfItsSpawn) {
  const auto counter = runtime().Spawn<Counter>({}, -1);
  ASSERT_FALSE(counter.ok());
  EXPECT_EQ(counter.error().code, ErrorCode::kUserError);
  EXPECT_THAT(counter.error().message, HasSubstr("start is negative"));
}

TEST_F(ActorCluster, ActorsCallEachOtherThroughHandlesInMessages) {
  auto counter = Spawned<Counter>({}, 5);
  auto boss = Spawned<Boss>({});
  EXPECT_EQ(In(boss.Call(&Boss::AddTo, counter, 7)), 12);
  const Result<int> failed = boss.Call(&Boss::MakeFail, counter, "deep down").Get(kSoon);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().origin->actor, HasSubstr(boss.id()));
  const Error* cause = failed.error().cause();
  ASSERT_NE(cause, nullptr) << failed.error().ToString();
  EXPECT_THAT(cause->message, HasSubstr("deep down"));
  EXPECT_THAT(cause->origin->actor, HasSubstr(counter.id()));
}

TEST_F(ActorCluster, AnActorSpawnsOthersThatDieWithIt) {
  auto boss = Spawned<Boss>({});
  const auto hired = boss.Call(&Boss::Hire, 3).Get(kSoon);
  ASSERT_TRUE(hired.ok()) << hired.error().ToString();
  EXPECT_EQ(In(hired->Call(&Counter::Add, 1)), 4);
  const auto here = boss.Call(&Boss::HireHere, 40).Get(kSoon);
  ASSERT_TRUE(here.ok()) << here.error().ToString();
  EXPECT_EQ(In(here->Call(&Counter::Add, 2)), 42);
  // They end after it, each in its own process: a call on the way there may still be answered.
  std::promise<void> hired_down;
  std::promise<void> here_down;
  const MonitorGuard one = hired->Monitor([&](const Error&) { hired_down.set_value(); });
  const MonitorGuard other = here->Monitor([&](const Error&) { here_down.set_value(); });
  ASSERT_TRUE(boss.Kill().ok());
  for (std::promise<void>* down : {&hired_down, &here_down})
    ASSERT_EQ(down->get_future().wait_for(kSoon), std::future_status::ready);
  EXPECT_EQ(hired->Call(&Counter::Value).Get(kSoon).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(here->Call(&Counter::Value).Get(kSoon).error().code, ErrorCode::kPeerGone);
}

TEST_F(ActorCluster, AKilledProcessFailsWhatIsOnItsWayAndTellsWhoWatches) {
  auto counter = Spawned<Counter>({}, 0);
  std::promise<Error> down;
  const MonitorGuard guard = counter.Monitor([&](const Error& why) { down.set_value(why); });
  const auto pid = static_cast<pid_t>(In(counter.Call(&Counter::Pid)));
  const auto lingering = counter.Call(&Counter::Linger);
  const auto later = counter.Call(&Counter::Value);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  const Result<std::string> lost = lingering.Get(kSoon);
  EXPECT_EQ(lost.error().code, ErrorCode::kPeerGone) << ErrorOf(lost);
  EXPECT_THAT(lost.error().message, HasSubstr("may have run"));
  EXPECT_EQ(later.Get(kSoon).error().code, ErrorCode::kPeerGone);
  auto told = down.get_future();
  ASSERT_EQ(told.wait_for(kSoon), std::future_status::ready);
  EXPECT_THAT(told.get().message, HasSubstr("process"));
}

TEST_F(ActorCluster, AnActorThatExitsOrCorruptsItsHeapHarmsNobodyElse) {
  auto healthy = Spawned<Counter>({}, 1);
  auto exits = Spawned<Counter>({}, 0);
  auto corrupts = Spawned<Counter>({}, 0);
  const Result<bool> exited = exits.Call(&Counter::Exit, 3).Get(kSoon);
  EXPECT_EQ(exited.error().code, ErrorCode::kPeerGone) << ErrorOf(exited);
  const Result<bool> corrupted = corrupts.Call(&Counter::CorruptTheHeap).Get(kSoon);
  EXPECT_EQ(corrupted.error().code, ErrorCode::kPeerGone) << ErrorOf(corrupted);
  EXPECT_EQ(In(healthy.Call(&Counter::Add, 1)), 2);
}

TEST_F(ActorCluster, AnActorMayLeaveWithAReason) {
  auto counter = Spawned<Counter>({.max_restarts = 5}, 0);
  std::promise<Error> down;
  const MonitorGuard guard = counter.Monitor([&](const Error& why) { down.set_value(why); });
  EXPECT_TRUE(counter.Call(&Counter::Leave, "the work is done").Get(kSoon).ok());
  auto told = down.get_future();
  ASSERT_EQ(told.wait_for(kSoon), std::future_status::ready);
  EXPECT_THAT(told.get().message, HasSubstr("the work is done"));
  EXPECT_EQ(counter.Call(&Counter::Value).Get(kSoon).error().code, ErrorCode::kPeerGone)
      << "it is not started again";
}

TEST_F(ActorCluster, DeadlinesHoldWhateverTheActorDoes) {
  auto counter = Spawned<Counter>({}, 0);
  const auto blocked = counter.CallWithin(milliseconds(200), &Counter::Block, 1500);
  const auto behind = counter.CallWithin(milliseconds(300), &Counter::Add, 1);
  EXPECT_EQ(blocked.Get(seconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(behind.Get(seconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(In(counter.Call(&Counter::Value)), 0) << "what was too late did not run";
}

TEST_F(ActorCluster, ACancellationReachesTheMethodThatRuns) {
  auto counter = Spawned<Counter>({.max_restarts = 0}, 0);
  auto boss = Spawned<Boss>({});
  const auto direct = counter.Call(&Counter::Linger);
  EXPECT_FALSE(direct.Get(milliseconds(200)).ok());
  direct.Cancel();
  EXPECT_EQ(direct.Get(kSoon).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(In(counter.CallWithin(kSoon, &Counter::Value)), 0) << "it is free again";
  // A method that waits for another is cancelled where it waits.
  const auto chained = boss.Call(&Boss::WaitFor, counter);
  EXPECT_FALSE(chained.Get(milliseconds(200)).ok());
  chained.Cancel();
  EXPECT_TRUE(boss.CallWithin(kSoon, &Boss::AddTo, Spawned<Counter>({}, 1), 1).Get(kSoon).ok());
}

TEST_F(ActorCluster, CallsThatWaitLetOthersRun) {
  ActorOptions options;
  options.max_concurrency = 10;
  auto counter = Spawned<Counter>(options, 0);
  const Time start = SteadyClock().Now();
  std::vector<Future<int>> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(counter.Call(&Counter::Gate, 300));
  std::set<int> values;
  for (const auto& call : calls) values.insert(In(call));
  EXPECT_EQ(values.size(), 10u);
  EXPECT_LT(SteadyClock().Now() - start, milliseconds(2500)) << "one after another takes 3 s";
}

TEST_F(ActorCluster, NamesAreUniqueAndFound) {
  ActorOptions options;
  options.name = "the-one";
  auto first = Spawned<Counter>(options, 1);
  const auto second = runtime().Spawn<Counter>(options, 2);
  EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists) << ErrorOf(second);
  EXPECT_THAT(second.error().message, HasSubstr("the-one"));
  options.get_if_exists = true;
  EXPECT_EQ(Spawned<Counter>(options, 3).id(), first.id());
  EXPECT_EQ(In(runtime().Get<Counter>("the-one").value().Call(&Counter::Value)), 1);
  EXPECT_EQ(runtime().Get<Boss>("the-one").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(runtime().Get<Counter>("nobody").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(first.Kill().ok());
  EXPECT_EQ(runtime().Get<Counter>("the-one").error().code, ErrorCode::kNotFound);
  options.get_if_exists = false;
  EXPECT_NE(Spawned<Counter>(options, 4).id(), first.id()) << "the name is free again";
}

TEST_F(ActorCluster, WhatCanNeverBeMetFailsWithTheReason) {
  ActorOptions options;
  options.resources = {{"CPU", 1}, {"unobtainium", 1}};
  const auto counter = runtime().Spawn<Counter>(options, 0);
  ASSERT_FALSE(counter.ok());
  EXPECT_EQ(counter.error().code, ErrorCode::kResourceExhausted) << ErrorOf(counter);
  EXPECT_THAT(counter.error().message, HasSubstr("unobtainium"));
  options.resources = {{"CPU", -1}};
  EXPECT_EQ(runtime().Spawn<Counter>(options, 0).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ActorCluster, WhoWaitsForRoomIsToldWhyAndGetsItsTurn) {
  ActorOptions options;
  options.resources = {{"widget", 1}};
  auto first = Spawned<Counter>(options, 1);
  ActorOptions brief = options;
  brief.timeout = milliseconds(700);
  const auto late = runtime().Spawn<Counter>(brief, 2);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message, HasSubstr("widget")) << "the reason it was pending for";
  auto second = runtime().SpawnLater<Counter>(options, 3).value();
  const auto value = second.Call(&Counter::Value);
  EXPECT_FALSE(value.Get(milliseconds(300)).ok());
  ASSERT_TRUE(first.Kill().ok());
  EXPECT_EQ(In(value), 3);
}

TEST_F(ActorCluster, GpusAreHandedOutByDevice) {
  ActorOptions whole;
  whole.resources = {{"GPU", 1}};
  ActorOptions half;
  half.resources = {{"GPU", 0.5}};
  auto none = Spawned<Counter>({}, 0);
  auto one = Spawned<Counter>(whole, 0);
  auto left = Spawned<Counter>(half, 0);
  auto right = Spawned<Counter>(half, 0);
  const auto devices = [](const ActorHandle<Counter>& actor) {
    return In(actor.Call(&Counter::Env, "CUDA_VISIBLE_DEVICES"));
  };
  EXPECT_EQ(devices(none), "");
  EXPECT_EQ(devices(left), devices(right));
  EXPECT_NE(devices(one), devices(left));
  ActorOptions odd;
  odd.resources = {{"GPU", 1.5}};
  EXPECT_EQ(runtime().Spawn<Counter>(odd, 0).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(ActorCluster, ItIsStartedAgainAsOftenAsItMay) {
  ActorOptions options;
  options.max_restarts = 1;
  auto counter = Spawned<Counter>(options, 7);
  EXPECT_EQ(In(counter.Call(&Counter::Add, 1)), 8);
  EXPECT_FALSE(counter.Call(&Counter::Exit, 1).Get(kSoon).ok());
  EXPECT_EQ(In(counter.Call(&Counter::Value)), 7) << "its constructor ran again";
  EXPECT_FALSE(counter.Call(&Counter::Exit, 1).Get(kSoon).ok());
  const Result<int> over = counter.Call(&Counter::Value).Get(kSoon);
  EXPECT_EQ(over.error().code, ErrorCode::kPeerGone) << ErrorOf(over);
}

TEST_F(ActorCluster, SavedStateSurvivesAndEachCallHasItsEffectOnce) {
  ActorOptions options;
  options.max_restarts = -1;
  auto ledger = Spawned<Ledger>(options);
  int64_t expected = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<Future<int64_t>> calls;
    for (int i = 1; i <= 50; ++i) {
      calls.push_back(ledger.CallWith({seconds(60), true}, &Ledger::Add, i));
      expected += i;
    }
    const auto pid = ledger.CallWith({seconds(60), true}, &Ledger::Pid).Get(kSoon);
    ASSERT_TRUE(pid.ok()) << ErrorOf(pid);
    ::kill(static_cast<pid_t>(*pid), SIGKILL);
    for (int i = 51; i <= 100; ++i) {
      calls.push_back(ledger.CallWith({seconds(60), true}, &Ledger::Add, i));
      expected += i;
    }
    for (const auto& call : calls) ASSERT_TRUE(call.Get(kSoon).ok()) << ErrorOf(call.Get());
    EXPECT_EQ(In(ledger.CallWith({seconds(60), true}, &Ledger::Sum)), expected);
  }
  // One that dies before its effect is safe has not happened: it is not in the state.
  EXPECT_FALSE(ledger.Call(&Ledger::AddAndDie, 1'000'000).Get(kSoon).ok());
  EXPECT_EQ(In(ledger.Call(&Ledger::Sum)), expected);
}

TEST_F(ActorCluster, TasksRunElsewhereAndTheirErrorsComeBack) {
  std::vector<Future<int>> squares;
  for (int i = 0; i < 20; ++i) squares.push_back(runtime().Run<&Square>(i));
  const auto all = WhenAll(squares).Get(kSoon);
  ASSERT_TRUE(all.ok()) << ErrorOf(all);
  for (int i = 0; i < 20; ++i) EXPECT_EQ((*all)[static_cast<size_t>(i)], i * i);
  const Result<int> failed = runtime().Run<&FailTask>("far out").Get(kSoon);
  EXPECT_EQ(failed.error().code, ErrorCode::kUserError);
  EXPECT_EQ(failed.error().origin->type, "std::out_of_range");
  std::vector<Future<int64_t>> pids;
  for (int i = 0; i < 3; ++i) pids.push_back(runtime().Run<&TaskPid>(1000));
  std::set<int64_t> distinct;
  for (const auto& pid : pids) distinct.insert(In(pid));
  EXPECT_GT(distinct.size(), 1u) << "tasks that take long run beside each other";
}

// One at a time has room, so each has to lend its CPUs to the next.
TEST_F(ActorCluster, TasksThatWaitLendTheirCpus) {
  TaskOptions most;
  most.resources = {{"CPU", 9}};
  EXPECT_EQ(In(runtime().RunWith<&NestedTask>(most, 4, 9.0)), 4);
}

// There is room for one process of this kind: a second runner is asked for, and never comes.
TEST_F(ActorCluster, NoTaskWaitsForARunnerThatGetsNoRoom) {
  TaskOptions narrow;
  narrow.resources = {{"gadget", 1}};
  std::vector<Future<int64_t>> pids;
  for (int i = 0; i < 5; ++i) pids.push_back(runtime().RunWith<&TaskPid>(narrow, 100));
  std::set<int64_t> distinct;
  for (const auto& pid : pids) distinct.insert(In(pid));
  EXPECT_EQ(distinct.size(), 1u);
}

TEST_F(ActorCluster, ATaskThatIsCancelledMakesWay) {
  TaskOptions narrow;
  narrow.resources = {{"gadget", 1}};
  const auto running = runtime().RunWith<&LingeringTask>(narrow);
  EXPECT_FALSE(running.Get(milliseconds(500)).ok());
  const auto waiting = runtime().RunWith<&LingeringTask>(narrow);
  const auto behind = runtime().RunWith<&TaskPid>(narrow, 0);
  waiting.Cancel();
  running.Cancel();
  EXPECT_EQ(running.Get(kSoon).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(waiting.Get(kSoon).error().code, ErrorCode::kCancelled);
  EXPECT_GT(In(behind), 0);
}

TEST_F(ActorCluster, ATaskThatCannotRunSaysWhy) {
  TaskOptions impossible;
  impossible.resources = {{"unobtainium", 1}};
  const Result<int64_t> refused = runtime().RunWith<&TaskPid>(impossible, 0).Get(kSoon);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << ErrorOf(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("unobtainium"));
}

// ---- placement groups ----

TEST_F(ActorCluster, ActorsAreStartedInAPlacementGroupThatGrowsAndShrinks) {
  const auto group = runtime().CreatePlacementGroup(
      {.bundles = {{.resources = {{"gadget", 0.5}}}}, .name = "workshop"});
  ASSERT_TRUE(group.ok()) << ErrorOf(group);
  ASSERT_TRUE(group->Wait(kSoon).ok());
  ActorOptions inside;
  inside.resources = {{"gadget", 0.5}};
  inside.placement_group = group->id();
  auto first = Spawned<Counter>(inside, 1);
  auto second = runtime().SpawnLater<Counter>(inside, 2).value();
  const auto value = second.Call(&Counter::Value);
  EXPECT_FALSE(value.Get(milliseconds(300)).ok()) << "the bundle is full, though the node is not";
  ASSERT_TRUE(runtime().GetPlacementGroup("workshop")->Resize({{{{"gadget", 0.5}}, {}}}).ok());
  EXPECT_EQ(In(value), 2);
  const auto status = group->Look();
  ASSERT_TRUE(status.ok()) << ErrorOf(status);
  EXPECT_TRUE(status->placed());
  ASSERT_EQ(status->bundles.size(), 2u);
  EXPECT_EQ(status->bundles[1].node, "local");
  const auto lingering = first.Call(&Counter::Linger);
  ASSERT_TRUE(group->Resize({}, {0}).ok());
  const Result<std::string> gone = lingering.Get(kSoon);
  EXPECT_EQ(gone.error().code, ErrorCode::kPeerGone) << ErrorOf(gone);
  EXPECT_THAT(gone.error().message, HasSubstr("bundle 0"));
  EXPECT_EQ(In(second.Call(&Counter::Value)), 2) << "what stays is left alone";
  ActorOptions modest;
  modest.placement_group = group->id();
  auto third = Spawned<Counter>(modest, 3);
  EXPECT_EQ(In(third.Call(&Counter::Value)), 3) << "it takes nothing of a bundle that has no CPU";
  const auto last = second.Call(&Counter::Linger);
  ASSERT_TRUE(group->Remove().ok());
  EXPECT_EQ(last.Get(kSoon).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(group->Wait(kSoon).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(runtime().GetPlacementGroup("workshop").error().code, ErrorCode::kNotFound);
}

TEST_F(ActorCluster, APlacementGroupThatCannotBeSaysWhy) {
  const auto never = runtime().CreatePlacementGroup({.bundles = {{{{"unobtainium", 1}}, {}}}});
  ASSERT_TRUE(never.ok()) << ErrorOf(never);
  const Status waited = never->Wait(kSoon);
  EXPECT_EQ(waited.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(waited.error().message, HasSubstr("unobtainium"));
  ASSERT_TRUE(never->Remove().ok());
  const auto odd = runtime().CreatePlacementGroup({.bundles = {{{{"CPU", -1}}, {}}}});
  EXPECT_EQ(odd.error().code, ErrorCode::kInvalidArgument) << ErrorOf(odd);
  ActorOptions nowhere;
  nowhere.placement_group = "pg-nobody";
  const auto lost = runtime().Spawn<Counter>(nowhere, 1);
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(lost.error().message, HasSubstr("pg-nobody"));
}

// ---- links ----

TEST_F(ActorCluster, LinkedActorsEndTogether) {
  auto one = Spawned<Counter>({}, 1);
  auto other = Spawned<Counter>({}, 2);
  auto apart = Spawned<Counter>({}, 3);
  ASSERT_TRUE(Link(one, other).ok());
  ASSERT_TRUE(Link(one, apart).ok());
  ASSERT_TRUE(Unlink(apart, one).ok());
  const auto lingering = other.Call(&Counter::Linger);
  ASSERT_TRUE(one.Kill("enough").ok());
  const Result<std::string> gone = lingering.Get(kSoon);
  EXPECT_EQ(gone.error().code, ErrorCode::kPeerGone) << ErrorOf(gone);
  EXPECT_THAT(gone.error().message, HasSubstr("linked to " + one.id()));
  EXPECT_EQ(In(apart.Call(&Counter::Value)), 3);
  EXPECT_EQ(Link(one, apart).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(Link(apart, apart).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(In(apart.Call(&Counter::Value)), 3) << "what cannot be linked is left alone";
}

TEST_F(ActorCluster, LinksReachActorsInOtherProcesses) {
  auto host = Spawned<Counter>({}, 0);
  auto here = runtime().SpawnHere<Counter>({}, 1).value();
  auto there = runtime().SpawnBeside<Counter>(host, {}, 2).value();
  auto placed = Spawned<Counter>({}, 3);
  ASSERT_TRUE(Link(here, there).ok());
  ASSERT_TRUE(Link(here, placed).ok());
  const auto near = here.Call(&Counter::Linger);
  const auto far = placed.Call(&Counter::Linger);
  ASSERT_TRUE(host.Kill().ok()) << "its process goes, and with it what is beside it";
  EXPECT_EQ(ErrorOf(near.Get(kSoon)).substr(0, 9), "peer_gone") << ErrorOf(near.Get(kSoon));
  EXPECT_EQ(ErrorOf(far.Get(kSoon)).substr(0, 9), "peer_gone") << ErrorOf(far.Get(kSoon));
}

TEST_F(ActorCluster, ADetachedActorOutlivesWhoMadeIt) {
  std::string id;
  {
    InitOptions other = Options();
    other.address = runtime().system()->self().endpoint;  // Replaced below: the head's.
    other.address = "ipc://" + other.address.substr(6, other.address.rfind('/') - 6) + "/head.sock";
    Result<Cluster> second = Init(other);
    ASSERT_TRUE(second.ok()) << second.error().ToString();
    ActorOptions detached;
    detached.name = "survivor";
    detached.detached = true;
    auto survivor = second->Spawn<Counter>(detached, 9);
    ASSERT_TRUE(survivor.ok()) << survivor.error().ToString();
    ActorOptions owned;
    owned.name = "dependant";
    ASSERT_TRUE(second->Spawn<Counter>(owned, 1).ok());
    EXPECT_TRUE(runtime().Get<Counter>("dependant").ok());
    id = survivor->id();
  }
  auto survivor = runtime().Get<Counter>("survivor");
  ASSERT_TRUE(survivor.ok()) << survivor.error().ToString();
  EXPECT_EQ(survivor->id(), id);
  EXPECT_EQ(In(survivor->Call(&Counter::Add, 1)), 10);
  EXPECT_EQ(runtime().Get<Counter>("dependant").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(survivor->Kill().ok());
}

TEST_F(ActorCluster, AMessageThatIsTooLargeIsRefusedWithItsSize) {
  auto counter = Spawned<Counter>({}, 0);
  std::string large;
  large.resize(wire::kWireFrameBytesMax, 'x');
  const Result<std::string> refused = counter.Call(&Counter::Echo, large).Get(kSoon);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("bytes"));
  large.resize(20'000'000);
  EXPECT_EQ(In(counter.Call(&Counter::Echo, large)).size(), 20'000'000u);
}

TEST_F(ActorCluster, ActorsOfOneProcessAreCheap) {
  constexpr int kMany = 100'000;
  std::vector<ActorHandle<Counter>> actors;
  actors.reserve(kMany);
  for (int i = 0; i < kMany; ++i) {
    Result<ActorHandle<Counter>> actor = runtime().SpawnHere<Counter>({}, i);
    ASSERT_TRUE(actor.ok()) << actor.error().ToString();
    actors.push_back(std::move(*actor));
  }
  std::atomic<int64_t> sum{0};
  std::atomic<int> answered{0};
  FiberEvent done;
  for (const auto& actor : actors) {
    (void)actor.Call(&Counter::Add, 1).Then([&](const Result<int>& value) {
      sum += value.value();
      if (++answered == kMany) done.Set();
    });
  }
  ASSERT_TRUE(done.WaitFor(seconds(60)));
  EXPECT_EQ(sum.load(), int64_t{kMany} * (kMany - 1) / 2 + kMany);
}

TEST_F(ActorCluster, AFullMailboxHoldsItsCallersBackOrRefusesThem) {
  ActorOptions waiting;
  waiting.mailbox_depth = 10;
  auto patient = Spawned<Counter>(waiting, 0);
  ActorOptions refusing = waiting;
  refusing.overflow = actors::Overflow::kRefuse;
  auto strict = Spawned<Counter>(refusing, 0);
  for (const auto& counter : {patient, strict}) (void)counter.Call(&Counter::Block, 300);
  std::vector<Future<int>> held;
  std::vector<Future<int>> refused;
  for (int i = 0; i < 100; ++i) {
    held.push_back(patient.Call(&Counter::Add, 1));
    refused.push_back(strict.Call(&Counter::Add, 1));
  }
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(In(held[static_cast<size_t>(i)]), i + 1) << "in order, none lost";
  int taken = 0;
  for (const auto& call : refused) {
    const Result<int> result = call.Get(kSoon);
    if (result.ok()) {
      ++taken;
    } else {
      EXPECT_EQ(result.error().code, ErrorCode::kBackpressure);
    }
  }
  EXPECT_GE(taken, 9) << "the one that blocks may still have been in the mailbox";
  EXPECT_LT(taken, 100);
}

}  // namespace
}  // namespace troupe::testing

// The test program is also the worker that hosts its actors.
int main(int argc, char** argv) {
  troupe::internal::HostIfWorker(troupe::actors::RegisteredTypes());
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
