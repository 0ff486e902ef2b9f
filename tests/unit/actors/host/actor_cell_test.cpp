// ActorCell with a host that keeps what is to run and what is sent: replies and saved state.
#include "actors/host/actor_cell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Adds numbers, and keeps the sum if it is to.
class Sum final : public Instance {
 public:
  explicit Sum(bool saves) : saves_(saves) {}
  Result<std::string> Invoke(CallContext& context, const std::string& method,
                             std::string arguments) override {
    if (during) std::exchange(during, nullptr)();
    if (method == "leave") context.Exit("done");
    if (method == "fail") return Error{ErrorCode::kUserError, "it failed"};
    total += std::stoi("0" + arguments);
    if (method == "now") {
      if (before_now) std::exchange(before_now, nullptr)();
      answered_now = context.answer_now()(std::to_string(total));
      if (after_now) std::exchange(after_now, nullptr)();
    }
    if (method == "fail now")
      answered_now = context.answer_now()(Error{ErrorCode::kUserError, "it failed at once"});
    return std::to_string(total);
  }
  [[nodiscard]] bool saves() const override { return saves_; }
  Result<std::string> Save() override {
    if (save_fails) return Error{ErrorCode::kUserError, "no paper"};
    return std::to_string(total);
  }
  Status Restore(const std::string& state) override {
    total = std::stoi(state);
    return Status::Ok();
  }

  int total = 0;
  bool save_fails = false;
  bool answered_now = false;
  std::function<void()> during;
  std::function<void()> before_now;
  std::function<void()> after_now;

 private:
  const bool saves_;
};

