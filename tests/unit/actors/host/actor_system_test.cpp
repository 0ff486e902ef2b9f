// Two processes' actor systems over the simulated network: fibers are real, time runs ahead.
#include "actors/host/actor_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/core/actor_group_protocol.h"
#include "runtime/loopback_transport.h"
#include "tests/support/soon.h"
#include "tests/unit/actors/mailing.h"

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

using tests::kSoon;

// What the actors of a test have done, and what their incarnations leave to each other.
struct World {
  std::mutex mu;
  std::vector<std::string> ran;
  std::string saved;
  FiberEvent gate;
};

// Appends its argument; "wait" waits for the gate.
class Log final : public Instance {
 public:
  Log(World* world, bool saves) : world_(world), saves_(saves) {}
  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override {
    {
      std::lock_guard lock(world_->mu);
      world_->ran.push_back(arguments);
    }
    if (method == "wait") {
      if (Status s = context.call()->Await(world_->gate, kSoon, Time::Never()); !s.ok())
        return s.error();
    }
    if (method == "leave") context.Exit("done");
    state_ += arguments + ";";
    return arguments;
  }
  [[nodiscard]] bool saves() const override { return saves_; }
  Result<std::string> Save() override { return state_; }
  Status Restore(const std::string& state) override {
    state_ = state;
    return Status::Ok();
  }

 private:
  World* const world_;
  const bool saves_;
  std::string state_;
};

// Keeps state at once, and lets the test say where actors are.
class FakeDirectoryClient final : public ActorDirectoryClient {
 public:
  explicit FakeDirectoryClient(World* world) : world_(world) {}
  void Create(ActorSpec, OnAddress) override {}
  void Lookup(const std::string&, Duration, OnAddress) override {}
  void Group(GroupRequest, Duration, OnGroup) override {}
  void Collective(CollectiveRequest, Duration, OnCollective) override {}
  void Actors(ActorGroupRequest, Duration, OnActorGroup) override {}
  [[nodiscard]] const std::string& owner() const override { return owner_; }
  void Follow(const std::string& actor) override { ++followed[actor]; }
  void Unfollow(const std::string& actor) override {
    if (--followed[actor] == 0) followed.erase(actor);
  }
  void Link(const std::string&, const std::string&, bool, Duration, CallDone) override {}
  void Kill(const std::string&, bool, const std::string&, CallDone done) override {
    done(std::string());
  }
  void Save(const std::string&, uint64_t, std::string state,
            std::function<void(Status)> done) override {
    {
      std::lock_guard lock(world_->mu);
      if (!fails) world_->saved = std::move(state);
    }
    done(fails ? Status(Error{ErrorCode::kResourceExhausted, "too large"}) : Status::Ok());
  }
  void Failed(const std::string&, uint64_t incarnation, const Error&) override {
    failed = incarnation;
  }
  void Exited(const std::string&, uint64_t, const Error&) override { exited = true; }

  std::map<std::string, int> followed;
  std::atomic<bool> fails{false};
  std::atomic<uint64_t> failed{0};
  std::atomic<bool> exited{false};

 private:
  World* const world_;
  const std::string owner_ = "driver/d";
};

class ActorSystemTest : public ::testing::Test {
 protected:
  ActorSystemTest() {
    network_.RunFor(SteadyClock().Now() - network_.Now());  // Deadlines are read off a real clock.
    caller_ = Make("caller");
  }
  ~ActorSystemTest() override {
    world_.gate.Set();
    caller_->Stop(kSoon);
    for (const auto& host : hosts_) host->Stop(kSoon);
  }
  std::shared_ptr<ActorSystem> Make(const std::string& name) {
    return MakeSystem(network_, mails_, directory_client_, name);
  }
  // A process that hosts `incarnation` of the actor "a"; 0: one that is not placed.
  ActorAddress Host(uint64_t incarnation, bool saves = false, uint32_t depth = kMailboxDepthMax) {
    host_ = Make("host" + std::to_string(incarnation));
    hosts_.push_back(host_);
    ActorBlueprint blueprint;
    blueprint.type = "Log";
    blueprint.mailbox_depth = depth;
    return *host_->HostInstance(std::make_unique<Log>(&world_, saves), blueprint, "a", incarnation,
                                world_.saved);
  }
  void Alive(const ActorAddress& where) {
    caller_->SetWhereabouts({"a", ActorState::kAlive, where.incarnation, where.process, {}});
  }
  void Restarting(uint64_t incarnation) {
    caller_->SetWhereabouts({"a",
                             ActorState::kRestarting,
                             incarnation,
                             {},
                             ToChain(Error{ErrorCode::kPeerGone, "it was killed"})});
  }
  void Step() { actors::Step(network_, mails_); }
  bool Until(const std::function<bool()>& done) { return actors::Until(network_, mails_, done); }
  struct Call {
    std::optional<Result<std::string>> result;
    uint64_t number = 0;
  };
  std::shared_ptr<Call> Say(const std::string& text, bool retry = false,
                            const std::string& method = "say",
                            Duration timeout = std::chrono::hours(10)) {
    auto call = std::make_shared<Call>();
    call->number = ref_->Call(method, text, CallOptions{timeout, retry}, [call](auto result) {
      EXPECT_FALSE(call->result) << "settled twice";
      call->result = std::move(result);
    });
    return call;
  }
  std::string Wait(const std::shared_ptr<Call>& call) {
    if (!Until([&] { return call->result.has_value(); })) return "nothing came";
    return call->result->ok() ? **call->result : call->result->error().message;
  }
  std::vector<std::string> Ran() {
    std::lock_guard lock(world_.mu);
    return world_.ran;
  }

