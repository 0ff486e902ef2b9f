// Every request that a process makes of the head, with every fault that can befall it: lost, late,
// doubled, on the way there or back, or a head that is restarted before its answer has left, or
// before the store has what it did. Each is answered once, and has its effect once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "daemons/client/head_client.h"
#include "tests/unit/daemons/head/core/head_actors_rig.h"

namespace troupe::daemons::testing {
namespace {

using ::testing::SizeIs;

enum class Fault {
  kNone,
  kRequestLost,
  kRequestTwice,
  kRequestLate,
  kAnswerLost,
  kAnswerTwice,
  kAnswerLate,
  kHeadRestarted,  // It has done it, and its answer is lost with it.
  kHeadKilled,     // Before the store had what it did.
};

constexpr Duration kLate = milliseconds(1700);  // Repeats overtake it.

class RequestFaults : public HeadActorsTest {
 public:
  explicit RequestFaults(Fault fault) : fault_(fault) {
    on_sent_ = [this](const std::string& to, const std::string& frame) {
      if (to == "caller") Answer(frame);
    };
    NodeSays();
    link_.Start();
    (void)loop_.RunPosted();
  }
  ~RequestFaults() override {
    on_sent_ = nullptr;
    link_.Stop();
  }
  void TestBody() override {}

  [[nodiscard]] bool met() const { return met_; }
  // What is asked from now on meets the fault, once.
  void Arm() { armed_ = true; }
  void Run(Duration d) {
    Flush();
    for (const Time end = clock_.Now() + d; clock_.Now() < end;) {
      Pass(milliseconds(100));
      while (loop_.RunTimer(clock_.Now())) {
      }
      if (std::exchange(restart_, false)) {
        store_.SetAvailable(true);
        Restart();
      }
      Flush();
    }
  }
  // An actor of the caller that is alive.
  std::string Spawned(const std::string& id, int32_t max_restarts = 3) {
    actors::ActorSpec spec = Spec(id, max_restarts);
    spec.owner = link_.owner();
    link_.Create(spec, [](const auto&) {});
    Run(milliseconds(300));
    Start(started_.back());
    return started_.back();
  }
  auto Count() {
    return [this](const auto& result) {
      ++answered_;
      ok_ = result.ok();
    };
  }
  void Ask(const actors::GroupRequest& request) {
    link_.Group(request, seconds(30), [this](const Result<PlacementGroupStatus>& status) {
      Count()(status);
      if (status.ok()) group_ = *status;
    });
  }
  static actors::GroupRequest About(actors::PlacementGroupVerb verb, size_t add = 0) {
    actors::GroupRequest request;
    request.verb = verb;
    request.spec.group = "pg-1";
    request.spec.name = "g";
    request.add.assign(add, PlacementBundle{{{"CPU", 1}}, {}});
    return request;
  }
  // Without faults.
  void Made(size_t bundles) {
    Ask(About(actors::PlacementGroupVerb::kCreate, bundles));
    Run(milliseconds(300));
    answered_ = 0;
  }
  size_t Bundles() {
    group_ = {};
    link_.Group(About(actors::PlacementGroupVerb::kStatus), seconds(30),
                [this](const Result<PlacementGroupStatus>& status) {
                  if (status.ok()) group_ = *status;
                });
    Run(seconds(1));
    return group_.bundles.size();
  }
  [[nodiscard]] bool Stored(const std::string& key) {
    const auto value = store_.Get(key);
    return value.ok() && value->has_value();
  }

  using HeadActorsTest::Incarnation;
  using HeadActorsTest::Spec;
  using HeadActorsTest::started_;
  using HeadActorsTest::State;
  ScriptedTransport loop_{&clock_};
  HeadClient link_{&static_cast<Transport&>(loop_).loop(),
                   [this](const std::string& frame) { return Send(frame); }, "driver/c"};
  int answered_ = 0;
  bool ok_ = false;
  PlacementGroupStatus group_;

