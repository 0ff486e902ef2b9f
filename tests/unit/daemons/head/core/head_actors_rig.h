// A head with placed actors on virtual time, with a scripted node, its processes and a driver.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemons/head/core/head_actors.h"
#include "daemons/head/head_service.h"
#include "runtime/wire.h"
#include "tests/support/memory_spool.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {

using actors::ActorState;

class HeadActorsTest : public ::testing::Test {
 protected:
  HeadActorsTest() { Restart(); }
  ~HeadActorsTest() override { lane_.Stop(); }

  // A new head in place of the old one, with the same store.
  void Restart() {
    head_.reset();
    head_ = std::make_unique<HeadService>(&transport_, &lane_, &store_, &spool_, HeadOptions{});
    ASSERT_TRUE(head_->Start().ok());
    Settle();
  }
  void Settle() {
    ASSERT_TRUE(SettleLane(lane_, transport_)) << "the store is stuck";
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
    hello.resources = {{"CPU", cpus_}, {"GPU", 2}};
    hello.heard = heard_;
    if (!notice.empty()) hello.notice = {"preempt", "file", notice, 60'000};
    hello.ended = ended_;
    for (const auto& [process, lease] : running_)
      hello.workers.push_back(
          {process, 100, lease, unreaped_.contains(process), rooms_.at(process)});
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
  void Ask(actors::ActorVerb verb, const std::string& actor, uint64_t request,
           uint64_t incarnation = 0) {
    Say(actors::kFrameActorRequest, "driver",
        actors::ActorRequest{request, verb, actor, incarnation, "asked for"});
  }
  // The process has its actor and can be called.
  void Start(const std::string& process) {
    Hello(process, "");
    Hello(process, running_.at(process));
  }
  void Hello(const std::string& process, const std::string& run) {
    WorkerHello hello;
    hello.process = process;
    hello.node = "n";
    hello.pid = 100;
    hello.host = "h";
    hello.assignment = run;
    if (!run.empty()) hello.address = {process + "-calls", "ipc://" + process, ""};
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
  MemorySpool spool_;
  std::unique_ptr<HeadService> head_;
  double cpus_ = 8;
  bool lose_orders_ = false;
  bool kills_work_ = true;
  bool node_speaks_ = true;
  bool driver_speaks_ = true;
  NodeAnswer heard_;
  std::map<std::string, std::string> running_;  // Process -> lease.
  std::map<std::string, WorkerRoom> rooms_;     // As they were started with.
  std::set<std::string> unreaped_;              // Of those.
  std::vector<std::string> started_;
  std::vector<std::string> ended_;  // As the node tells a new head.
  std::vector<std::string> killed_;
  std::map<std::string, actors::ActorAssignment> assigned_;
  std::map<std::string, std::string> dead_;  // Reasons, as told to the driver.
  std::vector<actors::ActorSaved> saved_;
  std::vector<ReadLog> read_;
  std::vector<DriverReply> replies_;
  std::function<void(const std::string& to, const std::string& frame)> on_sent_;

 private:
  void Sort() {
    for (const auto& [to, frame] : transport_.TakeSent()) {
      const uint8_t type = *wire::PeekType(frame);
      if (on_sent_) on_sent_(to, frame);
      if (type == kFrameStartWorker && !lose_orders_) {
        const StartWorker start = *wire::Decode<StartWorker>(type, frame);
        started_.push_back(start.process);
        running_[start.process] = start.lease;
        rooms_[start.process] = start.room;
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
        for (const actors::ActorLocation& w : states.actors)
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

}  // namespace troupe::daemons::testing