  World world_;
  LoopbackNetwork network_{7};
  std::shared_ptr<FakeDirectoryClient> directory_client_ =
      std::make_shared<FakeDirectoryClient>(&world_);
  std::map<std::string, Mailing*> mails_;
  std::shared_ptr<ActorSystem> caller_;
  std::shared_ptr<ActorSystem> host_;                // The last of
  std::vector<std::shared_ptr<ActorSystem>> hosts_;  // all, which are part of the network.
  std::shared_ptr<ActorRef> ref_;
};

TEST_F(ActorSystemTest, EveryCallHasItsEffectOnceAndInOrderWhateverTheNetworkDoes) {
  ref_ = caller_->Refer(Host(0, false, 8));
  LoopbackFaults faults;
  faults.loss = 0.2;
  faults.duplicate = 0.2;
  faults.delay_max = milliseconds(50);
  network_.SetFaults(faults);
  std::vector<std::shared_ptr<Call>> calls;
  std::vector<std::string> expected;
  for (int i = 0; i < 200; ++i) {
    expected.push_back(std::to_string(i));
    calls.push_back(Say(expected.back()));
    if (i % 10 == 0) Step();
    if (i == 100) {
      network_.Block("caller", "host0");
      for (int n = 0; n < 500; ++n) Step();
      network_.Heal();
      network_.Block("host0", "caller");
      for (int n = 0; n < 500; ++n) Step();
      network_.Heal();
    }
  }
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(Wait(calls[i]), expected[i]);
  EXPECT_EQ(Ran(), expected);
}

TEST_F(ActorSystemTest, ADeadlineEndsACallThatNobodyAnswers) {
  ref_ = caller_->Refer(Host(0));
  network_.Block("caller", "host0");
  EXPECT_THAT(Wait(Say("x", true, "say", seconds(5))), HasSubstr("did not answer"));
}

TEST_F(ActorSystemTest, ACancellationReachesWhatRunsAndWhatWaits) {
  ref_ = caller_->Refer(Host(0));
  const auto runs = Say("1", false, "wait");
  const auto waits = Say("2");
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  ref_->Cancel(waits->number, {});
  ref_->Cancel(runs->number, {});
  EXPECT_THAT(Wait(runs), HasSubstr("cancelled"));
  EXPECT_THAT(Wait(waits), HasSubstr("cancelled"));
  EXPECT_EQ(Wait(Say("3")), "3") << "it is free again";
  EXPECT_EQ(Ran(), (std::vector<std::string>{"1", "3"}));
}

TEST_F(ActorSystemTest, WhoWatchesIsToldOnceEvenIfWordsAreLost) {
  ref_ = caller_->Refer(Host(0));
  LoopbackFaults faults;
  faults.loss = 0.5;
  network_.SetFaults(faults);
  int told = 0;
  std::string why;
  (void)ref_->Monitor([&](const Error& e) {
    ++told;
    why = e.message;
  });
  const uint64_t other = ref_->Monitor([&](const Error&) { ADD_FAILURE() << "it was undone"; });
  ref_->Demonitor(other);
  Step();
  (void)host_->End("a", Error{ErrorCode::kPeerGone, "enough"});
  ASSERT_TRUE(Until([&] { return told > 0; }));
  network_.SetFaults({});
  for (int i = 0; i < 3000; ++i) Step();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(why, "enough");
  EXPECT_EQ(Wait(Say("x")), "enough");
  EXPECT_EQ(ref_->Monitor([&](const Error&) { ++told; }), 0u);
  EXPECT_EQ(told, 2) << "at once";
}

TEST_F(ActorSystemTest, ARestartFailsWhatWasOnItsWayAndRepeatsWhatMayBe) {
  const ActorAddress first = Host(1);
  ref_ = caller_->Refer(first);
  Alive(first);
  const auto once = Say("once", false, "wait");
  ASSERT_TRUE(Until([&] { return Ran().size() == 1; }));
  const auto again = Say("again", true);
  Step();
  host_->Stop(kSoon);  // As a process that is told to go: it answers nothing.
  for (int i = 0; i < 100; ++i) Step();
  EXPECT_FALSE(again->result) << "its next incarnation answers";
  Restarting(2);
  EXPECT_THAT(Wait(once), HasSubstr("may have run"));
  const auto later = Say("later");
  EXPECT_THAT(ref_->WhyNot(), HasSubstr("restarting: it was killed"));
  world_.gate.Set();
  Alive(Host(2));
  EXPECT_EQ(Wait(again), "again");
  EXPECT_EQ(Wait(later), "later");
  EXPECT_EQ(Ran(), (std::vector<std::string>{"once", "again", "later"}));
}

