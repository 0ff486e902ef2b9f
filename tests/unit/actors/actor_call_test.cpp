// ActorClient and ActorHost over the simulated network. Fibers run on a real thread; replies are
// seen by stepping the network until they are there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "actors/actor_client.h"
#include "actors/actor_host.h"
#include "runtime/loopback_transport.h"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Duration kSoon = seconds(20);  // Of real time, for what must happen.

struct Probe {
  FiberEvent gate;
  std::mutex mu;
  std::vector<int> seen;
  int running = 0;
  int most_running = 0;
};
Probe* g_probe = nullptr;  // The actor is made by the type table and cannot be handed one.

class Worker {
 public:
  explicit Worker(int start) : value_(start) {
    if (start < 0) throw std::invalid_argument("start is negative");
  }
  int Add(int by) { return value_ += by; }
  int Note(int number) {
    std::lock_guard lock(g_probe->mu);
    g_probe->seen.push_back(number);
    return number;
  }
  // Waits until the test opens the gate.
  bool Wait() {
    {
      std::lock_guard lock(g_probe->mu);
      g_probe->most_running = std::max(g_probe->most_running, ++g_probe->running);
    }
    const bool opened = g_probe->gate.WaitFor(kSoon);
    std::lock_guard lock(g_probe->mu);
    --g_probe->running;
    return opened;
  }
  void Fail(const std::string& what) { throw std::runtime_error(what); }
  void FailOddly() { throw 7; }

 private:
  int value_;
};

}  // namespace

template <>
struct ActorTraits<Worker> {
  static constexpr const char* kName = "Worker";
  using Constructor = Arguments<int>;
  static constexpr auto kMethods = std::tuple{
      Method{"Add", &Worker::Add}, Method{"Note", &Worker::Note}, Method{"Wait", &Worker::Wait},
      Method{"Fail", &Worker::Fail}, Method{"FailOddly", &Worker::FailOddly}};
};

namespace actors {
namespace {

// The simulated network belongs to the test's thread; replies come from fibers on another one. This
// transport takes frames from any thread; Flush hands them over.
class Mailing final : public Transport {
 public:
  explicit Mailing(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] const std::string& self() const override { return inner_->self(); }
  EventLoop& loop() override { return inner_->loop(); }
  void SetHandler(Handler handler) override { inner_->SetHandler(std::move(handler)); }
  void SetDropHandler(DropHandler handler) override { inner_->SetDropHandler(std::move(handler)); }
  Result<PeerAddress> Listen(const std::string& at) override { return inner_->Listen(at); }
  Status Connect(const PeerAddress& peer) override { return inner_->Connect(peer); }
  void Disconnect(const std::string& peer) override { inner_->Disconnect(peer); }
  void Stop() override { inner_->Stop(); }
  Status Send(const std::string& to, std::string frame) override {
    std::lock_guard lock(mu_);
    frames_.emplace_back(to, std::move(frame));
    return Status::Ok();
  }
  void Flush() {
    std::lock_guard lock(mu_);
    for (auto& [to, frame] : frames_) EXPECT_TRUE(inner_->Send(to, std::move(frame)).ok());
    frames_.clear();
  }

 private:
  const std::unique_ptr<Transport> inner_;
  std::mutex mu_;
  std::vector<std::pair<std::string, std::string>> frames_;
};

template <class... A>
std::string Packed(A... values) {
  return wire::Encode(kArgumentsType, Pack<A...>{{values...}});
}

class ActorCallTest : public ::testing::Test {
 protected:
  ActorCallTest() { g_probe = &probe_; }
  ~ActorCallTest() override {
    probe_.gate.Set();
    g_probe = nullptr;
  }

  void Host(uint32_t max_concurrency = 1, uint32_t mailbox_depth = kMailboxDepthMax) {
    ActorBlueprint blueprint;
    blueprint.max_concurrency = max_concurrency;
    blueprint.mailbox_depth = mailbox_depth;
    host_ = std::make_unique<ActorHost>(host_transport_.get(),
                                        TypeTable::Of<Worker>().Make("Worker", Packed(10)).value(),
                                        blueprint);
    host_transport_->SetHandler(
        [this](const std::string& from, const std::string& frame) { host_->OnFrame(from, frame); });
  }
  using Answer = std::optional<Result<std::string>>;
  std::shared_ptr<Answer> Call(const std::string& method, std::string arguments,
                               Duration timeout = seconds(60)) {
    auto answer = std::make_shared<Answer>();
    client_.Call("actor", method, std::move(arguments), timeout, [answer](auto result) {
      EXPECT_FALSE(answer->has_value()) << "completed twice";
      *answer = std::move(result);
    });
    return answer;
  }
  // Steps the network, without letting deadlines pass, until `done`.
  bool Until(const std::function<bool()>& done) {
    const Time deadline = SteadyClock().Now() + kSoon;
    while (!done()) {
      if (SteadyClock().Now() > deadline) return false;
      host_transport_->Flush();
      network_.RunFor(microseconds(5));
      std::this_thread::yield();
    }
    return true;
  }
  Result<std::string> Wait(const std::shared_ptr<Answer>& answer) {
    EXPECT_TRUE(Until([&] { return answer->has_value(); }));
    return answer->value_or(Error{ErrorCode::kInternal, "no answer"});
  }
  template <class R>
  static R Value(const Result<std::string>& answer) {
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() ? wire::Decode<Box<R>>(kValueType, *answer)->value : R{};
  }
  int Running() {
    std::lock_guard lock(probe_.mu);
    return probe_.running;
  }

