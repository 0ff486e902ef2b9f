#include "collective_groups/membership/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace troupe::groups {
namespace {

class MemberTest : public ::testing::Test {
 protected:
  void Feed(const MemberEvent& event) { last_ = core_->Step(now_, event); }
  void Tell(CommandKind kind, Epoch epoch, uint64_t plan = 0, uint64_t boundary = 0) {
    Command command;
    command.kind = kind;
    command.epoch = epoch;
    command.plan = plan;
    command.boundary = boundary;
    command.planned = kind == CommandKind::kPrepare && plan > 0;
    Feed(CommandReceived{command});
  }
  template <class T>
  int Count() const {
    int count = 0;
    for (const MemberAction& action : last_) count += std::holds_alternative<T>(action) ? 1 : 0;
    return count;
  }
  void ExpectAnswer(bool stop) const {
    ASSERT_EQ(Count<BoundaryAnswer>(), 1);
    for (const MemberAction& action : last_) {
      const auto* answer = std::get_if<BoundaryAnswer>(&action);
      if (answer != nullptr) {
        EXPECT_EQ(answer->stop, stop);
      }
    }
  }
  void Enter(Epoch epoch) {
    Feed(UserReady{1, true});
    Tell(CommandKind::kPrepare, epoch);
    EXPECT_EQ(Count<MakeOffers>(), 1);
    Feed(OffersMade{epoch, {}, ""});
    Tell(CommandKind::kActivate, epoch);
    EXPECT_EQ(core_->state(), MemberState::kPrepared);  // GM-3: not before it is linked.
    Tell(CommandKind::kInstall, epoch);
    EXPECT_EQ(Count<LinkEpoch>(), 1);
    Feed(EpochLinked{epoch, ""});
    Tell(CommandKind::kActivate, epoch);
    EXPECT_EQ(Count<Activated>(), 1);
  }
  // Up to the Install of epoch 1, in which nobody has to link.
  Command InstallAtOnce() {
    Feed(UserReady{1, true});
    Tell(CommandKind::kPrepare, 1);
    Feed(OffersMade{1, {}, ""});
    Command install;
    install.kind = CommandKind::kInstall;
    install.epoch = 1;
    install.at_once = true;
    Feed(CommandReceived{install});
    return install;
  }

