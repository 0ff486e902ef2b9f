// A task pool whose runners get their room, and lose it, when the test says so.
#include "actors/host/task_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/core/actor_group_protocol.h"
#include "actors/core/cluster_protocol.h"
#include "actors/host/actor_system.h"
#include "runtime/loopback_transport.h"
#include "tests/support/soon.h"
#include "tests/unit/actors/mailing.h"

namespace troupe::actors {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using tests::kSoon;

// What runners have done; "wait" waits for the gate, "insist" does so although it is cancelled.
struct PoolWorld {
  std::mutex mu;
  std::vector<std::string> ran;  // "RUNNER ARGUMENT".
  FiberEvent gate;
  std::atomic<bool> needed{false};  // Others refer to what tasks have made.
};

class Runner final : public Instance {
 public:
  Runner(PoolWorld* world, std::string name) : world_(world), name_(std::move(name)) {}
  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override {
    {
      std::lock_guard lock(world_->mu);
      world_->ran.push_back(name_ + " " + arguments);
    }
    if (method == "wait") {
      if (Status s = context.call()->Await(world_->gate, kSoon, Time::Never()); !s.ok())
        return s.error();
    }
    if (method == "insist") (void)world_->gate.WaitFor(kSoon);
    return arguments;
  }
  [[nodiscard]] bool needed() const override { return world_->needed.load(); }
  [[nodiscard]] bool saves() const override { return false; }
  Result<std::string> Save() override { return std::string(); }
  Status Restore(const std::string&) override { return Status::Ok(); }

 private:
  PoolWorld* const world_;
  const std::string name_;
};

// Notes what is asked for.
class Asked final : public ActorDirectoryClient {
 public:
  void Create(ActorSpec spec, OnAddress done) override {
    const ActorAddress address{spec.actor, 0, spec.type, {}, true};
    {
      std::lock_guard lock(mu);
      created.push_back(std::move(spec));
    }
    done(refuse ? Result<ActorAddress>(*refuse) : Result<ActorAddress>(address));
  }
  void Lookup(const std::string&, Duration, OnAddress) override {}
  void Group(GroupRequest, Duration, OnGroup) override {}
  void Collective(CollectiveRequest, Duration, OnCollective) override {}
  void Actors(ActorGroupRequest, Duration, OnActorGroup) override {}
  [[nodiscard]] const std::string& owner() const override { return owner_; }
  void Follow(const std::string&) override {}
  void Unfollow(const std::string&) override {}
  void Link(const std::string&, const std::string&, bool, Duration, CallDone) override {}
  void Kill(const std::string& actor, bool, const std::string&, CallDone done) override {
    {
      std::lock_guard lock(mu);
      killed.push_back(actor);
    }
    done(std::string());
  }
  void Save(const std::string&, uint64_t, std::string, std::function<void(Status)>) override {}
  void Failed(const std::string&, uint64_t, const Error&) override {}
  void Exited(const std::string&, uint64_t, const Error&) override {}

  std::mutex mu;
  std::vector<ActorSpec> created;
  std::vector<std::string> killed;
  std::optional<Error> refuse;

 private:
  const std::string owner_ = "driver/d";
};

class TaskPoolTest : public ::testing::Test {
 protected:
  struct Answer {
    std::optional<Result<std::string>> result;
    std::shared_ptr<PendingCall> task;
    [[nodiscard]] std::string text() const {
      if (!result) return "nothing yet";
      return result->ok() ? **result : result->error().message;
    }
  };

