// What the coordinator makes of the collectives that its members are in: mismatches and stalls.
// Ahead-of-time links to who is gone are here too.
#include "tests/unit/collective_groups/membership/coordinator_rig.h"

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OperationsTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    limits_.stall_report_after = seconds(3);
    limits_.stall_remove_after = seconds(10);
    limits_.lease = seconds(60);
  }
  void In(int n, uint64_t sequence, uint64_t signature = 0, const std::string& operation = "sum",
          bool compares = false) {
    Of(n).progress = {sequence, signature, operation};
    Of(n).progress.compares = compares;
    Of(n).blocked = true;
    Say(n);
  }
  void Out(int n, uint64_t sequence) {
    Of(n).progress = {sequence, 0, "sum"};
    Of(n).blocked = false;
    Say(n);
  }
  // Everybody repeats what it said last, `after` later; returns what was decided in all.
  std::vector<GroupStalled> Later(Duration after, int members) {
    now_ = now_ + after;
    std::vector<GroupStalled> stalls;
    for (int n = 0; n < members; ++n) {
      if (core_->phase() != GroupPhase::kActive && core_->phase() != GroupPhase::kPlanning &&
          core_->phase() != GroupPhase::kPreparing) {
        break;
      }
      Say(n);
      for (const GroupStalled& s : All<GroupStalled>()) stalls.push_back(s);
      for (const std::string& name : To(CommandKind::kFail)) failed_.push_back(name);
    }
    return stalls;
  }
  std::vector<std::string> failed_;  // Who was told a verdict in Later.
};

TEST_F(OperationsTest, DifferentSignaturesOfOneCollectiveFailItOnEveryMember) {
  FormActive(1, 3);
  In(0, 4, 11, "all-reduce float32[8]");
  In(1, 4, 22, "all-reduce float32[9]");
  In(2, 4, 11, "all-reduce float32[8]");
  EXPECT_THAT(To(CommandKind::kFail), IsEmpty());  // One report may be of a moment ago.
  Say(0);
  EXPECT_THAT(To(CommandKind::kFail), IsEmpty());
  Say(1);
  EXPECT_THAT(To(CommandKind::kFail), ElementsAre("w0", "w1", "w2"));
  const Command fail = CommandTo(2, CommandKind::kFail);
  EXPECT_EQ(fail.epoch, 1U);
  EXPECT_THAT(fail.reason, HasSubstr("rank 0 all-reduce float32[8]"));
  EXPECT_THAT(fail.reason, HasSubstr("rank 1 all-reduce float32[9]"));
  EXPECT_THAT(fail.reason, HasSubstr("number 4 of epoch 1"));
}

TEST_F(OperationsTest, AVerdictIsRepeatedAndTheSameMembersGoOnInANewEpoch) {
  FormActive(1, 2);
  In(0, 1, 11);
  In(1, 1, 22);
  Say(0);
  Say(1);
  ASSERT_THAT(To(CommandKind::kFail), ElementsAre("w0", "w1"));
  Of(0).broken = true;
  Of(0).blocked = false;
  Say(0);
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  // The epoch is broken, but w1 may not know why: it learns it with the next epoch.
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w1"));
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  const Command prepare = CommandTo(1, CommandKind::kPrepare);
  EXPECT_EQ(prepare.failed, 1U);
  EXPECT_THAT(prepare.verdict, HasSubstr("different collectives"));
  EXPECT_THAT(prepare.relink, ElementsAre(0));  // Its links carried half an operation.
  for (const MemberState state : {MemberState::kPrepared, MemberState::kLinked}) {
    for (const int n : {0, 1}) {
      Of(n).blocked = false;
      Say(n, state, 2);
    }
  }
  ASSERT_EQ(All<EpochActivated>().size(), 1U);
  EXPECT_EQ(All<EpochActivated>()[0].cause, EpochCause::kMismatch);
  Feed(MemberDied{Id(0), "killed"});
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  EXPECT_EQ(CommandTo(1, CommandKind::kPrepare).failed, 0U);  // An old verdict is not told again.
}

TEST_F(OperationsTest, AVerdictThatIsLostIsToldAgain) {
  FormActive(1, 2);
  In(0, 1, 11);
  In(1, 1, 22);
  Say(0);
  Say(1);
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kFail), ElementsAre("w0", "w1"));
}