class ActorCellTest : public ::testing::Test, private CellHost {
 protected:
  void Make(bool saves, const ActorBlueprint& blueprint = {}) {
    auto sum = std::make_unique<Sum>(saves);
    sum_ = sum.get();
    cell_ = std::make_shared<ActorCell>(static_cast<CellHost*>(this), nullptr,
                                        ActorAddress{"a", 1, "Sum", {}, true}, std::move(sum),
                                        blueprint, 0);
  }
  void Call(uint64_t number, const std::string& method = "add", const std::string& add = "1",
            uint64_t base = 1) {
    cell_->OnCall("c", {"a", 1, number, base, method, add, 60'000});
  }
  void Check(std::vector<uint64_t> numbers, uint64_t base = 1) {
    cell_->OnCheck("c", {"a", 1, base, std::move(numbers)});
  }
  void Run() {
    while (!spawned_.empty()) {
      const auto fn = std::move(spawned_.front());
      spawned_.pop_front();
      fn();
    }
  }
  std::vector<std::string> Sent() { return std::exchange(sent_, {}); }
  void FinishSave(const Status& status) {
    ASSERT_FALSE(saves_.empty());
    const auto done = std::move(saves_.front().second);
    saves_.pop_front();
    done(status);
  }

  std::deque<std::pair<std::string, std::function<void(Status)>>> saves_;
  std::vector<std::string> exited_;
  std::vector<std::string> failed_;
  Sum* sum_ = nullptr;
  std::shared_ptr<ActorCell> cell_;

 private:
  void SendTo(const std::string& to, const ActorReply& reply) override {
    sent_.push_back(to + " " + std::to_string(reply.number) + ": " +
                    (reply.error.empty() ? reply.value : reply.error[0].message));
  }
  void SendTo(const std::string& to, const ActorMissing& missing) override {
    for (const uint64_t n : missing.numbers) sent_.push_back(to + " missing " + std::to_string(n));
  }
  void SendTo(const std::string& to, const ActorFull& full) override {
    sent_.push_back(to + " full " + std::to_string(full.number));
  }
  void SendTo(const std::string& to, const ActorRoom&) override { sent_.push_back(to + " room"); }
  void Save(const ActorAddress&, std::string state, std::function<void(Status)> done) override {
    saves_.emplace_back(std::move(state), std::move(done));
  }
  void Exited(const ActorAddress&, const Error& reason) override {
    exited_.push_back(reason.message);
  }
  void Failed(const ActorAddress&, const Error& reason) override {
    failed_.push_back(reason.message);
  }
  Status Spawn(size_t, std::function<void()> fn) override {
    spawned_.push_back(std::move(fn));
    return Status::Ok();
  }
  [[nodiscard]] const std::string& node() const override { return node_; }

  const std::string node_ = "n";
  std::deque<std::function<void()>> spawned_;
  std::vector<std::string> sent_;
};

TEST_F(ActorCellTest, CallsRunInOrderAndRepeatsAreAnsweredFromTheMailbox) {
  Make(false);
  Call(2, "add", "20");
  EXPECT_THAT(Sent(), ElementsAre("c missing 1"));
  Call(1, "add", "1");
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1", "c 2: 21"));
  Call(1, "add", "1");
  Check({1, 2});
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1", "c 1: 1", "c 2: 21"));
  EXPECT_EQ(sum_->total, 21);
  EXPECT_THAT(saves_, IsEmpty());
}

TEST_F(ActorCellTest, AnAnswerThatIsGivenBeforeTheMethodReturnsIsGivenOnce) {
  Make(false);
  std::vector<std::string> before_it_returned;
  sum_->after_now = [&] { before_it_returned = Sent(); };
  Call(1, "now", "5");
  Call(2, "fail now");
  Run();
  EXPECT_TRUE(sum_->answered_now);
  EXPECT_THAT(before_it_returned, ElementsAre("c 1: 5"));
  EXPECT_THAT(Sent(), ElementsAre("c 2: it failed at once"));
  Call(1, "now", "5");  // Repeated: from the mailbox, as any other.
  Check({1, 2});
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 5", "c 1: 5", "c 2: it failed at once"));
  EXPECT_EQ(sum_->total, 6);
  EXPECT_TRUE(cell_->Idle());
}

TEST_F(ActorCellTest, AnAnswerIsNotGivenBeforeTheStateIsSafeNorAfterTheEnd) {
  Make(true);
  Call(1, "now");
  Run();
  EXPECT_FALSE(sum_->answered_now);
  EXPECT_THAT(Sent(), IsEmpty());
  FinishSave(Status::Ok());
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1"));

  Make(false);
  sum_->before_now = [this] { cell_->End({ErrorCode::kPeerGone, "killed"}); };
  Call(1, "now");
  Run();
  EXPECT_FALSE(sum_->answered_now);
  EXPECT_THAT(Sent(), ElementsAre(HasSubstr("has ended: killed (the call was running)")));

  Make(false);
  std::optional<Result<std::string>> local;
  (void)cell_->CallLocal("now", "1", Time::Never(), [&](auto result) { local = result; });
  Run();
  EXPECT_FALSE(sum_->answered_now) << "within a process it takes the usual way";
  ASSERT_TRUE(local);
  EXPECT_EQ(local->value(), "1");
}

TEST_F(ActorCellTest, AReplyNeverComesBeforeItsEffectIsSafe) {
  Make(true);
  Call(1);
  Call(2);
  Run();
  Call(1);
  Check({1, 2});
  Run();
  EXPECT_THAT(Sent(), IsEmpty());
  ASSERT_EQ(saves_.size(), 1u) << "one at a time";
  Call(3);
  Run();
  ASSERT_EQ(saves_.size(), 1u);
  FinishSave(Status::Ok());
  const std::vector<std::string> first = Sent();
  EXPECT_THAT(first, ::testing::Contains("c 1: 1"));
  EXPECT_THAT(first, ::testing::Not(::testing::Contains("c 3: 3")));
  Run();
  while (!saves_.empty()) {
    FinishSave(Status::Ok());
    Run();
  }
  Check({1, 2, 3});
  EXPECT_THAT(Sent(), ::testing::IsSupersetOf({"c 1: 1", "c 2: 2", "c 3: 3"}));
}

TEST_F(ActorCellTest, ErrorsOfMethodsAreHeldBackToo) {
  Make(true);
  Call(1, "fail");
  Run();
  EXPECT_THAT(Sent(), IsEmpty());
  FinishSave(Status::Ok());
  EXPECT_THAT(Sent(), ElementsAre("c 1: it failed"));
}

TEST_F(ActorCellTest, WhatCouldNotBeSavedIsNeverGivenOutAndEndsTheIncarnation) {
  Make(true);
  Call(1);
  Run();
  FinishSave(Error{ErrorCode::kResourceExhausted, "too large"});
  EXPECT_THAT(failed_, ElementsAre(HasSubstr("could not be saved: too large")));
  EXPECT_THAT(exited_, IsEmpty()) << "it is to be started again, if it may";
  Call(1);
  Check({1});
  EXPECT_THAT(Sent(), IsEmpty()) << "its effect is lost with this incarnation";
}

TEST_F(ActorCellTest, AnInstanceThatFailsToSaveFailsTheSame) {
  Make(true);
  sum_->save_fails = true;
  std::optional<Result<std::string>> local;
  (void)cell_->CallLocal("add", "1", Time::Never(), [&](auto result) { local = result; });
  Run();
  ASSERT_TRUE(local);
  EXPECT_THAT(local->error().message, HasSubstr("could not be saved: no paper"));
  EXPECT_EQ(failed_.size(), 1u);
}

TEST_F(ActorCellTest, TheNextIncarnationHasTheStateAndTheReplies) {
  Make(true);
  Call(1, "add", "5");
  Run();
  const std::string saved = saves_.at(0).first;
  Make(true);
  ASSERT_TRUE(cell_->Restore(saved).ok());
  Call(1, "add", "5");
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 5"));
  EXPECT_EQ(sum_->total, 5) << "it ran once";
  EXPECT_EQ(cell_->Restore("junk").error().code, ErrorCode::kCorrupt);
}

TEST_F(ActorCellTest, AfterItsEndEveryCallIsAnsweredWithTheReason) {
  Make(false);
  Call(1);
  Run();
  (void)Sent();
  Call(2);
  cell_->End(Error{ErrorCode::kPeerGone, "enough"});
  cell_->End(Error{ErrorCode::kPeerGone, "twice"});
  Call(3);
  Check({4});
  Run();
  const std::vector<std::string> sent = Sent();
  EXPECT_EQ(sent.size(), 3u);
  for (const std::string& reply : sent) EXPECT_THAT(reply, HasSubstr("has ended: enough"));
  EXPECT_EQ(sum_->total, 1) << "no method begins";
  Call(1);
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1")) << "this one had run";
}

// What a method returns that was told to stop is not what it was asked for.
TEST_F(ActorCellTest, WhatRunsAtTheEndIsAnsweredWithTheReason) {
  Make(false);
  sum_->during = [&] { cell_->End(Error{ErrorCode::kPeerGone, "enough"}); };
  Call(1);
  Run();
  EXPECT_THAT(Sent(), ElementsAre(HasSubstr("has ended: enough (the call was running")));
}

// The cluster says whether it is started again; until then its calls are neither done nor failed.
TEST_F(ActorCellTest, AnIncarnationThatOnlyStopsSaysNothing) {
  Make(false);
  sum_->during = [&] { cell_->End(Error{ErrorCode::kCancelled, "its node goes"}, false); };
  Call(1);
  Call(2);
  Run();
  Call(3);
  Check({1, 2, 3, 4});
  EXPECT_THAT(Sent(), IsEmpty());
}

TEST_F(ActorCellTest, AFullMailboxTellsWhenThereIsRoom) {
  ActorBlueprint blueprint;
  blueprint.mailbox_depth = 1;
  Make(false, blueprint);
  Call(1);
  Call(2);
  EXPECT_THAT(Sent(), ElementsAre("c full 2"));
  Run();
  EXPECT_THAT(Sent(), ::testing::UnorderedElementsAre("c room", "c 1: 1"));
  Call(2);
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 2: 2"));
}

TEST_F(ActorCellTest, ACancelledCallThatWaitsDoesNotRun) {
  Make(false);
  Call(1);
  Call(2);
  cell_->OnCancel("c", 2, {});
  cell_->OnCancel("c", 7, {});
  cell_->OnCancel("nobody", 1, {});
  EXPECT_THAT(Sent(), ElementsAre("c 2: cancelled before it ran"));
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1"));
}

TEST_F(ActorCellTest, WhoIsAskedToLeaveDoesWhatItWasCalledForFirst) {
  const Error why{ErrorCode::kPeerGone, "asked to leave"};
  Make(false);
  sum_->during = [&] { cell_->Leave(why); };
  Call(1);
  Call(2);
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1", "c 2: 2"));
  EXPECT_THAT(exited_, ElementsAre("asked to leave"));
  Call(3);
  EXPECT_THAT(Sent(), ElementsAre(HasSubstr("has ended: asked to leave")));

  exited_.clear();
  Make(false);
  cell_->Leave(why);
  cell_->Leave(why);
  Run();
  EXPECT_THAT(exited_, ElementsAre("asked to leave")) << "it had nothing to do";
}

TEST_F(ActorCellTest, WhoIsAskedToLeaveKeepsItsStateFirst) {
  Make(true);
  Call(1);
  Run();
  cell_->Leave({ErrorCode::kPeerGone, "asked to leave"});
  Run();
  EXPECT_THAT(exited_, IsEmpty());
  FinishSave(Status::Ok());
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1"));
  Check({}, 2);  // It has arrived.
  Run();
  EXPECT_THAT(exited_, ElementsAre("asked to leave"));
}

TEST_F(ActorCellTest, WhoIsAskedToLeaveStaysIfItKnowsBetterWhenItWould) {
  const Error why{ErrorCode::kPeerGone, "asked to leave"};
  Make(false);
  bool stays = false;
  const auto may_stay = [&stays] { return stays; };
  sum_->during = [&] { stays = true; };  // It passes its handle on.
  Call(1);
  cell_->Leave(why, may_stay);
  Run();
  EXPECT_THAT(exited_, IsEmpty());
  Call(2);
  Run();
  EXPECT_THAT(Sent(), ElementsAre("c 1: 1", "c 2: 2"));
  cell_->Leave(why, may_stay);
  EXPECT_THAT(exited_, IsEmpty());
  stays = false;
  cell_->Leave(why, may_stay);
  Run();
  EXPECT_THAT(exited_, ElementsAre("asked to leave"));
}

TEST_F(ActorCellTest, CallsToItselfDoNotKeepWhoNobodyRefersTo) {
  const Error why{ErrorCode::kPeerGone, "asked to leave"};
  Make(false);
  std::vector<std::string> results;
  std::function<void()> again = [&] {
    sum_->during = again;
    (void)cell_->CallLocal("add", "1", Time::Never(), [&](const Result<std::string>& result) {
      results.push_back(result.ok() ? *result : result.error().message);
    });
  };
  Call(1);
  again();
  cell_->Leave(why, [] { return false; });
  Run();
  // The one from before, and the one that was made while another process was served.
  const auto refused = HasSubstr("ends: asked to leave");
  EXPECT_THAT(results, ElementsAre(refused, "2", refused, "3"));
  EXPECT_THAT(exited_, ElementsAre("asked to leave"));
}

TEST_F(ActorCellTest, WhoLeavesIsReportedWithItsReason) {
  Make(false);
  std::optional<Result<std::string>> local;
  (void)cell_->CallLocal("leave", "", Time::Never(), [&](auto result) { local = result; });
  Run();
  EXPECT_TRUE(local && local->ok());
  EXPECT_THAT(exited_, ElementsAre("done"));
  EXPECT_TRUE(cell_->Idle());
}

}  // namespace
}  // namespace troupe::actors