  TaskPoolTest() {
    network_.RunFor(SteadyClock().Now() - network_.Now());  // Deadlines are read off a real clock.
    caller_ = Make("caller");
  }
  ~TaskPoolTest() override {
    world_.gate.Set();
    caller_->Stop(kSoon);
    for (const auto& host : hosts_) host->Stop(kSoon);
  }
  std::shared_ptr<ActorSystem> Make(const std::string& name) {
    return MakeSystem(network_, mails_, directory_client_, name);
  }
  std::shared_ptr<Answer> Submit(const std::string& argument, const std::string& task = "say",
                                 const TaskOptions& options = {}) {
    auto answer = std::make_shared<Answer>();
    answer->task = pool().Submit(options, task, argument, [answer](auto result) {
      EXPECT_FALSE(answer->result) << "settled twice";
      answer->result = std::move(result);
    });
    return answer;
  }
  // The runner that was asked for as this one gets a process.
  void Place(size_t index) {
    const std::string id = Created().at(index).actor;
    const std::string name = "runner" + std::to_string(index);
    hosts_.push_back(Make(name));
    ActorBlueprint blueprint;
    blueprint.type = "Runner";
    const ActorAddress address =
        *hosts_.back()->HostInstance(std::make_unique<Runner>(&world_, name), blueprint, id, 1, "");
    caller_->SetWhereabouts({id, ActorState::kAlive, 1, address.process, {}});
  }
  void Dies(size_t index, const std::string& why) {
    caller_->SetWhereabouts({Created().at(index).actor,
                             ActorState::kDead,
                             1,
                             {},
                             ToChain(Error{ErrorCode::kPeerGone, why})});
  }
  // The first runner is busy until the gate opens, the second idle. The call of the first; nothing
  // if it does not come to that.
  std::shared_ptr<Answer> OneRunsAndOneIsIdle() {
    const auto runs = Submit("runs", "wait");
    const auto done = Submit("done");
    Place(0);
    if (!Until([&] { return Ran().size() == 1; })) return nullptr;
    Place(1);
    return Until([&] { return done->result.has_value(); }) ? runs : nullptr;
  }
  bool Until(const std::function<bool()>& done) { return actors::Until(network_, mails_, done); }
  // Whatever is on its way arrives.
  void Settle() {
    int steps = 0;
    (void)Until([&] { return ++steps > 300; });
  }
  std::vector<ActorSpec> Created() {
    std::lock_guard lock(directory_client_->mu);
    return directory_client_->created;
  }
  std::vector<std::string> Killed() {
    std::lock_guard lock(directory_client_->mu);
    return directory_client_->killed;
  }
  std::vector<std::string> Ran() {
    std::lock_guard lock(world_.mu);
    return world_.ran;
  }
  TaskPool& pool() { return caller_->tasks(); }

  PoolWorld world_;
  LoopbackNetwork network_{7};
  std::shared_ptr<Asked> directory_client_ = std::make_shared<Asked>();
  std::map<std::string, Mailing*> mails_;
  std::shared_ptr<ActorSystem> caller_;
  std::vector<std::shared_ptr<ActorSystem>> hosts_;
};

TEST_F(TaskPoolTest, ARunnerTakesOneAfterTheOther) {
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 10; ++i) answers.push_back(Submit(std::to_string(i)));
  EXPECT_THAT(Created(), SizeIs(kRunnersFirst)) << "not one for each";
  Place(1);  // The other gets no room, and nobody waits for it.
  ASSERT_TRUE(Until([&] { return answers.back()->result.has_value(); }));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(answers[i]->text(), std::to_string(i));
  EXPECT_THAT(Ran(), SizeIs(10));
  EXPECT_EQ(Ran()[9], "runner1 9");
  const size_t created = Created().size();
  EXPECT_LE(created, kRunnersFirst + 1) << "at most one for that which has come";
  const auto later = Submit("later");
  ASSERT_TRUE(Until([&] { return later->result.has_value(); }));
  EXPECT_THAT(Created(), SizeIs(created)) << "there is one that is free";
}

TEST_F(TaskPoolTest, ABusyRunnerIsGivenNothingElse) {
  const auto first = Submit("first", "wait");
  Place(0);
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  const auto second = Submit("second");
  Settle();
  EXPECT_THAT(Ran(), ElementsAre("runner0 first"));
  ASSERT_THAT(Created(), SizeIs(2));
  Place(1);
  ASSERT_TRUE(Until([&] { return second->result.has_value(); }));
  EXPECT_EQ(Ran().back(), "runner1 second");
  EXPECT_FALSE(first->result);
}

TEST_F(TaskPoolTest, WhoIsQuickDoesNotWaitBehindWhoIsNot) {
  const auto first = Submit("first");
  Place(0);
  ASSERT_TRUE(Until([&] { return first->result.has_value(); }));
  const auto slow = Submit("slow", "wait");
  const auto quick = Submit("quick");
  ASSERT_TRUE(Until([&] { return Created().size() == 2; }));
  Place(1);
  EXPECT_TRUE(Until([&] { return quick->result.has_value(); }));
  EXPECT_FALSE(slow->result);
}

