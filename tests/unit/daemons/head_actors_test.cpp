// The head and placed actors, on virtual time, with a scripted node, its processes and a driver.
#include "daemons/head_actors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>

#include "daemons/head_service.h"
#include "runtime/wire.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {
namespace {

using actors::ActorState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class HeadActorsTest : public ::testing::Test {
 protected:
  HeadActorsTest() { Restart(); }
  ~HeadActorsTest() override { lane_.Stop(); }

  // A new head in place of the old one, with the same store.
  void Restart() {
    head_.reset();
    head_ = std::make_unique<HeadService>(&transport_, &lane_, &store_, HeadOptions{});
    ASSERT_TRUE(head_->Start().ok());
    Settle();
  }
  void Settle() {
    for (bool more = true; more;) {
      std::mutex mu;
      std::condition_variable cv;
      bool done = false;
      ASSERT_TRUE(lane_
                      .Post([&] {
                        std::lock_guard lock(mu);
                        done = true;
                        cv.notify_one();
                      })
                      .ok());
      {
        std::unique_lock lock(mu);
        cv.wait(lock, [&] { return done; });
      }
      more = transport_.RunPosted();
    }
    Sort();
  }
  template <class T>
  void Say(uint8_t type, const std::string& from, const T& message) {
    transport_.Deliver(from, wire::Encode(type, message));
    Settle();
  }
  void Pass(Duration d) {
    const Time end = clock_.Now() + d;
    while (clock_.Now() < end) {
      const Time until = std::min(end, clock_.Now() + milliseconds(100));
      while (transport_.RunTimer(until)) {
      }
      Settle();
      if (node_speaks_) NodeSays();
      if (driver_speaks_) Beat("driver", "driver/d");
    }
  }
  void NodeSays(const std::string& notice = "") {
    NodeHello hello;
    hello.node = "n";
    hello.incarnation = 1;
    hello.host = "h";
    hello.resources = {{"CPU", cpus_}};
    hello.heard = heard_;
    hello.notice = notice;
    hello.notice_ms = 60'000;
    for (const auto& [process, lease] : running_)
      hello.workers.push_back({process, 100, lease, false});
    Say(kFrameNodeHello, "node-n", hello);
  }
  void Beat(const std::string& from, const std::string& owner) {
    actors::FollowActors follow{owner, log_, revision_, version_, false, {}, {}};
    if (from != "driver") follow.log = "";
    Say(actors::kFrameFollowActors, from, follow);
  }
  static actors::ActorSpec Spec(const std::string& id, int32_t max_restarts = 0) {
    actors::ActorSpec spec;
    spec.actor = id;
    spec.type = "T";
    spec.owner = "driver/d";
    spec.blueprint = "blueprint of " + id;
    spec.wish.resources = {{"CPU", 1}};
    spec.max_restarts = max_restarts;
    return spec;
  }
  void Create(const actors::ActorSpec& spec, uint64_t request = 1) {
    ++version_;
    Say(actors::kFrameFollowActors, "driver",
        actors::FollowActors{"driver/d", log_, revision_, version_, true, {spec.actor}, {}});
    Say(actors::kFrameCreateActor, "driver", actors::CreateActor{request, spec});
  }
  void Ask(const std::string& kind, const std::string& actor, uint64_t request,
           uint64_t incarnation = 0) {
    Say(actors::kFrameActorRequest, "driver",
        actors::ActorRequest{request, kind, actor, incarnation, "asked for"});
  }
  // The process has its actor and can be called.
  void Start(const std::string& process) {
    Hello(process, "");
    Hello(process, running_.at(process));
  }
  void Hello(const std::string& process, const std::string& job) {
    WorkerHello hello;
    hello.process = process;
    hello.node = "n";
    hello.pid = 100;
    hello.host = "h";
    hello.job = job;
    if (!job.empty()) hello.address = {process + "-calls", "ipc://" + process, ""};
    Say(kFrameWorkerHello, process, hello);
  }
  void Exit(const std::string& process, int code = -9) {
    running_.erase(process);
    Say(kFrameWorkerExited, "node-n", WorkerExited{process, true, "killed by signal 9", code, {}});
  }
  // An actor that can be called; its process.
  std::string Alive(const actors::ActorSpec& spec) {
    Create(spec);
    Pass(milliseconds(200));
    if (started_.empty()) return "";
    Start(started_.back());
    EXPECT_EQ(State(spec.actor), ActorState::kAlive);
    return started_.back();
  }
  // As a process that says what the store keeps of it.
  [[nodiscard]] ActorState State(const std::string& actor) {
    const auto record = store_.Get("actor/" + actor + "/life");
    if (!record.ok() || !record->has_value()) return ActorState::kDead;
    return wire::Decode<actors::ActorLife>(actors::kActorRecord, **record)->state;
  }
  [[nodiscard]] uint64_t Incarnation(const std::string& actor) {
    const auto record = store_.Get("actor/" + actor + "/life");
    return wire::Decode<actors::ActorLife>(actors::kActorRecord, **record)->incarnation;
  }
  std::vector<actors::ActorAnswer> Answers() { return std::exchange(answers_, {}); }

  FakeClock clock_;
  ScriptedTransport transport_{&clock_};
  MemoryStore store_{&clock_};
  BlockingLane lane_{"store"};
  std::unique_ptr<HeadService> head_;
  double cpus_ = 8;
  bool lose_orders_ = false;
  bool kills_work_ = true;
  bool node_speaks_ = true;
  bool driver_speaks_ = true;
  NodeAnswer heard_;
  std::map<std::string, std::string> running_;  // Process -> lease.
  std::vector<std::string> started_;
  std::vector<std::string> killed_;
  std::map<std::string, actors::ActorAssignment> assigned_;
  std::map<std::string, std::string> dead_;  // Reasons, as told to the driver.
  std::vector<actors::ActorSaved> saved_;
  std::vector<ReadLog> read_;
  std::vector<DriverReply> replies_;

 private:
  void Sort() {
    for (const auto& [to, frame] : transport_.TakeSent()) {
      const uint8_t type = *wire::PeekType(frame);
      if (type == kFrameStartWorker && !lose_orders_) {
        const StartWorker start = *wire::Decode<StartWorker>(type, frame);
        started_.push_back(start.process);
        running_[start.process] = start.job;
      } else if (type == kFrameNodeAnswer) {
        heard_ = *wire::Decode<NodeAnswer>(type, frame);
      } else if (type == kFrameKillWorker) {
        const KillWorker kill = *wire::Decode<KillWorker>(type, frame);
        killed_.push_back(kill.process);
        if (kills_work_ && running_.erase(kill.process) > 0)
          transport_.Deliver(
              "node-n",
              wire::Encode(kFrameWorkerExited, WorkerExited{kill.process, true, "ended", 0, {}}));
      } else if (type == kFrameReadLog) {
        read_.push_back(*wire::Decode<ReadLog>(type, frame));
      } else if (type == kFrameDriverReply) {
        replies_.push_back(*wire::Decode<DriverReply>(type, frame));
      } else if (type == kFrameAssignment) {
        const Assignment given = *wire::Decode<Assignment>(type, frame);
        assigned_[to] =
            *wire::Decode<actors::ActorAssignment>(actors::kActorAssignment, given.payload);
      } else if (type == actors::kFrameActorAnswer) {
        answers_.push_back(*wire::Decode<actors::ActorAnswer>(type, frame));
      } else if (type == actors::kFrameActorSaved) {
        saved_.push_back(*wire::Decode<actors::ActorSaved>(type, frame));
      } else if (type == actors::kFrameActorStates && to == "driver") {
        const actors::ActorStates states = *wire::Decode<actors::ActorStates>(type, frame);
        log_ = states.log;
        revision_ = states.revision;
        for (const actors::Whereabouts& w : states.actors)
          if (w.state == ActorState::kDead) dead_[w.actor] = actors::FromChain(w.reason).message;
      }
    }
    if (transport_.RunPosted()) Sort();
  }

  std::vector<actors::ActorAnswer> answers_;
  std::string log_;
  uint64_t revision_ = 0;
  uint64_t version_ = 0;
};

TEST_F(HeadActorsTest, AnActorIsPlacedMadeAndCanBeCalled) {
  NodeSays();
  Create(Spec("a"));
  EXPECT_EQ(Answers().at(0).address.actor, "a");
  ASSERT_THAT(started_, SizeIs(1));
  EXPECT_EQ(running_.at(started_[0]), "actor/a#1");
  Hello(started_[0], "");
  EXPECT_EQ(assigned_.at(started_[0]).blueprint, "blueprint of a");
  EXPECT_EQ(State("a"), ActorState::kStarting);
  Hello(started_[0], "actor/a#1");
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(200));
  EXPECT_EQ(State("a"), ActorState::kAlive) << "its place is confirmed";
  EXPECT_THAT(killed_, IsEmpty());
}