TEST_F(OperationsTest, UnknownSignaturesAndOtherCollectivesAreNotCompared) {
  FormActive(1, 3);
  In(0, 4, 11);
  In(1, 4, 0);
  In(2, 5, 22);
  for (int round = 0; round < 3; ++round) {
    Later(milliseconds(500), 3);
    EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  }
  EXPECT_THAT(failed_, IsEmpty());
}

// They tell each other, and each of them the same: a verdict would end what they go on with.
TEST_F(OperationsTest, WhoComparesIsLeftAlone) {
  FormActive(1, 3);
  for (const int n : {0, 1, 2}) In(n, 1, n == 2 ? 22 : 11, "sum", true);
  for (int round = 0; round < 3; ++round) Later(milliseconds(500), 3);
  EXPECT_THAT(failed_, IsEmpty());
  for (int round = 0; round < 20; ++round) Later(milliseconds(500), 3);
  EXPECT_THAT(failed_, Not(IsEmpty())) << "something is wrong with that";
}

TEST_F(OperationsTest, OnlyThoseWhoAllCompareAreLeftAlone) {
  FormActive(1, 2);
  In(0, 1, 11);
  In(1, 1, 22, "sum", true);
  Say(0);
  Say(1);
  EXPECT_THAT(To(CommandKind::kFail), ElementsAre("w0", "w1"));
}

// A root sends and goes on, and so do those that agree with it.
TEST_F(OperationsTest, WhoHasGoneOnIsComparedByWhatItWasIn) {
  FormActive(1, 3);
  for (const int n : {0, 1}) {
    Of(n).recent = {{3, 22, "barrier"}, {4, 11, "broadcast root 0"}};
    In(n, 5, 33, "barrier");
  }
  In(2, 4, 22, "broadcast root 1");
  EXPECT_THAT(To(CommandKind::kFail), IsEmpty());  // It may have been about to end.
  Say(2);
  EXPECT_THAT(To(CommandKind::kFail), ElementsAre("w0", "w1", "w2"));
  const Command fail = CommandTo(2, CommandKind::kFail);
  EXPECT_THAT(fail.reason, HasSubstr("rank 2 broadcast root 1"));
  EXPECT_THAT(fail.reason, HasSubstr("ranks 0, 1 broadcast root 0"));
  EXPECT_THAT(fail.reason, HasSubstr("number 4 of epoch 1"));
}

TEST_F(OperationsTest, WhoHasNotBegunTheEpochTellsOfTheOneBefore) {
  FormActive(1, 2);
  Of(1).recent = {{4, 11, "of the epoch before"}};
  Of(1).blocked = true;
  Say(1, MemberState::kLinked, 1);
  In(0, 4, 22);
  Say(0);
  EXPECT_THAT(To(CommandKind::kFail), IsEmpty());
}

TEST_F(OperationsTest, WhoHasGoneOnFromTheSameIsNotAMismatch) {
  FormActive(1, 3);
  Of(0).recent = {{3, 22, "barrier"}, {4, 11, "broadcast"}};
  Of(1).recent = {{3, 0, "unknown"}, {4, 0, "unknown"}, {4, 55, "state transfer", true}};
  In(0, 5, 33);
  In(1, 5, 33);
  In(2, 4, 11, "broadcast");
  for (int round = 0; round < 3; ++round) Later(milliseconds(500), 3);
  EXPECT_THAT(failed_, IsEmpty());
}

TEST_F(OperationsTest, WhoKeepsTheOthersWaitingIsToldAndToldAgainAndPutAside) {
  FormActive(1, 3);
  Out(2, 6);
  In(0, 7, 0, "all-reduce of 8 bytes");
  In(1, 7, 0, "all-reduce of 8 bytes");
  EXPECT_THAT(Later(milliseconds(2900), 3), IsEmpty());
  std::vector<GroupStalled> stalls = Later(milliseconds(100), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));
  EXPECT_THAT(stalls[0].waiting, ElementsAre(0, 1));
  EXPECT_EQ(stalls[0].operation, "all-reduce of 8 bytes");
  EXPECT_EQ(stalls[0].lasted, seconds(3));
  EXPECT_FALSE(stalls[0].removed);
  EXPECT_THAT(Later(milliseconds(2900), 3), IsEmpty());
  EXPECT_EQ(Later(milliseconds(100), 3).size(), 1U);
  EXPECT_EQ(Later(milliseconds(3000), 3).size(), 1U);
  stalls = Later(milliseconds(1000), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_TRUE(stalls[0].removed);
  ASSERT_EQ(All<FenceMember>().size(), 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(2));
  const View view = Activate(All<PersistRecord>()[0]);
  EXPECT_THAT(Names(view), ElementsAre("w0", "w1"));
  EXPECT_THAT(view.reason, HasSubstr("rank 2 w2#1"));
}