  Probe probe_;
  LoopbackNetwork network_{1};
  std::unique_ptr<Mailing> host_transport_ =
      std::make_unique<Mailing>(network_.MakeTransport("actor"));
  ActorClient client_{network_.MakeTransport("caller")};
  std::unique_ptr<ActorHost> host_;
};

TEST_F(ActorCallTest, ACallReturnsItsValueAndKeepsTheState) {
  Host();
  EXPECT_EQ(Value<int>(Wait(Call("Add", Packed(5)))), 15);
  EXPECT_EQ(Value<int>(Wait(Call("Add", Packed(-1)))), 14);
}

TEST_F(ActorCallTest, CallsOfACallerRunInOrder) {
  Host();
  std::vector<std::shared_ptr<Answer>> answers;
  std::vector<int> expected;
  for (int i = 0; i < 500; ++i) {
    answers.push_back(Call("Note", Packed(i)));
    expected.push_back(i);
  }
  for (int i = 0; i < 500; ++i) EXPECT_EQ(Value<int>(Wait(answers[static_cast<size_t>(i)])), i);
  EXPECT_EQ(probe_.seen, expected);
}

TEST_F(ActorCallTest, WhatTheActorThrowsIsAUserErrorThatNamesTheMethod) {
  Host();
  const Result<std::string> failed = Wait(Call("Fail", Packed(std::string("out of paper"))));
  EXPECT_EQ(failed.error().code, ErrorCode::kUserError);
  EXPECT_EQ(failed.error().message, "Worker::Fail threw: out of paper");
  EXPECT_THAT(Wait(Call("FailOddly", Packed())).error().message, HasSubstr("not a std::exception"));
  EXPECT_EQ(Value<int>(Wait(Call("Add", Packed(1)))), 11);  // It lives on.
}

TEST_F(ActorCallTest, AnUnknownMethodAndUnsuitableArgumentsAreErrors) {
  Host();
  const Result<std::string> unknown = Wait(Call("Nothing", Packed()));
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(unknown.error().message, "Worker has no method Nothing");
  for (const std::string& arguments : {Packed(), Packed(std::string("x")), std::string("junk")}) {
    const Result<std::string> unsuitable = Wait(Call("Add", arguments));
    EXPECT_EQ(unsuitable.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(unsuitable.error().message, HasSubstr("Worker::Add"));
  }
}

TEST_F(ActorCallTest, OneCallRunsAtATimeByDefault) {
  Host();
  const auto first = Call("Wait", Packed());
  ASSERT_TRUE(Until([&] { return Running() == 1; }));
  const auto second = Call("Wait", Packed());
  const auto third = Call("Note", Packed(1));
  network_.RunFor(milliseconds(1));
  EXPECT_EQ(Running(), 1);
  EXPECT_FALSE(third->has_value());
  probe_.gate.Set();
  EXPECT_TRUE(Value<bool>(Wait(first)));
  EXPECT_TRUE(Value<bool>(Wait(second)));
  EXPECT_EQ(Value<int>(Wait(third)), 1);
  EXPECT_EQ(probe_.most_running, 1);
}

TEST_F(ActorCallTest, AsManyCallsAsAllowedRunAtOnce) {
  Host(3);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 5; ++i) answers.push_back(Call("Wait", Packed()));
  ASSERT_TRUE(Until([&] { return Running() == 3; }));
  network_.RunFor(milliseconds(1));
  probe_.gate.Set();
  for (const auto& answer : answers) EXPECT_TRUE(Value<bool>(Wait(answer)));
  EXPECT_EQ(probe_.most_running, 3);
}

TEST_F(ActorCallTest, AFullMailboxRefuses) {
  Host(1, 2);
  const auto running = Call("Wait", Packed());
  ASSERT_TRUE(Until([&] { return Running() == 1; }));
  const auto waiting = Call("Note", Packed(1));
  const auto last = Call("Note", Packed(2));
  const auto refused = Call("Note", Packed(3));
  EXPECT_EQ(Wait(refused).error().code, ErrorCode::kBackpressure);
  EXPECT_THAT(Wait(refused).error().message, HasSubstr("mailbox is full"));
  probe_.gate.Set();
  EXPECT_TRUE(Value<bool>(Wait(running)));
  EXPECT_EQ(Value<int>(Wait(waiting)), 1);
  EXPECT_EQ(Value<int>(Wait(last)), 2);
  EXPECT_THAT(probe_.seen, ElementsAre(1, 2));
}

TEST_F(ActorCallTest, ALostFrameEndsInTheCallsDeadlineAndNoSooner) {
  Host();
  network_.Block("caller", "actor");
  const auto call = Call("Add", Packed(1), seconds(5));
  network_.RunFor(seconds(5) - milliseconds(1));
  EXPECT_FALSE(call->has_value());
  network_.RunFor(milliseconds(50));
  ASSERT_TRUE(call->has_value());
  EXPECT_EQ((*call)->error().code, ErrorCode::kDeadlineExceeded);
}

TEST_F(ActorCallTest, AReplyThatComesTooLateIsIgnored) {
  Host();
  const auto call = Call("Wait", Packed(), seconds(1));
  ASSERT_TRUE(Until([&] { return Running() == 1; }));
  network_.RunFor(seconds(2));
  EXPECT_EQ((*call)->error().code, ErrorCode::kDeadlineExceeded);
  probe_.gate.Set();
  EXPECT_EQ(Value<int>(Wait(Call("Add", Packed(1)))), 11);
}

TEST_F(ActorCallTest, ALostActorEndsItsCallsAndLaterOnes) {
  Host();
  network_.Block("caller", "actor");
  const auto call = Call("Add", Packed(1));
  client_.Lost("other", "not this one");
  EXPECT_FALSE(call->has_value());
  client_.Lost("actor", "killed by signal 9");
  EXPECT_EQ((*call)->error().code, ErrorCode::kPeerGone);
  EXPECT_EQ((*Call("Add", Packed(1)))->error().message, "killed by signal 9");
}

TEST_F(ActorCallTest, AStoppedActorAnswersWhoeverStillWaits) {
  Host();
  const auto running = Call("Wait", Packed());
  ASSERT_TRUE(Until([&] { return Running() == 1; }));
  const auto waiting = Call("Note", Packed(1));
  network_.RunFor(milliseconds(1));
  EXPECT_EQ(host_->Stop(milliseconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Wait(waiting).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(Wait(Call("Note", Packed(2))).error().code, ErrorCode::kPeerGone);
  probe_.gate.Set();
  EXPECT_TRUE(Value<bool>(Wait(running)));
  EXPECT_TRUE(host_->Stop(kSoon).ok());
  EXPECT_TRUE(probe_.seen.empty());
}

TEST_F(ActorCallTest, FramesThatAreNoCallsAreDropped) {
  Host();
  host_->OnFrame("caller", "junk");
  host_->OnFrame("caller", wire::Encode(kFrameActorReply, ActorReply{}));
  EXPECT_EQ(Value<int>(Wait(Call("Add", Packed(1)))), 11);
}

TEST_F(ActorCallTest, CallsInFlightAreCancelledWithTheirClient) {
  auto client = std::make_unique<ActorClient>(network_.MakeTransport("second"));
  std::optional<Result<std::string>> answer;
  client->Call("actor", "Add", Packed(1), seconds(60), [&](auto result) { answer = result; });
  client.reset();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error().code, ErrorCode::kCancelled);
}

TEST(TypeTableTest, MakesWhatIsDescribedAndSaysWhatIsNot) {
  const TypeTable table = TypeTable::Of<Worker>();
  EXPECT_TRUE(table.Make("Worker", Packed(1)).ok());
  EXPECT_EQ(table.Make("Other", Packed(1)).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(table.Make("Worker", Packed()).error().code, ErrorCode::kCorrupt);
  const Error thrown = table.Make("Worker", Packed(-1)).error();
  EXPECT_EQ(thrown.code, ErrorCode::kUserError);
  EXPECT_EQ(thrown.message, "the constructor of Worker threw: start is negative");
  EXPECT_EQ((MethodName<Worker>(&Worker::Add)), "Add");
}

TEST(FutureTest, CompletesOnceForWaitersAndFollowers) {
  Future<int> future;
  EXPECT_FALSE(future.Ready());
  EXPECT_EQ(future.Get(milliseconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  std::vector<int> seen;
  future.Then([&](const Result<int>& result) { seen.push_back(*result); });
  std::thread completer([&] { future.Complete(7); });
  EXPECT_EQ(*future.Get(kSoon), 7);
  completer.join();
  future.Complete(8);
  future.Then([&](const Result<int>& result) { seen.push_back(*result); });
  EXPECT_THAT(seen, ElementsAre(7, 7));
}

}  // namespace
}  // namespace actors
}  // namespace troupe