TEST_F(HeadActorsTest, TheLogOfAnActorIsAskedOfItsNode) {
  const auto ask = [this](const std::string& whose, const std::string& node = "") {
    Say(kFrameQuery, "driver", Query{replies_.size() + 1, "log", whose, node, 10});
  };
  actors::ActorSpec spec = Spec("a");
  spec.name = "named";
  NodeSays();
  const std::string process = Alive(spec);
  ask("named");
  ASSERT_THAT(read_, SizeIs(1));
  EXPECT_EQ(read_[0].log, "worker-" + process);
  EXPECT_EQ(read_[0].lines, 10U);
  Say(kFrameLogTail, "node-n", LogTail{read_[0].number, 0, "", "/logs/x", "hello\n"});
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_THAT(replies_[0].json, HasSubstr(R"("text":"hello\n")"));
  Exit(process);  // The dead are asked for, too.
  ask("a");
  ask("named");
  EXPECT_THAT(read_, SizeIs(2)) << "the second is a repeat of the first";
  Pass(kLogLimit + milliseconds(500));
  ASSERT_THAT(replies_, SizeIs(2));
  EXPECT_THAT(replies_[1].message, HasSubstr("did not answer"));
  node_speaks_ = false;
  Pass(seconds(40));
  for (const auto& [whose, node, why] :
       {std::tuple("named", "", "node n is dead"), std::tuple("node", "n", "node n is dead"),
        std::tuple("node", "m", "no node m"), std::tuple("other", "", "no actor other"),
        std::tuple("", "", "no actor ")}) {
    ask(whose, node);
    EXPECT_THAT(replies_.back().message, HasSubstr(why)) << whose;
  }
  EXPECT_THAT(replies_, SizeIs(7));
}