TEST_F(TaskPoolTest, KindsHaveRunnersOfTheirOwn) {
  TaskOptions wide;
  wide.resources = {{"CPU", 4}};
  const auto narrow_task = Submit("narrow");
  const auto wide_task = Submit("wide", "say", wide);
  ASSERT_THAT(Created(), SizeIs(2));
  EXPECT_EQ(Created()[1].wish.resources.at("CPU"), 4);
  Place(1);
  ASSERT_TRUE(Until([&] { return wide_task->result.has_value(); }));
  Settle();
  EXPECT_FALSE(narrow_task->result);
}

TEST_F(TaskPoolTest, ACancelledTaskDoesNotBeginOrIsToldOfIt) {
  const auto runs = Submit("runs", "wait");
  const auto waits = Submit("waits");
  waits->task->Cancel({});
  EXPECT_THAT(waits->text(), HasSubstr("cancelled"));
  Place(0);
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  runs->task->Cancel({});
  EXPECT_THAT(runs->text(), HasSubstr("cancelled"));
  const auto next = Submit("next");
  ASSERT_TRUE(Until([&] { return next->result.has_value(); })) << "the runner is free again";
  EXPECT_THAT(Ran(), ElementsAre("runner0 runs", "runner0 next"));
}

TEST_F(TaskPoolTest, ATaskWhoseTimeIsUpIsToldOfIt) {
  TaskOptions bounded;
  bounded.timeout = seconds(600);  // Of the network's time, which does not wait for its start.
  const auto runs = Submit("runs", "wait", bounded);
  Place(0);
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  network_.RunFor(bounded.timeout);
  ASSERT_TRUE(Until([&] { return runs->result.has_value(); }));
  EXPECT_EQ(runs->result->error().code, ErrorCode::kDeadlineExceeded);
  const auto next = Submit("next");
  ASSERT_TRUE(Until([&] { return next->result.has_value(); })) << "the runner is free again";
  EXPECT_THAT(Ran(), ElementsAre("runner0 runs", "runner0 next"));
}

TEST_F(TaskPoolTest, ARunnerWhoseCancelledTaskGoesOnIsGivenNothingElse) {
  const auto insists = Submit("insists", "insist");
  Place(0);
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  insists->task->Cancel({});
  EXPECT_THAT(insists->text(), HasSubstr("cancelled"));
  const auto next = Submit("next");
  Settle();
  ASSERT_THAT(Created(), SizeIs(2)) << "another runner is asked for";
  Place(1);
  ASSERT_TRUE(Until([&] { return next->result.has_value(); }));
  EXPECT_EQ(Ran().back(), "runner1 next");
  const auto idle = [&] {
    pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
    return Killed();
  };
  (void)idle();
  ASSERT_TRUE(Until([&] { return !Killed().empty(); }));
  EXPECT_THAT(Killed(), ElementsAre(Created()[1].actor)) << "the first one is busy";
  world_.gate.Set();
  ASSERT_TRUE(Until([&] { return idle().size() == 2; })) << "when it is over it is free";
}

TEST_F(TaskPoolTest, WhoseRunnersCannotBeIsToldWhy) {
  const auto one = Submit("one");
  const auto two = Submit("two");
  Dies(0, "its plugin is missing");
  Settle();
  EXPECT_FALSE(one->result) << "another is on its way";
  EXPECT_THAT(Created(), SizeIs(2)) << "no third, which would fail the same";
  Dies(1, "its plugin is missing");
  ASSERT_TRUE(Until([&] { return one->result && two->result; }));
  for (const auto& task : {one, two}) {
    EXPECT_THAT(task->text(), HasSubstr("no process for the task"));
    EXPECT_THAT(task->text(), HasSubstr("its plugin is missing"));
  }
  directory_client_->refuse = Error{ErrorCode::kInvalidArgument, "CPU 1.5 is odd"};
  EXPECT_THAT(Submit("three")->text(), HasSubstr("CPU 1.5 is odd"));
}

TEST_F(TaskPoolTest, WhoCannotStartBesideOthersIsTriedAgainLater) {
  const auto runs = Submit("runs", "wait");
  const auto waits = Submit("waits");
  Place(0);
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  Dies(1, "no memory");
  Settle();
  network_.RunFor(2 * kRunnerRetry);  // The time of the loop, not of the pool.
  Settle();
  EXPECT_FALSE(waits->result) << "there is one that works";
  EXPECT_THAT(Created(), SizeIs(2));
  pool().Clean(SteadyClock().Now() + 2 * kRunnerRetry);
  EXPECT_THAT(Created(), SizeIs(3));
  Dies(2, "no memory");
  Settle();
  EXPECT_THAT(Created(), SizeIs(3));
  Dies(0, "it was killed");  // Nobody is left, but it is known to work.
  Settle();
  EXPECT_FALSE(waits->result);
  ASSERT_THAT(Created(), SizeIs(4));
  Place(3);
  ASSERT_TRUE(Until([&] { return waits->result.has_value(); }));
  EXPECT_EQ(waits->text(), "waits");
}

