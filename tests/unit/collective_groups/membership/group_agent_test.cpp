// The agent with a scripted communicator: how verdicts and cancelled links reach its lanes.
#include "collective_groups/membership/group_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace troupe::groups {
namespace {

using ::testing::HasSubstr;

// Never turns: the tests give every command themselves.
class StillLoop final : public EventLoop {
 public:
  [[nodiscard]] Time Now() const override { return SteadyClock().Now(); }
  void Post(std::function<void()>) override {}
  TimerId CallAt(Time, std::function<void()>) override { return kNoTimer; }
  void Cancel(TimerId) override {}
  void WatchFd(int, std::function<void()>) override {}
  void UnwatchFd(int) override {}
};

// Collectives last until the epoch is aborted, links until they are cancelled.
class BlockingCommunicator final : public Communicator {
 public:
  const std::string& memory() const override { return memory_; }
  Result<std::string> Offer(uint32_t, uint32_t, const std::string&) override {
    return std::string("here");
  }
  Status Link(uint32_t peer_slot, const std::string&) override {
    std::unique_lock lock(mu_);
    linking_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, seconds(10), [&] { return cancelled_ == static_cast<int>(peer_slot); });
    return Error{ErrorCode::kCancelled, "cancelled"};
  }
  void CancelLinks() override {}
  void CancelLink(uint32_t peer_slot) override {
    std::lock_guard lock(mu_);
    cancelled_ = static_cast<int>(peer_slot);
    changed_.notify_all();
  }
  Status Begin(const View&, int, std::vector<Team>) override { return Status::Ok(); }
  void Abort(Epoch epoch) override {
    std::lock_guard lock(mu_);
    aborted_ = std::max(aborted_, epoch);
    changed_.notify_all();
  }
  Status AddTeam(Team) override { return Status::Ok(); }
  Team team(uint32_t) const override { return {}; }
  Status AllReduce(const Operation&, std::span<const ConstBuffer>, std::span<const MutableBuffer>,
                   const ReduceArguments&) override {
    std::unique_lock lock(mu_);
    inside_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, seconds(10), [&] { return aborted_ > 0 || broken_; });
    if (broken_) return Error{ErrorCode::kPeerGone, "connection closed"};
    lock.unlock();
    if (leaves_late) std::this_thread::sleep_for(milliseconds(20));
    left = true;
    return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
  }
  Status ReduceScatter(const Operation&, const void*, void*, std::span<const size_t>,
                       const ReduceArguments&) override {
    return Status::Ok();
  }
  Status Broadcast(const Operation&, void*, size_t, int) override { return Status::Ok(); }
  Status Exchange(const Operation&, std::span<const OutgoingBlock>,
                  std::span<const IncomingBlock>) override {
    return Status::Ok();
  }
  Status Barrier(const Operation&) override {
    std::lock_guard lock(mu_);
    if (aborted_ > 0) return Error{ErrorCode::kEpochChanged, "the epoch was aborted"};
    return Status::Ok();
  }
  Result<uint64_t> Transfer(std::span<const int>, std::span<const int>,
                            std::span<const MutableBuffer>) override {
    return uint64_t{0};
  }

  void Break() {
    std::lock_guard lock(mu_);
    broken_ = true;
    changed_.notify_all();
  }
  std::atomic<bool> leaves_late = false;  // An aborted all-reduce takes a while to come out.
  std::atomic<bool> left = false;

  bool WaitInside() {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, seconds(10), [&] { return inside_; });
  }
  bool WaitLinking() {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, seconds(10), [&] { return linking_; });
  }

 private:
  const std::string memory_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool inside_ = false;
  bool linking_ = false;
  bool broken_ = false;
  int cancelled_ = -1;
  Epoch aborted_ = 0;
};

ReduceArguments OneFloat() {
  ReduceArguments arguments;
  arguments.count = 1;
  return arguments;
}