TEST_F(HeadActorsTest, AnOrderThatIsLostIsGivenAgainAndIsNoDeath) {
  NodeSays();
  lose_orders_ = true;
  Create(Spec("a", 0));
  Pass(milliseconds(300));
  lose_orders_ = false;
  Pass(seconds(2));
  ASSERT_THAT(started_, SizeIs(1));
  Start(started_[0]);
  EXPECT_EQ(State("a"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, AProcessThatDiedBeforeItsFirstWordIsADeath) {
  NodeSays();
  Create(Spec("a", 0));
  NodeSays();  // It is listed.
  running_.clear();
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead) << dead_["a"];
}

TEST_F(HeadActorsTest, AProcessThatNeverSaysHelloIsEnded) {
  NodeSays();
  actors::ActorSpec spec = Spec("a", 1);
  spec.start_timeout_s = 5;
  Create(spec);
  Pass(seconds(4));
  EXPECT_THAT(killed_, IsEmpty());
  Pass(seconds(2));
  EXPECT_THAT(killed_, Contains(started_.at(0)));
  ASSERT_THAT(started_, SizeIs(2)) << "it may be started again";
  Pass(seconds(6));
  EXPECT_THAT(dead_["a"], HasSubstr("did not start within its time-out"));
}

TEST_F(HeadActorsTest, AConstructorThatFailsIsTheReason) {
  NodeSays();
  Create(Spec("a", 5));
  Hello(started_.at(0), "");
  const actors::ActorSaved failure{
      "", 0, actors::ToChain(Error{ErrorCode::kUserError, "start is negative"})};
  WorkerResult result;
  result.process = started_[0];
  result.job = "actor/a#1";
  result.payload = wire::Encode(actors::kFrameActorSaved, failure);
  Say(kFrameWorkerResult, started_[0], result);
  Say(kFrameWorkerResult, started_[0], result);
  EXPECT_THAT(dead_["a"], HasSubstr("start is negative"));
  EXPECT_THAT(started_, SizeIs(1));
}

TEST_F(HeadActorsTest, EachRequestTwiceIsOnce) {
  NodeSays();
  Create(Spec("a", -1), 1);
  Create(Spec("a", -1), 1);
  EXPECT_THAT(Answers(), SizeIs(2)) << "both are answered";
  ASSERT_THAT(started_, SizeIs(1));
  Start(started_[0]);
  Ask("restart", "a", 2);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(2));
  Start(started_[1]);
  Ask("restart", "a", 2);
  Pass(seconds(1));
  EXPECT_THAT(started_, SizeIs(2));
  Ask("failed", "a", 3, 2);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(3));
  Start(started_[2]);
  Ask("failed", "a", 3, 2);
  Ask("exited", "a", 4, 2);
  Pass(seconds(1));
  EXPECT_EQ(State("a"), ActorState::kAlive) << "they are of another incarnation";
  for (int i = 0; i < 2; ++i) Ask("kill", "a", 5);
  for (int i = 0; i < 2; ++i) Ask("owner_gone", "driver/d", 6);
  EXPECT_EQ(State("a"), ActorState::kDead);
  for (const actors::ActorAnswer& answer : Answers()) EXPECT_THAT(answer.error, IsEmpty());
  Ask("nonsense", "a", 7);
  EXPECT_THAT(Answers().at(0).error, SizeIs(1));
}