 private:
  static bool IsRequest(uint8_t type) {
    return type == actors::kFrameCreateActor || type == actors::kFrameActorRequest ||
           type == actors::kFrameGroupRequest || type == actors::kFrameSaveActor ||
           type == actors::kFrameOfferState;
  }
  static bool IsAnswer(uint8_t type) {
    return type == actors::kFrameActorAnswer || type == actors::kFrameActorSaved ||
           type == actors::kFrameSendState;
  }
  bool Meets(Fault fault) {
    if (!armed_ || fault_ != fault) return false;
    armed_ = false;
    met_ = true;
    return true;
  }
  void Later(Duration delay, std::function<void()> deliver) {
    held_.emplace_back(clock_.Now() + delay, std::move(deliver));
  }
  // Delivers what is due, and what comes of it.
  void Flush() {
    for (bool any = true; std::exchange(any, false);) {
      for (auto& [due, deliver] : std::exchange(held_, {})) {
        if (clock_.Now() < due) {
          held_.emplace_back(due, deliver);
        } else {
          any = true;
          deliver();
        }
      }
    }
  }
  Status Send(const std::string& frame) {
    const auto deliver = [this, frame] {
      transport_.Deliver("caller", frame);
      Settle();
    };
    const bool request = IsRequest(*wire::PeekType(frame));
    if (request && Meets(Fault::kRequestLost)) return Status::Ok();
    if (request && Meets(Fault::kRequestTwice)) Later({}, deliver);
    if (request && Meets(Fault::kHeadKilled)) {
      store_.SetAvailable(false);
      restart_ = true;
    }
    Later(request && Meets(Fault::kRequestLate) ? kLate : Duration::zero(), deliver);
    return Status::Ok();
  }
  void Answer(const std::string& frame) {
    const auto deliver = [this, frame] { (void)link_.OnFrame(frame); };
    const bool answer = IsAnswer(*wire::PeekType(frame));
    if (answer && Meets(Fault::kAnswerLost)) return;
    if (answer && Meets(Fault::kHeadRestarted)) {
      restart_ = true;
      return;
    }
    if (answer && Meets(Fault::kAnswerTwice)) Later({}, deliver);
    Later(answer && Meets(Fault::kAnswerLate) ? kLate : Duration::zero(), deliver);
  }