TEST_F(TaskPoolTest, ARunnerThatDiesAfterItsTaskIsReplaced) {
  const auto first = Submit("first");
  Place(0);
  ASSERT_TRUE(Until([&] { return first->result.has_value(); }));
  Dies(0, "it was killed");
  Settle();
  const auto second = Submit("second");
  ASSERT_THAT(Created(), SizeIs(2));
  Place(1);
  ASSERT_TRUE(Until([&] { return second->result.has_value(); }));
  EXPECT_EQ(Ran().back(), "runner1 second");
}

TEST_F(TaskPoolTest, ATimeOutSaysWhatItWaitedFor) {
  TaskOptions soon;
  soon.timeout = milliseconds(50);
  const auto task = Submit("x", "say", soon);
  caller_->SetWhereabouts({Created().at(0).actor,
                           ActorState::kPending,
                           0,
                           {},
                           ToChain(Error{ErrorCode::kUnavailable, "busy: CPU 1 of 1 in use"})});
  ASSERT_TRUE(Until([&] { return task->result.has_value(); }));
  EXPECT_THAT(task->text(), HasSubstr("not done within its time-out"));
  EXPECT_THAT(task->text(), HasSubstr("busy: CPU 1 of 1 in use"));
  Settle();
  EXPECT_THAT(Ran(), IsEmpty());
}

TEST_F(TaskPoolTest, WhoIsIdleOrNotNeededIsEnded) {
  ASSERT_TRUE(OneRunsAndOneIsIdle());
  pool().Clean(SteadyClock().Now() + kRunnerIdle / 2);
  EXPECT_THAT(Killed(), IsEmpty());
  pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
  ASSERT_TRUE(Until([&] { return !Killed().empty(); }));
  EXPECT_THAT(Killed(), ElementsAre(Created()[1].actor)) << "the other one is busy";
  const auto waits = Submit("waits", "of another code");
  pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
  EXPECT_THAT(Killed(), SizeIs(1)) << "somebody waits for it";
  waits->task->Cancel({});
  pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
  Submit("last");  // What was cancelled is noticed with the next one.
  EXPECT_THAT(Created(), SizeIs(3)) << "the one that comes serves it";
}

TEST_F(TaskPoolTest, TheEnvironmentSaysHowLongWhoIsIdleIsKept) {
  const auto after_idle = [&](const char* setting, Duration idle, bool expected) {
    ::setenv("TROUPE_TASK_IDLE_S", setting, 1);
    caller_->Stop(kSoon);
    caller_ = Make(std::string("caller of ") + setting);
    directory_client_->created.clear();
    directory_client_->killed.clear();
    world_.ran.clear();
    const auto runs = OneRunsAndOneIsIdle();
    ::unsetenv("TROUPE_TASK_IDLE_S");
    EXPECT_TRUE(runs);
    pool().Clean(SteadyClock().Now() + idle);
    if (expected) (void)Until([&] { return !Killed().empty(); });
    Settle();
    EXPECT_EQ(!Killed().empty(), expected) << setting;
  };
  after_idle("2.5", seconds(2), false);
  after_idle("2.5", seconds(4), true);
  after_idle("soon", kRunnerIdle / 2, false);
  after_idle("-1", kRunnerIdle / 2, false);
  after_idle("", 2 * kRunnerIdle, true);
}

TEST_F(TaskPoolTest, OfWhoIsIdleHalfGivesWayAtEachWord) {
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(Submit(std::to_string(i), "wait"));
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(Until([&] { return Created().size() > i; }));
    Place(i);
  }
  ASSERT_TRUE(Until([&] { return Ran().size() == 4; }));
  world_.gate.Set();
  for (const auto& answer : answers) ASSERT_TRUE(Until([&] { return answer->result.has_value(); }));
  Settle();
  for (const size_t gone : {2U, 3U, 4U, 4U}) {
    pool().GiveWay(SteadyClock().Now(), {"stranger"});
    EXPECT_TRUE(Until([&] { return Killed().size() >= gone; }));
    Settle();
    EXPECT_THAT(Killed(), SizeIs(gone));
  }
}