TEST_F(HeadActorsTest, WhatCannotBeIsRefusedAtOnce) {
  NodeSays();
  actors::ActorSpec odd = Spec("a");
  odd.wish.resources = {{"CPU", -1}};
  Create(odd);
  EXPECT_EQ(actors::FromChain(Answers().at(0).error).code, ErrorCode::kInvalidArgument);
  actors::ActorSpec group = Spec("b");
  group.wish.group = "no such group";
  Create(group);
  Pass(seconds(1));
  EXPECT_THAT(started_, IsEmpty());
  EXPECT_THAT(dead_["b"], HasSubstr("no such group"));
}

// ---- the head is restarted ----

TEST_F(HeadActorsTest, ARestartedHeadKeepsActorsAndTheirRoom) {
  cpus_ = 1;
  NodeSays();
  const std::string process = Alive(Spec("a"));
  Create(Spec("b"));
  EXPECT_THAT(started_, SizeIs(1)) << "there is no room";
  Restart();
  NodeSays();
  Pass(seconds(20));
  EXPECT_THAT(killed_, IsEmpty());
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(started_, SizeIs(1)) << "its room is still taken";
  EXPECT_EQ(State("b"), ActorState::kPending);
  Exit(process);
  Pass(seconds(1));
  EXPECT_THAT(started_, SizeIs(2)) << "and is given back";
}

TEST_F(HeadActorsTest, WhatWaitedIsPlacedAsSoonAsAllIsKnown) {
  cpus_ = 2;
  NodeSays();
  (void)Alive(Spec("a"));
  lose_orders_ = true;
  Restart();
  lose_orders_ = false;
  Create(Spec("b"));
  EXPECT_THAT(started_, SizeIs(1));
  NodeSays();
  EXPECT_THAT(started_, SizeIs(2)) << "no need to wait for the grace";
}

TEST_F(HeadActorsTest, WhoDiedWhileThereWasNoHeadIsStartedAgain) {
  NodeSays();
  const std::string process = Alive(Spec("a", 1));
  (void)Alive(Spec("b", 0));
  running_.clear();
  Restart();
  NodeSays();
  Pass(seconds(2));
  EXPECT_EQ(Incarnation("a"), 2u);
  EXPECT_EQ(State("b"), ActorState::kDead);
  EXPECT_THAT(started_, SizeIs(3));
}

TEST_F(HeadActorsTest, WhoseNodeDoesNotComeBackIsLostWhenTheGraceIsOver) {
  NodeSays();
  (void)Alive(Spec("a", 0));
  node_speaks_ = false;
  Restart();
  Pass(seconds(4));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead);
}

TEST_F(HeadActorsTest, AnActorThatBecameReadyMeanwhileIsFound) {
  NodeSays();
  Create(Spec("a"));
  Hello(started_.at(0), "");
  Restart();
  NodeSays();
  Hello(started_[0], "actor/a#1");
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(killed_, IsEmpty());
}

// The head dies between its order and its record of it.
TEST_F(HeadActorsTest, AProcessThatWasOrderedButNotRecordedIsTakenOver) {
  Create(Spec("a"));
  const std::string pending = **store_.Get("actor/a/life");
  NodeSays();
  ASSERT_THAT(started_, SizeIs(1));
  ASSERT_TRUE(store_.Put("actor/a/life", pending, seconds(1000)).ok());
  Restart();
  NodeSays();
  Pass(seconds(1));
  EXPECT_THAT(killed_, IsEmpty());
  Start(started_[0]);
  Pass(seconds(10));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  EXPECT_THAT(started_, SizeIs(1));
}