  Time now_{1'000'000'000};
  MemberOptions options_{{"w", 1}, "h", ""};
  std::optional<Member> core_{std::in_place, options_, now_};
  std::vector<MemberAction> last_;
};

TEST_F(MemberTest, GoesAtOnceWhereNobodyHasToLink) {
  const Command install = InstallAtOnce();
  EXPECT_EQ(Count<Activated>(), 0);  // It still has to begin the epoch.
  Feed(EpochLinked{1, ""});
  EXPECT_EQ(Count<Activated>(), 1);
  EXPECT_EQ(Count<SendReport>(), 1);
  Feed(CommandReceived{install});  // Nobody has heard of it yet.
  EXPECT_EQ(Count<Activated>(), 0);
  EXPECT_EQ(Count<SendReport>(), 1);
  EXPECT_EQ(core_->state(), MemberState::kActive);
}

// Somebody's Install may have been lost, and is made from these.
TEST_F(MemberTest, OffersAreToldUntilAllAreLinked) {
  Feed(UserReady{1, true});
  Tell(CommandKind::kPrepare, 1);
  Feed(OffersMade{1, {{4, 0, "here"}}, ""});
  Tell(CommandKind::kInstall, 1);
  Feed(EpochLinked{1, ""});
  EXPECT_EQ(std::get<SendReport>(last_.back()).report.offers.size(), 1U);
  Tell(CommandKind::kActivate, 1);
  EXPECT_THAT(std::get<SendReport>(last_.back()).report.offers, ::testing::IsEmpty());
}

TEST_F(MemberTest, WhoCannotBeginAnEpochDoesNotGo) {
  InstallAtOnce();
  Feed(EpochLinked{1, "refused"});
  EXPECT_EQ(Count<Activated>(), 0);
  EXPECT_EQ(core_->state(), MemberState::kPrepared);
}

// What was to follow at a boundary would go on over the links of the epoch that broke before it.
TEST_F(MemberTest, TellsWhoPlansThatTheEpochWasCutShort) {
  Enter(1);
  Tell(CommandKind::kPlan, 1, 1, 9);
  Feed(CommunicatorBroke{1, "reset"});
  Feed(UserReady{1, true});
  Tell(CommandKind::kPrepare, 2, 1);
  Feed(OffersMade{2, {}, ""});
  const Report& planned = std::get<SendReport>(last_.back()).report;
  EXPECT_EQ(planned.state, MemberState::kPrepared);
  EXPECT_TRUE(planned.broken);
  Tell(CommandKind::kPrepare, 3);
  Feed(OffersMade{3, {}, ""});
  EXPECT_FALSE(std::get<SendReport>(last_.back()).report.broken);
}

TEST_F(MemberTest, LeavesAtOnceForANewerEpochAndNeverForAnOlder) {  // GM-1, GM-4
  Enter(3);
  Tell(CommandKind::kPrepare, 2);
  EXPECT_EQ(core_->state(), MemberState::kActive);
  Tell(CommandKind::kPrepare, 4);
  EXPECT_EQ(Count<AbortEpoch>(), 1);
  EXPECT_EQ(Count<MakeOffers>(), 0);  // Not before the user's thread is out.
  EXPECT_EQ(core_->state(), MemberState::kLeaving);
  Feed(UserReady{2, true});
  EXPECT_EQ(Count<MakeOffers>(), 1);
}

TEST_F(MemberTest, StopsAtAPlannedBoundaryOnceConfirmed) {
  Enter(1);
  Tell(CommandKind::kPlan, 1, 1, 2);
  Feed(UserBoundary{});
  ExpectAnswer(false);
  Feed(UserBoundary{});
  EXPECT_EQ(Count<BoundaryAnswer>(), 0);
  Tell(CommandKind::kPrepare, 2, 1);
  ExpectAnswer(true);
  EXPECT_EQ(Count<AbortEpoch>(), 0);
}

TEST_F(MemberTest, GoesOnWhenNobodyConfirmsTheBoundary) {
  Enter(1);
  Tell(CommandKind::kPlan, 1, 1, 1);
  Feed(UserBoundary{});
  now_ = now_ + options_.boundary_wait;
  Feed(MemberTick{});
  ExpectAnswer(false);
  EXPECT_EQ(core_->state(), MemberState::kActive);
}

TEST_F(MemberTest, ABrokenEpochIsAbortedOnceAndStopsAtTheBoundary) {
  Enter(1);
  Feed(CommunicatorBroke{1, "reset"});
  EXPECT_EQ(Count<AbortEpoch>(), 1);
  Feed(CommunicatorBroke{1, "reset"});
  EXPECT_EQ(Count<AbortEpoch>(), 0);
  Feed(UserBoundary{});
  ExpectAnswer(true);
}

TEST_F(MemberTest, RepeatsOfACommandAreAnsweredButNotCarriedOutAgain) {
  Enter(1);
  Tell(CommandKind::kInstall, 1);
  EXPECT_EQ(Count<LinkEpoch>(), 0);
  Tell(CommandKind::kActivate, 1);
  EXPECT_EQ(Count<Activated>(), 0);
  EXPECT_EQ(core_->state(), MemberState::kActive);
}

TEST_F(MemberTest, BeatsAtItsInterval) {
  Enter(1);
  now_ = now_ + options_.beat;
  EXPECT_LE(core_->NextDeadline(), now_);
  Feed(MemberTick{});
  EXPECT_EQ(Count<SendReport>(), 1);
  EXPECT_EQ(core_->NextDeadline(), now_ + options_.beat);
}

TEST_F(MemberTest, ReportsCarryGrowingSequenceNumbers) {
  Feed(UserReady{3, true});
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    now_ = now_ + options_.beat;
    Feed(MemberTick{});
    ASSERT_EQ(Count<SendReport>(), 1);
    const Report& report = std::get<SendReport>(last_.back()).report;
    EXPECT_GT(report.sequence, last);
    EXPECT_EQ(report.version, 3U);
    EXPECT_EQ(report.state, MemberState::kReady);
    last = report.sequence;
  }
}

TEST_F(MemberTest, AHaltedMemberIsReadyAgainOnceItsUserIsOut) {
  Enter(2);
  Tell(CommandKind::kHalt, 2);
  EXPECT_EQ(Count<AbortEpoch>(), 1);
  EXPECT_EQ(core_->state(), MemberState::kLeaving);
  Feed(UserReady{5, true});
  EXPECT_EQ(core_->state(), MemberState::kReady);
  Tell(CommandKind::kActivate, 2);  // Too late.
  EXPECT_EQ(core_->state(), MemberState::kReady);
}

TEST_F(MemberTest, ALinkThatFailsIsReportedAndTheMemberWaitsForTheNextEpoch) {
  Feed(UserReady{1, true});
  Tell(CommandKind::kPrepare, 1);
  Feed(OffersMade{1, {}, ""});
  Tell(CommandKind::kInstall, 1);
  Feed(EpochLinked{1, "refused"});
  ASSERT_GE(Count<SendReport>(), 1);
  const Report& report = std::get<SendReport>(last_.back()).report;
  EXPECT_TRUE(report.broken);
  EXPECT_EQ(report.problem, "refused");
  EXPECT_NE(core_->state(), MemberState::kLinked);
}

TEST_F(MemberTest, OperationsAreToldWithTheBeatAndASlowOneOnceBeforeIt) {
  options_.beat = seconds(1);
  core_.emplace(options_, now_);
  Enter(1);
  Feed(OperationBegan{1, {1, 7, "barrier"}});
  EXPECT_EQ(Count<SendReport>(), 0);
  EXPECT_EQ(core_->NextDeadline(), now_ + options_.slow_operation);
  now_ = now_ + options_.slow_operation;
  Feed(MemberTick{});
  ASSERT_EQ(Count<SendReport>(), 1);
  Report report = std::get<SendReport>(last_.back()).report;
  EXPECT_TRUE(report.blocked);
  EXPECT_EQ(report.progress.sequence, 1U);
  EXPECT_EQ(report.progress.signature, 7U);
  EXPECT_EQ(report.progress.operation, "barrier");
  now_ = now_ + options_.slow_operation;
  Feed(MemberTick{});
  EXPECT_EQ(Count<SendReport>(), 0);  // Once.
  Feed(OperationEnded{1, 1});
  EXPECT_EQ(Count<SendReport>(), 0);
  now_ = now_ + options_.beat;
  Feed(MemberTick{});
  report = std::get<SendReport>(last_.back()).report;
  EXPECT_FALSE(report.blocked);
  EXPECT_EQ(report.progress.sequence, 1U);  // How far it has come.
}

TEST_F(MemberTest, WhoIsBlockedTellsWhatItWasInBefore) {
  Enter(1);
  Feed(OperationBegan{1, {1, 7, "broadcast"}});
  Feed(OperationEnded{1, 1});
  now_ = now_ + options_.beat;
  Feed(MemberTick{});
  EXPECT_TRUE(std::get<SendReport>(last_.back()).report.recent.empty());
  Feed(OperationBegan{1, {2, 8, "barrier"}});
  now_ = now_ + options_.slow_operation;
  Feed(MemberTick{});
  const Report& report = std::get<SendReport>(last_.back()).report;
  ASSERT_EQ(report.recent.size(), 1U);
  EXPECT_EQ(report.recent[0].sequence, 1U);
  EXPECT_EQ(report.recent[0].signature, 7U);
}

TEST_F(MemberTest, ProgressCountsFromTheEpoch) {
  Enter(1);
  Feed(OperationBegan{1, {5, 7, "barrier"}});
  Tell(CommandKind::kHalt, 1);
  Enter(2);
  Feed(OperationEnded{1, 5});
  Feed(OperationBegan{1, {6, 7, "barrier"}});  // Of an epoch that is over.
  now_ = now_ + options_.beat;
  Feed(MemberTick{});
  const Report& report = std::get<SendReport>(last_.back()).report;
  EXPECT_EQ(report.progress.sequence, 0U);
  EXPECT_FALSE(report.blocked);
}

TEST_F(MemberTest, AVerdictFailsTheOperationsOnceAndBreaksTheEpoch) {  // GM-11
  Enter(3);
  Command fail;
  fail.kind = CommandKind::kFail;
  fail.epoch = 2;
  fail.reason = "they do not match";
  Feed(CommandReceived{fail});
  EXPECT_EQ(Count<FailOperations>(), 0);  // Of another epoch.
  fail.epoch = 3;
  Feed(CommandReceived{fail});
  ASSERT_EQ(Count<FailOperations>(), 1);
  EXPECT_EQ(std::get<FailOperations>(last_.front()).reason, fail.reason);
  EXPECT_TRUE(std::get<SendReport>(last_.back()).report.broken);
  Feed(CommandReceived{fail});
  EXPECT_EQ(Count<FailOperations>(), 0);
  Feed(UserBoundary{});
  ExpectAnswer(true);
}

TEST_F(MemberTest, AVerdictThatWasLostComesWithTheNextEpochOrAHalt) {  // GM-11
  Enter(1);
  Command command;
  command.kind = CommandKind::kPrepare;
  command.epoch = 2;
  command.failed = 1;
  command.verdict = "they do not match";
  Feed(CommandReceived{command});
  ASSERT_EQ(Count<FailOperations>(), 1);
  EXPECT_TRUE(std::holds_alternative<FailOperations>(last_.front()));  // Before AbortEpoch.
  EXPECT_EQ(Count<AbortEpoch>(), 1);
  EXPECT_EQ(core_->state(), MemberState::kLeaving);

  core_.emplace(options_, now_);
  Enter(1);
  command.kind = CommandKind::kHalt;
  command.epoch = 1;
  Feed(CommandReceived{command});
  ASSERT_EQ(Count<FailOperations>(), 1);
  EXPECT_TRUE(std::holds_alternative<FailOperations>(last_.front()));
}

TEST_F(MemberTest, ALinkAheadIsCancelledForItsAttemptOrByTheNextOne) {
  Enter(1);
  const auto prelink = [this](uint64_t attempt, const std::string& theirs) {
    Command command;
    command.kind = CommandKind::kPrelink;
    command.plan = attempt;
    command.relink = {4};
    if (!theirs.empty()) command.offers = {{4, attempt, theirs}};
    Feed(CommandReceived{command});
  };
  const auto cancel = [this](uint64_t attempt) {
    Command command;
    command.kind = CommandKind::kCancelPrelink;
    command.plan = attempt;
    command.relink = {4};
    Feed(CommandReceived{command});
  };
  prelink(2, "");
  Feed(PrelinkOffered{4, 2, "mine"});
  prelink(2, "theirs");
  ASSERT_EQ(Count<LinkAhead>(), 1);
  cancel(1);
  EXPECT_EQ(Count<CancelPrelink>(), 0);  // Of an older attempt: this one goes on.
  prelink(3, "");                        // Who comes in its place has the same slot.
  ASSERT_EQ(Count<CancelPrelink>(), 1);
  EXPECT_TRUE(std::holds_alternative<CancelPrelink>(last_.front()));  // Before the new offer.
  cancel(3);
  EXPECT_EQ(Count<CancelPrelink>(), 1);
  now_ = now_ + options_.beat;
  Feed(MemberTick{});
  EXPECT_TRUE(std::get<SendReport>(last_.back()).report.prelinks.empty());
  cancel(3);
  EXPECT_EQ(Count<CancelPrelink>(), 0);
}

Command Expulsion(uint64_t incarnation = 0) {
  Command expel;
  expel.kind = CommandKind::kExpel;
  expel.epoch = 1;
  expel.plan = incarnation;
  expel.expel = ExpelKind::kFenced;
  expel.reason = "declared dead";
  return expel;
}

TEST_F(MemberTest, AnExpelledMemberIsToldOnce) {
  Enter(1);
  const Command expel = Expulsion();
  Feed(CommandReceived{expel});
  EXPECT_EQ(Count<Expelled>(), 1);
  EXPECT_TRUE(core_->expelled());
  Feed(CommandReceived{expel});
  EXPECT_EQ(Count<Expelled>(), 0);
}

// A process can join again before the answer to its last report as a former member arrives.
TEST_F(MemberTest, IgnoresTheExpulsionOfAnotherMembership) {
  Enter(1);
  Feed(CommandReceived{Expulsion(options_.id.incarnation + 1)});
  EXPECT_EQ(Count<Expelled>(), 0);
  EXPECT_FALSE(core_->expelled());
  Feed(CommandReceived{Expulsion(options_.id.incarnation)});
  EXPECT_EQ(Count<Expelled>(), 1);
}

}  // namespace
}  // namespace troupe::groups