class GroupAgentTest : public ::testing::Test {
 protected:
  void Tell(CommandKind kind, Epoch epoch) {
    Command command;
    command.kind = kind;
    command.epoch = epoch;
    command.view = View{"g", epoch, {{{"w", 1}, 1, 0, "h", "", 0, false}}, ""};
    command.reason = "the ranks called different collectives";
    agent_.OnCommand(command);
  }
  bool WaitState(MemberState state) {
    std::unique_lock lock(mu_);
    return told_.wait_for(lock, seconds(10), [&] { return newest_.state == state; });
  }
  void Enter(Epoch epoch) {
    agent_.Ready(0, false);
    Tell(CommandKind::kPrepare, epoch);
    ASSERT_TRUE(WaitState(MemberState::kPrepared));
    Tell(CommandKind::kInstall, epoch);
    ASSERT_TRUE(WaitState(MemberState::kLinked));
    Tell(CommandKind::kActivate, epoch);
    ASSERT_TRUE(agent_.WaitActive(seconds(10)).ok());
  }
  Report Newest() {
    std::lock_guard lock(mu_);
    return newest_;
  }

  std::mutex mu_;
  std::condition_variable told_;
  Report newest_;
  Result<MemberId> rejoined_ = Error{ErrorCode::kUnavailable, "the head is away"};
  StillLoop loop_;
  BlockingCommunicator* const communicator_ = new BlockingCommunicator;  // Owned by the agent.
  GroupAgent agent_{{{"w", 1}, "h", ""},
                    &loop_,
                    std::unique_ptr<Communicator>(communicator_),
                    [this](const Report& report) {
                      std::lock_guard lock(mu_);
                      newest_ = report;
                      told_.notify_all();
                    },
                    [this] { return rejoined_; }};
};

TEST_F(GroupAgentTest, WhoeverIsOutOfTheGroupJoinsAgainAsAnotherMember) {
  Enter(1);
  Command expel;
  expel.kind = CommandKind::kExpel;
  expel.expel = ExpelKind::kFenced;
  expel.reason = "it was silent";
  agent_.OnCommand(expel);
  const Result<ActiveView> aside = agent_.WaitActive(seconds(10));
  ASSERT_FALSE(aside.ok());
  EXPECT_EQ(aside.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(aside.error().message, HasSubstr("it was silent"));
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kDrained}) {
    rejoined_ = Error{code, "not now"};
    agent_.Ready(6, true);
    EXPECT_EQ(agent_.WaitActive(seconds(10)).error().code, code);
  }
  rejoined_ = MemberId{"w", 2};
  agent_.Ready(7, true);
  EXPECT_EQ(Newest().id, (MemberId{"w", 2}));
  EXPECT_EQ(Newest().state, MemberState::kReady);
  EXPECT_EQ(Newest().version, 7U);
  EXPECT_TRUE(Newest().has_state);
  EXPECT_EQ(agent_.WaitActive(milliseconds(1)).error().code, ErrorCode::kDeadlineExceeded);
  expel.expel = ExpelKind::kEnded;  // For a while: the next Ready asks.
  agent_.OnCommand(expel);
  EXPECT_EQ(agent_.WaitActive(seconds(10)).error().code, ErrorCode::kDrained);
  rejoined_ = MemberId{"w", 3};
  agent_.Ready(7, true);
  EXPECT_EQ(Newest().id, (MemberId{"w", 3}));
}

TEST_F(GroupAgentTest, AVerdictFailsWhatRunsAndWhatWaitsWithItsReason) {  // GM-11
  Enter(1);
  float value = 1;
  const auto running =
      agent_.AllReduce({}, {{&value, sizeof value}}, {{&value, sizeof value}}, OneFloat());
  const auto waiting = agent_.Barrier({});
  ASSERT_TRUE(communicator_->WaitInside());
  Tell(CommandKind::kFail, 1);
  EXPECT_TRUE(Newest().broken);
  EXPECT_TRUE(Newest().blocked);
  EXPECT_EQ(Newest().progress.sequence, 1U);
  EXPECT_THAT(Newest().progress.operation, HasSubstr("all-reduce"));
  const Result<uint64_t> first = agent_.Wait(running, seconds(10));
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::kMismatch);
  EXPECT_THAT(first.error().message, HasSubstr("different collectives"));
  agent_.Ready(0, false);
  const Result<uint64_t> second = agent_.Wait(waiting, seconds(10));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kMismatch);
}