// ---- owners ----

TEST_F(HeadActorsTest, ASilentDriverLosesWhatItHasNotDetached) {
  NodeSays();
  (void)Alive(Spec("a", -1));
  actors::ActorSpec detached = Spec("b", -1);
  detached.detached = true;
  (void)Alive(detached);
  driver_speaks_ = false;
  Pass(seconds(14));
  EXPECT_EQ(State("a"), ActorState::kAlive);
  Pass(seconds(2));
  EXPECT_EQ(State("a"), ActorState::kDead);
  EXPECT_EQ(State("b"), ActorState::kAlive);
}

TEST_F(HeadActorsTest, AnOwnerThatWaitsForRoomIsNotSilent) {
  cpus_ = 2;
  NodeSays();
  const std::string owner = Alive(Spec("a", -1));
  actors::ActorSpec owned = Spec("b", -1);
  owned.owner = "actor/a";
  (void)Alive(owned);
  Create(Spec("c"));  // Takes its place.
  Exit(owner);
  cpus_ = 2;
  Pass(seconds(40));
  EXPECT_EQ(State("b"), ActorState::kAlive);
  Ask("kill", "a", 9);
  EXPECT_EQ(State("b"), ActorState::kDead);
}

// ---- state ----

TEST_F(HeadActorsTest, OnlyTheCurrentIncarnationMaySaveAndTheNextOneHasItsState) {
  NodeSays();
  const std::string first = Alive(Spec("a", -1));
  const actors::SaveActor save{"a", 1, 7, "seven"};
  Say(actors::kFrameSaveActor, first, save);
  Say(actors::kFrameSaveActor, first, save);
  EXPECT_THAT(saved_, SizeIs(2));
  for (const auto& answer : std::exchange(saved_, {})) EXPECT_THAT(answer.error, IsEmpty());
  Exit(first);
  Pass(seconds(1));
  ASSERT_THAT(started_, SizeIs(2));
  Say(actors::kFrameSaveActor, first, actors::SaveActor{"a", 1, 8, "a zombie's"});
  EXPECT_EQ(actors::FromChain(saved_.at(0).error).code, ErrorCode::kFenced);
  Start(started_[1]);
  EXPECT_EQ(assigned_.at(started_[1]).saved, "seven");
  EXPECT_EQ(assigned_.at(started_[1]).incarnation, 2u);
  const std::string large(actors::kActorStateBytesMax + 1, 'x');
  Say(actors::kFrameSaveActor, started_[1], actors::SaveActor{"a", 2, 9, large});
  EXPECT_EQ(actors::FromChain(saved_.at(1).error).code, ErrorCode::kResourceExhausted);
}

// ---- nodes ----

TEST_F(HeadActorsTest, WhatANodeTakesWithItIsStartedAgainElsewhere) {
  NodeSays();
  (void)Alive(Spec("a", 1));
  node_speaks_ = false;
  Pass(seconds(40));  // All nodes are silent, which may be the head's own fault: that takes longer.
  EXPECT_EQ(State("a"), ActorState::kPending);
  EXPECT_EQ(Incarnation("a"), 2u);
}

TEST_F(HeadActorsTest, ADrainMovesWhoCanBeStartedAgainAndLeavesTheRest) {
  NodeSays();
  const std::string moves = Alive(Spec("a", 1));
  const std::string stays = Alive(Spec("b", 0));
  NodeSays("spot notice");
  Pass(seconds(1));
  EXPECT_THAT(killed_, ElementsAre(moves));
  EXPECT_EQ(State("b"), ActorState::kAlive);
  EXPECT_EQ(Incarnation("a"), 2u);
  const auto life =
      wire::Decode<actors::ActorLife>(actors::kActorRecord, **store_.Get("actor/a/life"));
  EXPECT_EQ(life->restarts, 0);
}

TEST_F(HeadActorsTest, AProcessThatDoesNotEndIsKilledAgain) {
  NodeSays();
  const std::string process = Alive(Spec("a"));
  kills_work_ = false;
  Ask("kill", "a", 2);
  Pass(seconds(6));
  EXPECT_GE(killed_.size(), 3u);
  EXPECT_THAT(killed_, ::testing::Each(process));
}

}  // namespace
}  // namespace troupe::daemons::testing