  const Fault fault_;
  bool armed_ = false;
  bool met_ = false;
  bool restart_ = false;
  std::vector<std::pair<Time, std::function<void()>>> held_;
};

struct Request {
  const char* name;
  void (*run)(RequestFaults&);  // Asks, lets time pass, and looks at the effect.
};

void Settled(RequestFaults& t) {
  t.Run(seconds(4));
  EXPECT_EQ(t.answered_, 1);
  EXPECT_TRUE(t.ok_);
}

const Request kRequests[] = {
    {"Create",
     [](RequestFaults& t) {
       t.Arm();
       actors::ActorSpec spec = RequestFaults::Spec("a");
       spec.owner = t.link_.owner();
       t.link_.Create(spec, t.Count());
       Settled(t);
       EXPECT_THAT(t.started_, SizeIs(1));
     }},
    {"Lookup",
     [](RequestFaults& t) {
       actors::ActorSpec spec = RequestFaults::Spec("a");
       spec.owner = t.link_.owner();
       spec.name = "till";
       t.link_.Create(spec, [](const auto&) {});
       t.Arm();
       t.link_.Lookup("till", seconds(30), t.Count());
       Settled(t);
     }},
    {"Kill",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       t.Arm();
       t.link_.Kill("a", false, "enough", t.Count());
       Settled(t);
       EXPECT_EQ(t.State("a"), ActorState::kDead);
       EXPECT_THAT(t.started_, SizeIs(1));
     }},
    {"Restart",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       t.Arm();
       t.link_.Kill("a", true, "again", t.Count());
       Settled(t);
       EXPECT_EQ(t.Incarnation("a"), 2U);
     }},
    {"Failed",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       t.Arm();
       t.link_.Failed("a", 1, Error{ErrorCode::kInternal, "cannot go on"});
       t.Run(seconds(4));
       EXPECT_EQ(t.Incarnation("a"), 2U);
     }},
    {"Exited",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       t.Arm();
       t.link_.Exited("a", 1, Error{ErrorCode::kPeerGone, "done"});
       t.Run(seconds(4));
       EXPECT_EQ(t.State("a"), ActorState::kDead);
     }},
    {"Save",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       t.Arm();
       t.link_.Save("a", 1, "state", t.Count());
       Settled(t);
       EXPECT_TRUE(t.Stored("actor_state/a"));
     }},
    {"Link",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       (void)t.Spawned("b");
       t.Arm();
       t.link_.Link("a", "b", true, seconds(30), t.Count());
       Settled(t);
       t.link_.Kill("b", false, "enough", [](const auto&) {});
       t.Run(seconds(1));
       EXPECT_EQ(t.State("a"), ActorState::kDead);
     }},
    {"Unlink",
     [](RequestFaults& t) {
       (void)t.Spawned("a");
       (void)t.Spawned("b");
       t.link_.Link("a", "b", true, seconds(30), [](const auto&) {});
       t.Run(milliseconds(300));
       t.Arm();
       t.link_.Link("b", "a", false, seconds(30), t.Count());
       Settled(t);
       t.link_.Kill("b", false, "enough", [](const auto&) {});
       t.Run(seconds(1));
       EXPECT_EQ(t.State("a"), ActorState::kAlive);
     }},
    {"CreateGroup",
     [](RequestFaults& t) {
       t.Arm();
       t.Ask(RequestFaults::About(actors::PlacementGroupVerb::kCreate, 2));
       Settled(t);
       EXPECT_EQ(t.Bundles(), 2U);
     }},
    {"ResizeGroup",
     [](RequestFaults& t) {
       t.Made(2);
       t.Arm();
       actors::GroupRequest resize = RequestFaults::About(actors::PlacementGroupVerb::kResize, 2);
       resize.remove = {0};
       t.Ask(resize);
       Settled(t);
       EXPECT_EQ(t.Bundles(), 3U);
       EXPECT_EQ(t.group_.bundles.back().number, 3U);
     }},
    {"AwaitGroup",
     [](RequestFaults& t) {
       t.Made(2);
       t.Arm();
       t.Ask(RequestFaults::About(actors::PlacementGroupVerb::kAwait));
       Settled(t);
       EXPECT_TRUE(t.group_.placed());
     }},
    {"FindGroup",
     [](RequestFaults& t) {
       t.Made(1);
       t.Arm();
       t.Ask(RequestFaults::About(actors::PlacementGroupVerb::kFind));
       Settled(t);
       EXPECT_EQ(t.group_.id, "pg-1");
     }},
    {"RemoveGroup",
     [](RequestFaults& t) {
       t.Made(2);
       t.Arm();
       t.Ask(RequestFaults::About(actors::PlacementGroupVerb::kRemove));
       Settled(t);
       EXPECT_FALSE(t.Stored("placement_group/pg-1"));
     }},
};

constexpr const char* kFaultNames[] = {"None",        "RequestLost",   "RequestTwice",
                                       "RequestLate", "AnswerLost",    "AnswerTwice",
                                       "AnswerLate",  "HeadRestarted", "HeadKilled"};

class EveryRequest : public ::testing::TestWithParam<std::tuple<Request, Fault>> {};

TEST_P(EveryRequest, HasItsEffectOnce) {
  const auto& [request, fault] = GetParam();
  RequestFaults rig(fault);
  request.run(rig);
  EXPECT_EQ(rig.met(), fault != Fault::kNone);
}

INSTANTIATE_TEST_SUITE_P(
    With, EveryRequest,
    ::testing::Combine(::testing::ValuesIn(kRequests),
                       ::testing::Values(Fault::kNone, Fault::kRequestLost, Fault::kRequestTwice,
                                         Fault::kRequestLate, Fault::kAnswerLost,
                                         Fault::kAnswerTwice, Fault::kAnswerLate,
                                         Fault::kHeadRestarted, Fault::kHeadKilled)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) +
             kFaultNames[static_cast<size_t>(std::get<1>(info.param))];
    });

}  // namespace
}  // namespace troupe::daemons::testing