TEST_F(GroupAgentTest, WhatIsNewInAnEpochTheRanksCompare) {
  Enter(1);
  float value = 1;
  const auto running = agent_.AllReduce({.text = "sum"}, {{&value, sizeof value}},
                                        {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  Tell(CommandKind::kFail, 1);
  EXPECT_TRUE(Newest().progress.compares);
  EXPECT_FALSE(agent_.Wait(running, seconds(10)).ok());
}

TEST_F(GroupAgentTest, WhatAllHaveCalledInAnEpochTheyDoNotCompareAgain) {
  Enter(1);
  ASSERT_TRUE(agent_.Wait(agent_.Barrier({.text = "sum"}), seconds(10)).ok());
  float value = 1;
  const auto running = agent_.AllReduce({.text = "sum"}, {{&value, sizeof value}},
                                        {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  Tell(CommandKind::kFail, 1);
  EXPECT_FALSE(Newest().progress.compares);
  EXPECT_FALSE(agent_.Wait(running, seconds(10)).ok());
}

TEST_F(GroupAgentTest, AnEpochThatChangesIsNoVerdict) {
  Enter(1);
  float value = 1;
  const auto running =
      agent_.AllReduce({}, {{&value, sizeof value}}, {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  Tell(CommandKind::kPrepare, 2);
  const Result<uint64_t> result = agent_.Wait(running, seconds(10));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kEpochChanged);
}

// A peer that has heard the verdict first closes its links.
TEST_F(GroupAgentTest, ALinkThatClosesBeforeTheVerdictIsHeardIsNoDeath) {  // GM-11
  Enter(1);
  float value = 1;
  const auto running =
      agent_.AllReduce({}, {{&value, sizeof value}}, {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  std::this_thread::sleep_for(milliseconds(100));  // As long as a verdict takes at least.
  communicator_->Break();
  {
    std::unique_lock lock(mu_);
    ASSERT_TRUE(told_.wait_for(lock, seconds(10), [&] { return newest_.broken; }));
  }
  EXPECT_FALSE(agent_.Poll(running));
  Tell(CommandKind::kFail, 1);
  const Result<uint64_t> result = agent_.Wait(running, seconds(10));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kMismatch);
}

TEST_F(GroupAgentTest, ALinkThatClosesEarlyIsADeathAtOnce) {
  Enter(1);
  float value = 1;
  const auto running =
      agent_.AllReduce({}, {{&value, sizeof value}}, {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  communicator_->Break();
  const Result<uint64_t> result = agent_.Wait(running, seconds(10));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kPeerGone);
}

TEST_F(GroupAgentTest, ATransferHasNoPlaceInTheSequence) {
  Enter(1);
  ASSERT_TRUE(agent_.Wait(agent_.Barrier({}), seconds(10)).ok());
  ASSERT_TRUE(agent_.Wait(agent_.Transfer({0}, {}, {}), seconds(10)).ok());
  ASSERT_TRUE(agent_.Wait(agent_.Barrier({}), seconds(10)).ok());
  Tell(CommandKind::kPlan, 1);  // Is answered with a report.
  EXPECT_EQ(Newest().progress.sequence, 2U);
  EXPECT_FALSE(Newest().progress.partial);
  EXPECT_FALSE(Newest().blocked);
}

TEST_F(GroupAgentTest, ACancelledLinkAheadFreesTheLane) {
  Enter(1);
  Command command;
  command.kind = CommandKind::kPrelink;
  command.plan = 1;
  command.relink = {4};
  agent_.OnCommand(command);
  command.offers = {{4, 1, "there"}};
  agent_.OnCommand(command);
  ASSERT_TRUE(communicator_->WaitLinking());
  command.kind = CommandKind::kCancelPrelink;
  agent_.OnCommand(command);
  // The lane serves the next one: the offers of an epoch.
  Tell(CommandKind::kPrepare, 2);
  const Time begin = SteadyClock().Now();
  agent_.Ready(0, false);
  ASSERT_TRUE(WaitState(MemberState::kPrepared));
  EXPECT_LT(SteadyClock().Now() - begin, seconds(5));  // Link alone would hold it for ten.
}

// Whoever waits may free the memory next.
TEST_F(GroupAgentTest, AWaitLastsUntilTheMemoryIsFreeAlsoIfTheAgentStops) {
  Enter(1);
  communicator_->leaves_late = true;
  float value = 1;
  const auto handle =
      agent_.AllReduce({}, {{&value, sizeof value}}, {{&value, sizeof value}}, OneFloat());
  ASSERT_TRUE(communicator_->WaitInside());
  std::thread stopping([&] { agent_.Stop(); });
  const Result<uint64_t> done = agent_.Wait(handle, seconds(10));
  EXPECT_TRUE(communicator_->left);
  stopping.join();
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace troupe::groups