TEST_F(OperationsTest, AnotherCollectiveIsAnotherStall) {
  FormActive(1, 2);
  Out(1, 0);
  In(0, 1);
  EXPECT_EQ(Later(seconds(3), 2).size(), 1U);
  In(1, 1);
  Out(1, 1);
  In(0, 2);
  EXPECT_THAT(Later(milliseconds(2900), 2), IsEmpty());
  EXPECT_EQ(Later(milliseconds(100), 2).size(), 1U);
}

TEST_F(OperationsTest, NobodyIsPutAsideIfTheLimitIsZero) {
  limits_.stall_remove_after = Duration::zero();
  FormActive(1, 2);
  Out(1, 0);
  In(0, 1);
  EXPECT_EQ(Later(seconds(3600), 2).size(), 1U);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
}

TEST_F(OperationsTest, WhoHasFinishedIsNotMissingInWhatItTookPartIn) {
  FormActive(1, 3);
  Out(2, 1);
  Say(2, MemberState::kFinished, 1);
  In(0, 1);
  In(1, 1);
  EXPECT_THAT(Later(seconds(20), 2), IsEmpty());
  Out(1, 1);
  In(0, 1);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
}

TEST_F(OperationsTest, WhoWaitsForAMemberThatHasReturnedGoesOnWithoutIt) {
  FormActive(1, 3);
  Out(2, 1);
  Say(2, MemberState::kFinished, 1);
  In(0, 2);
  In(1, 2);
  now_ = now_ + options_.finish_grace;
  Say(1);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);  // The one that has waited longest must say so.
  Say(0);
  const auto stalls = All<GroupStalled>();
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));
  EXPECT_THAT(stalls[0].reason, HasSubstr("returned"));
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w1"));
}

TEST_F(OperationsTest, AGroupThatMovesNoBytesConnectsAnew) {
  FormActive(1, 2);
  const auto say = [&](uint64_t moved) {
    for (int n = 0; n < 2; ++n) {
      Of(n).moved = moved;
      In(n, 1);
    }
  };
  say(100);
  now_ = now_ + seconds(2);
  say(101);  // Something has moved.
  now_ = now_ + seconds(2);
  say(101);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  now_ = now_ + seconds(1);
  say(101);
  EXPECT_EQ(core_->phase(), GroupPhase::kPersisting);
  EXPECT_THAT(core_->waiting_for(), HasSubstr("store"));
}

TEST_F(OperationsTest, WhatDoesNotTellItsBytesIsLeftAlone) {
  FormActive(1, 2);
  In(0, 1);
  In(1, 1);
  EXPECT_THAT(Later(seconds(3600), 2), IsEmpty());
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
}

TEST_F(OperationsTest, WhoIsInAnEarlierCollectiveWaitsItselfUnlessNobodyIsIdle) {
  FormActive(1, 3);
  Out(2, 2);
  In(1, 4);
  In(0, 5);  // The root of a broadcast may be ahead.
  std::vector<GroupStalled> stalls = Later(seconds(3), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));
  In(2, 3);
  stalls = Later(seconds(3), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));  // Who is furthest behind.
}

// A large state may take longer than any limit; what it needs is told, but nobody is ended for it.
TEST_F(OperationsTest, WhoIsInATransferIsToldButNotPutAside) {
  FormActive(1, 3);
  In(0, 1);
  for (const int n : {1, 2}) {
    Of(n).progress = {0, 0, "state transfer", true};
    Of(n).blocked = true;
    Say(n);
  }
  std::vector<GroupStalled> stalls = Later(seconds(20), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(1, 2));
  EXPECT_FALSE(stalls[0].removed);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  Out(2, 0);  // Unless one of them has left it and hangs since then.
  EXPECT_THAT(Later(milliseconds(9999), 3),
              ::testing::Each(::testing::Field(&GroupStalled::removed, false)));
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  stalls = Later(milliseconds(1), 3);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_THAT(stalls[0].missing, ElementsAre(2));
  EXPECT_TRUE(stalls[0].removed);
}

TEST_F(OperationsTest, EverybodyInTheSameCollectiveIsNoStall) {
  FormActive(1, 2);
  In(0, 1);
  In(1, 1);
  EXPECT_THAT(Later(seconds(20), 2), IsEmpty());
}