TEST_F(TaskPoolTest, WhoIsIdleGivesWayAtOnceToOthersWhoWait) {
  const auto runs = OneRunsAndOneIsIdle();
  ASSERT_TRUE(runs);
  const Time now = SteadyClock().Now();
  pool().GiveWay(now, {});
  EXPECT_THAT(Killed(), IsEmpty());
  pool().GiveWay(now, {"stranger"});
  ASSERT_TRUE(Until([&] { return !Killed().empty(); }));
  EXPECT_THAT(Killed(), ElementsAre(Created()[1].actor)) << "the other one is busy";
  world_.gate.Set();
  ASSERT_TRUE(Until([&] { return Killed().size() == 2; })) << "and goes when it is not";
  EXPECT_EQ(runs->text(), "runs");
}

TEST_F(TaskPoolTest, WhoseTasksHaveMadeWhatOthersNeedIsKept) {
  ASSERT_TRUE(OneRunsAndOneIsIdle());
  world_.needed = true;
  pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
  pool().GiveWay(SteadyClock().Now(), {"stranger"});
  Settle();
  EXPECT_THAT(Killed(), IsEmpty());
  const auto next = Submit("next");
  ASSERT_TRUE(Until([&] { return next->result.has_value(); })) << "it takes tasks as before";
  world_.needed = false;
  pool().Clean(SteadyClock().Now() + 2 * kRunnerIdle);
  // While it was being asked the next task may have wanted a third one, which goes as well.
  ASSERT_TRUE(Until([&] { return std::ranges::count(Killed(), Created()[1].actor) == 1; }));
  EXPECT_THAT(Killed(), Not(Contains(Created()[0].actor))) << "it is busy";
}

TEST_F(TaskPoolTest, NobodyGivesWayAnyMoreWhenNobodyWaits) {
  const auto done = Submit("done");
  pool().GiveWay(SteadyClock().Now(), {"stranger"});
  EXPECT_THAT(Killed(), IsEmpty()) << "it has a task to run";
  pool().GiveWay(SteadyClock().Now(), {});
  Place(0);
  ASSERT_TRUE(Until([&] { return done->result.has_value(); }));
  Settle();
  EXPECT_THAT(Killed(), IsEmpty());
}

TEST_F(TaskPoolTest, TheLastWordThatNobodyWaitsMayBeLost) {
  const auto runs = Submit("runs", "wait");
  Place(0);
  ASSERT_TRUE(Until([&] { return Ran().size() == 1; }));
  pool().GiveWay(SteadyClock().Now() - 2 * kRoomWanted, {"stranger"});
  world_.gate.Set();
  ASSERT_TRUE(Until([&] { return runs->result.has_value(); }));
  Settle();
  EXPECT_THAT(Killed(), IsEmpty());
}

// More come than have room; when the tasks are done, who has it is kept.
TEST_F(TaskPoolTest, WhoIsIdleDoesNotGiveWayToItsLike) {
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(Submit(std::to_string(i)));
  Place(0);
  ASSERT_TRUE(Until([&] { return answers.back()->result.has_value(); }));
  const std::vector<ActorSpec> created = Created();
  std::vector<std::string> waiting;
  for (size_t i = 1; i < created.size(); ++i) waiting.push_back(created[i].actor);
  pool().GiveWay(SteadyClock().Now(), {waiting[0]});
  const std::vector<std::string> killed = Killed();
  EXPECT_THAT(killed, ::testing::UnorderedElementsAreArray(waiting)) << "none waits in vain";
  TaskOptions wide;
  wide.resources = {{"CPU", 4}};
  (void)Submit("wide", "say", wide);
  pool().GiveWay(SteadyClock().Now(), {Created().back().actor});
  ASSERT_TRUE(Until([&] { return Killed().back() == created[0].actor; }))
      << "another kind is no like";
}

TEST_F(TaskPoolTest, AfterItsEndEveryTaskIsAnswered) {
  const auto waits = Submit("waits");
  pool().Stop(Error{ErrorCode::kCancelled, "it is over"});
  EXPECT_EQ(waits->text(), "it is over");
  EXPECT_THAT(Submit("late")->text(), HasSubstr("was shut down"));
  Place(0);
  Settle();
  EXPECT_THAT(Ran(), IsEmpty());
}

}  // namespace
}  // namespace troupe::actors