TEST_F(ActorSystemTest, WhoHasKilledAnActorHearsNothingOfItAnyMore) {
  const ActorAddress first = Host(1);
  ref_ = caller_->Refer(first);
  Alive(first);
  const auto runs = Say("x", true, "wait");
  ASSERT_TRUE(Until([&] { return !Ran().empty(); }));
  bool killed = false;
  ref_->Kill(true, "again", [&](const auto& ended) { killed = ended.ok(); });
  EXPECT_TRUE(killed);
  EXPECT_FALSE(runs->result) << "its next life answers";
  ref_->Kill(false, "enough", [&](const auto&) {
    ASSERT_TRUE(runs->result) << "settled before the killer goes on";
    EXPECT_THAT(runs->result->error().message, HasSubstr("enough"));
  });
  EXPECT_EQ(Wait(Say("y")), "enough") << "its process lives on, and the head has not told yet";
  world_.gate.Set();
}

TEST_F(ActorSystemTest, TheAnswerOfALifeThatWasGivenUpIsNotTaken) {
  const ActorAddress first = Host(1);
  ref_ = caller_->Refer(first);
  Alive(first);
  const auto call = Say("x", true, "wait");
  ASSERT_TRUE(Until([&] { return Ran().size() == 1; }));
  Restarting(2);  // Its process lives on, where the head does not hear it.
  Alive(Host(2));
  ASSERT_TRUE(Until([&] { return Ran().size() == 2; }));
  const ActorReply stale{"a", call->number, {}, "stale", false};
  (void)mails_["host1"]->Send("caller", wire::Encode(kFrameActorReply, stale));
  for (int i = 0; i < 100; ++i) Step();
  EXPECT_FALSE(call->result) << "it is with the next life";
  world_.gate.Set();
  EXPECT_EQ(Wait(call), "x");
}

TEST_F(ActorSystemTest, WhereStateIsSavedARepeatedCallHasItsEffectOnce) {
  const ActorAddress first = Host(1, true);
  ref_ = caller_->Refer(first);
  Alive(first);
  network_.Block("host1", "caller");  // Replies are lost.
  const auto call = Say("x", true);
  ASSERT_TRUE(Until([&] {
    std::lock_guard lock(world_.mu);
    return !world_.saved.empty();
  }));
  Restarting(2);
  Alive(Host(2, true));
  EXPECT_EQ(Wait(call), "x");
  EXPECT_EQ(Ran().size(), 1u);
}

TEST_F(ActorSystemTest, AFailureToSaveIsToldAndNothingIsAnswered) {
  const ActorAddress first = Host(1, true);
  ref_ = caller_->Refer(first);
  Alive(first);
  directory_client_->fails = true;
  const auto call = Say("x", true);
  ASSERT_TRUE(Until([&] { return directory_client_->failed.load() == 1; }));
  for (int i = 0; i < 1000; ++i) Step();
  EXPECT_FALSE(call->result);
  EXPECT_FALSE(directory_client_->exited.load());
  directory_client_->fails = false;
  Restarting(2);
  Alive(Host(2, true));
  EXPECT_EQ(Wait(call), "x");
}

TEST_F(ActorSystemTest, WhatIsReferredToIsFollowedAsLong) {
  const ActorAddress placed = Host(1);
  ref_ = caller_->Refer(placed);
  EXPECT_EQ(caller_->Refer(placed), ref_) << "the same as long as somebody holds it";
  auto beside = caller_->Refer(ActorSystem::HostOf(placed.process));
  EXPECT_EQ(directory_client_->followed.size(), 2u);
  beside.reset();
  ref_.reset();
  EXPECT_TRUE(directory_client_->followed.empty());
}

TEST_F(ActorSystemTest, StoppingFailsWhatIsOpenAndWhatComesLater) {
  ref_ = caller_->Refer(Host(0));
  network_.Block("caller", "host0");
  const auto open = Say("x");
  caller_->Stop(kSoon);
  EXPECT_THAT(Wait(open), HasSubstr("shut down"));
  EXPECT_THAT(Wait(Say("y")), HasSubstr("shut down"));
}

TEST_F(ActorSystemTest, FramesThatMakeNoSenseAreDropped) {
  ref_ = caller_->Refer(Host(0));
  auto stranger = network_.MakeTransport("stranger");
  for (const uint8_t type :
       {kFrameActorCall, kFrameActorReply, kFrameActorCheck, kFrameActorMissing, kFrameActorFull,
        kFrameActorRoom, kFrameActorCancel, kFrameActorWatch, kFrameActorDown}) {
    (void)stranger->Send("host0", wire::Encode(type, ActorRoom{"a"}) + "x");
    (void)stranger->Send("caller", wire::Encode(type, ActorRoom{"a"}) + "x");
  }
  (void)stranger->Send("host0", "junk");
  (void)stranger->Send("host0", wire::Encode(200, ActorRoom{"a"}));
  EXPECT_EQ(Wait(Say("1")), "1");
}

}  // namespace
}  // namespace troupe::actors
