#include "collective_groups/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::groups {
namespace {

class MemberTest : public ::testing::Test {
 protected:
  void Feed(const MemberEvent& event) { last_ = core_.Step(now_, event); }
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
    EXPECT_EQ(core_.state(), MemberState::kPrepared);  // GM-3: not before it is linked.
    Tell(CommandKind::kInstall, epoch);
    EXPECT_EQ(Count<LinkEpoch>(), 1);
    Feed(EpochLinked{epoch, ""});
    Tell(CommandKind::kActivate, epoch);
    EXPECT_EQ(Count<Activated>(), 1);
  }

  Time now_{1'000'000'000};
  MemberOptions options_{{"w", 1}, "h"};
  Member core_{options_, now_};
  std::vector<MemberAction> last_;
};

TEST_F(MemberTest, LeavesAtOnceForANewerEpochAndNeverForAnOlder) {  // GM-1, GM-4
  Enter(3);
  Tell(CommandKind::kPrepare, 2);
  EXPECT_EQ(core_.state(), MemberState::kActive);
  Tell(CommandKind::kPrepare, 4);
  EXPECT_EQ(Count<AbortEpoch>(), 1);
  EXPECT_EQ(Count<MakeOffers>(), 0);  // Not before the user's thread is out.
  EXPECT_EQ(core_.state(), MemberState::kLeaving);
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
  EXPECT_EQ(core_.state(), MemberState::kActive);
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
  EXPECT_EQ(core_.state(), MemberState::kActive);
}

TEST_F(MemberTest, BeatsAtItsInterval) {
  Enter(1);
  now_ = now_ + options_.beat;
  EXPECT_LE(core_.NextDeadline(), now_);
  Feed(MemberTick{});
  EXPECT_EQ(Count<SendReport>(), 1);
  EXPECT_EQ(core_.NextDeadline(), now_ + options_.beat);
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
  EXPECT_EQ(core_.state(), MemberState::kLeaving);
  Feed(UserReady{5, true});
  EXPECT_EQ(core_.state(), MemberState::kReady);
  Tell(CommandKind::kActivate, 2);  // Too late.
  EXPECT_EQ(core_.state(), MemberState::kReady);
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
  EXPECT_NE(core_.state(), MemberState::kLinked);
}

TEST_F(MemberTest, AnExpelledMemberIsToldOnce) {
  Enter(1);
  Command expel;
  expel.kind = CommandKind::kExpel;
  expel.epoch = 1;
  expel.expel = ExpelKind::kFenced;
  expel.reason = "declared dead";
  Feed(CommandReceived{expel});
  EXPECT_EQ(Count<Expelled>(), 1);
  EXPECT_TRUE(core_.expelled());
  Feed(CommandReceived{expel});
  EXPECT_EQ(Count<Expelled>(), 0);
}

}  // namespace
}  // namespace troupe::groups