// Silence is not known to be waiting: the lease decides about who is not heard.
TEST_F(OperationsTest, OnlyTimeThatBothSidesReportedCounts) {
  FormActive(1, 2);
  Out(1, 0);
  In(0, 1);
  now_ = now_ + seconds(20);
  Say(0);
  EXPECT_THAT(All<GroupStalled>(), IsEmpty());
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  Say(1);
  EXPECT_EQ(All<GroupStalled>().size(), 1U);
}

TEST_F(OperationsTest, AStallIsSeenWhileAJoinIsPlanned) {
  FormActive(1, 2);
  Feed(DrainRequested{Id(0), "asked"});
  ASSERT_EQ(core_->phase(), GroupPhase::kPlanning);
  AnswerPlan(2, CommandTo(0, CommandKind::kPlan), true);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  ASSERT_EQ(core_->phase(), GroupPhase::kPreparing);
  Out(1, 0);
  In(0, 1);
  const std::vector<GroupStalled> stalls = Later(seconds(10), 2);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_TRUE(stalls[0].removed);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(1));
}

TEST_F(OperationsTest, WhoHasLeftAtThePlannedBoundaryIsNotMissing) {
  FormActive(1, 3);
  Feed(DrainRequested{Id(2), "asked"});
  AnswerPlan(3, CommandTo(0, CommandKind::kPlan), true);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  In(2, 9);  // It missed the boundary, and leaves anyway.
  Say(0, MemberState::kPrepared, 2);
  Say(1, MemberState::kLeaving, 1);
  EXPECT_THAT(Later(seconds(20), 3), IsEmpty());
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
}

TEST_F(OperationsTest, APlannedBoundaryThatIsNotReachedAbortsTheStepAndFencesNobody) {
  FormActive(1, 3);
  Feed(DrainRequested{Id(2), "asked"});
  AnswerPlan(3, CommandTo(0, CommandKind::kPlan), true);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  now_ = now_ + options_.prepare_timeout;
  Feed(Tick{});
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  ASSERT_EQ(All<PersistRecord>().size(), 1U);
  Feed(StoreAnswered{All<PersistRecord>()[0].request, ErrorCode::kOk, std::nullopt});
  EXPECT_FALSE(CommandTo(0, CommandKind::kPrepare).planned);
}

// It reports all the time, so no lease ends it.
TEST_F(OperationsTest, AMemberThatHangsDoesNotKeepAParkedGroupParked) {
  FormActive(2, 2);
  Feed(MemberDied{Id(1), "killed"});
  ASSERT_EQ(core_->phase(), GroupPhase::kParked);
  Say(0, MemberState::kLeaving, 1);
  Ready(2);
  Ready(3);
  EXPECT_EQ(core_->phase(), GroupPhase::kParked);
  now_ = now_ + options_.prepare_timeout - milliseconds(1);
  Say(0);
  EXPECT_EQ(core_->phase(), GroupPhase::kParked);
  now_ = now_ + milliseconds(1);
  Say(0);
  ASSERT_EQ(All<FenceMember>().size(), 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(0));
  EXPECT_THAT(Names(All<PersistRecord>()[0].record.view), ElementsAre("w2", "w3"));
}

TEST_F(OperationsTest, ThePrelinkToADeadJoinerIsCancelledAtOnce) {
  FormActive(1, 2);
  Ready(2);
  const uint64_t attempt = CommandTo(2, CommandKind::kPrelink).plan;
  Feed(MemberDied{Id(2), "killed"});
  EXPECT_THAT(To(CommandKind::kCancelPrelink), ElementsAre("w0", "w1"));
  EXPECT_EQ(CommandTo(0, CommandKind::kCancelPrelink).plan, attempt);
  EXPECT_THAT(CommandTo(0, CommandKind::kCancelPrelink).relink, ElementsAre(2));
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
}

TEST_F(OperationsTest, ACancelThatWasLostIsRepeatedToWhoStillOffers) {
  FormActive(1, 2);
  Ready(2);
  const uint64_t attempt = CommandTo(2, CommandKind::kPrelink).plan;
  Of(0).prelinks = {{2, attempt, "zero-to-two"}};
  Say(0);
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kCancelPrelink), IsEmpty());  // The joiner lives.
  Feed(MemberDied{Id(2), "killed"});
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kCancelPrelink), ElementsAre("w0"));
  Of(0).prelinks.clear();
  Say(0);
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kCancelPrelink), IsEmpty());
}

}  // namespace
}  // namespace troupe::groups
