// GM-13 and GM-14: who cannot be connected, who has no part in the end, and a store that forgets.
#include "collective_groups/membership/pair_faults.h"
#include "tests/unit/collective_groups/membership/coordinator_rig.h"

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class AbsenceTest : public CoordinatorTest {
 protected:
  void SetUp() override { limits_.lease = seconds(3600); }

  // Member `from` says that it cannot connect to the slots `to` in the epoch to come.
  void CannotReach(int from, std::vector<uint32_t> to, Epoch epoch) {
    Of(from).state = MemberState::kPrepared;
    Of(from).epoch = epoch;
    Of(from).broken = true;
    Of(from).unreachable = std::move(to);
    Say(from);
    now_ = now_ + options_.error_grace;
    Feed(Tick{});
  }
  // Stores what was proposed, if it must wait then later, and prepares 0..count-1 without `out`.
  Epoch Prepare(const std::vector<int>& members) {
    for (int tries = 0; All<PersistRecord>().empty(); ++tries) {
      if (tries == 1000) {
        ADD_FAILURE() << "nothing is proposed: " << core_->waiting_for();
        return 0;
      }
      now_ = core_->NextDeadline();
      Feed(Tick{});
    }
    const PersistRecord request = All<PersistRecord>().front();
    Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
    for (const int n : members) {
      Of(n).unreachable.clear();
      Of(n).offers = {{9, 0, "offer"}};
      Say(n, MemberState::kPrepared, request.record.view.epoch);
    }
    return request.record.view.epoch;
  }
};

TEST_F(AbsenceTest, AJoinerThatCannotBeLinkedNeverStopsTheGroup) {
  FormActive(1, 2);
  Ready(2);
  Duration waited{};
  for (int round = 0; round < 4; ++round) {
    now_ = now_ + options_.prelink_timeout;
    Ready(2);
    ASSERT_EQ(All<GroupUnreachable>().size(), 1U) << round;
    const GroupUnreachable told = All<GroupUnreachable>().front();
    EXPECT_EQ(told.id, Id(2));
    EXPECT_THAT(told.peers, ElementsAre(Id(0), Id(1)));
    EXPECT_GT(told.retry_in, waited);  // Longer each time.
    waited = told.retry_in;
    EXPECT_EQ(core_->phase(), GroupPhase::kActive);
    Ready(2);
    EXPECT_THAT(To(CommandKind::kPrelink), IsEmpty());
    now_ = now_ + waited;
    Ready(2);
    EXPECT_THAT(To(CommandKind::kPrelink), Not(IsEmpty()));
  }
  EXPECT_EQ(core_->record()->view.epoch, 1U);
  WarmUp(2, 2);  // The route is back.
  EXPECT_EQ(core_->phase(), GroupPhase::kPlanning);
}

TEST_F(AbsenceTest, AJoinerThatIsLinkedDoesNotWaitForOneThatFailedBefore) {
  FormActive(1, 2);
  Ready(2);
  now_ = now_ + options_.prelink_timeout;
  Ready(2);
  const Duration wait = All<GroupUnreachable>().front().retry_in;
  now_ = now_ + wait;
  Ready(2);
  Ready(3);
  WarmUp(3, 2);
  EXPECT_EQ(core_->phase(), GroupPhase::kPlanning);
}

TEST_F(AbsenceTest, OfMembersThatCannotReachEachOtherOneIsLeftOut) {
  FormActive(1, 3);
  Of(2).problem = Of(0).problem = "no route";
  Of(2).broken = true;
  Say(2);
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  const Epoch second = Prepare({0, 1, 2});
  CannotReach(2, {0, 1}, second);
  EXPECT_THAT(core_->waiting_for(), Not(HasSubstr("w2")));
  Prepare({0, 1});
  EXPECT_EQ(core_->phase(), GroupPhase::kLinking);
  EXPECT_THAT(Names(core_->record()->view), ElementsAre("w0", "w1"));
  // It must come out of the epoch that is not for it.
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kHalt), ElementsAre("w2"));
  for (const int n : {0, 1}) Say(n, MemberState::kLinked, core_->record()->view.epoch);
  for (const int n : {0, 1}) Say(n, MemberState::kActive, core_->record()->view.epoch);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  Say(2, MemberState::kReady, second);
  EXPECT_THAT(To(CommandKind::kPrelink), IsEmpty());  // Not before its time.
  now_ = now_ + options_.absence_min;
  Say(2, MemberState::kReady, second);
  EXPECT_THAT(To(CommandKind::kPrelink), UnorderedElementsAre("w0", "w1", "w2"));
}

TEST_F(AbsenceTest, AGroupThatTheStoreLostWhileItFinishesLeavesOneOutAsWell) {
  Start(1, 3);
  Say(0, MemberState::kFinished, 3);
  ASSERT_EQ(core_->phase(), GroupPhase::kForming) << "the others may be heard yet";
  for (const int n : {1, 2, 3}) Say(n, MemberState::kReady, 3);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Epoch epoch = Prepare({1, 2, 3});
    CannotReach(2, {0, 2}, epoch);  // Of w1 and w3.
    ASSERT_NE(core_->phase(), GroupPhase::kParked) << core_->waiting_for();
  }
  Prepare({1, 3});
  EXPECT_THAT(Names(core_->record()->view), ElementsAre("w1", "w3"));
}

TEST_F(AbsenceTest, AGroupThatTheStoreLostEndsWhenNobodyElseIsHeard) {
  Start(1, 3);
  Say(0, MemberState::kFinished, 3);
  now_ = now_ + options_.form_timeout;
  Say(0);
  EXPECT_EQ(core_->phase(), GroupPhase::kEnding);
}

TEST_F(AbsenceTest, TheSameListIsProposedAgainOnlyAfterAGrowingDelay) {
  FormActive(1, 2);
  Of(1).problem = "reset";
  std::vector<Duration> delays;
  for (int i = 0; i < 8; ++i) {
    Of(1).broken = true;
    Say(1);
    now_ = now_ + options_.error_grace;
    Feed(Tick{});
    const Time before = now_;
    const Epoch epoch = Prepare({0, 1});
    delays.push_back(now_ - before);
    for (const int n : {0, 1}) Say(n, MemberState::kLinked, epoch);
    for (const int n : {0, 1}) Say(n, MemberState::kActive, epoch);
  }
  EXPECT_EQ(delays.front(), Duration::zero());
  EXPECT_GE(delays.back(), milliseconds(300));
  EXPECT_TRUE(std::is_sorted(delays.begin(), delays.end()));
  now_ = now_ + seconds(2);  // It was active for a while: that was no failed try.
  Of(1).broken = true;
  Say(1);
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  EXPECT_EQ(All<PersistRecord>().size(), 1U);
}

// Deaths of members that join again and again leave the same list each time; that is no failed try.
TEST_F(AbsenceTest, AfterAJoinTheSameListIsProposedAtOnce) {
  FormActive(1, 2);
  for (int joiner = 2; joiner < 8; ++joiner) {
    Ready(joiner);
    WarmUp(joiner, 2);
    AnswerPlan(2, CommandTo(0, CommandKind::kPlan), true);
    ASSERT_THAT(Names(Activate(Persisted())),
                ElementsAre("w0", "w1", "w" + std::to_string(joiner)));
    now_ = now_ + milliseconds(100);
    Feed(MemberDied{Id(joiner), "killed"});
    ASSERT_EQ(All<PersistRecord>().size(), 1U) << core_->waiting_for();
    EXPECT_THAT(Names(Activate(Persisted())), ElementsAre("w0", "w1"));
  }
}

TEST_F(AbsenceTest, AStrangerThatReturnsDoesNotEndTheGroup) {  // GM-14
  EpochRecord record{"old", 4, View{"g", 7, {}, "before"}, 5, false};
  for (int n = 0; n < 2; ++n)
    record.view.members.push_back(
        {Id(n), static_cast<uint64_t>(n + 1), static_cast<uint32_t>(n), "h", "", 0, false});
  Start(1, 2, record);
  Say(0, MemberState::kActive, 7);
  Say(1, MemberState::kActive, 7);
  ASSERT_EQ(core_->phase(), GroupPhase::kActive);
  Say(2, MemberState::kFinished, 6);  // Drained by the coordinator before.
  Ready(3);
  EXPECT_THAT(To(CommandKind::kExpel), IsEmpty());
  EXPECT_THAT(To(CommandKind::kPrelink), Not(IsEmpty()));
  Feed(MemberDied{Id(0), "killed"});
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w1"));
  EXPECT_EQ(core_->phase(), GroupPhase::kPersisting);
}

TEST_F(AbsenceTest, ATermThatStartedOverIsLiftedByWhatMembersHaveSeen) {
  EpochRecord record{"old", 9, View{"g", 7, {}, "before"}, 5, false};
  for (int n = 0; n < 2; ++n)
    record.view.members.push_back(
        {Id(n), static_cast<uint64_t>(n + 1), static_cast<uint32_t>(n), "h", "", 0, false});
  term_ = 1;  // The store has lost its count.
  Start(1, 2, record);
  for (int n = 0; n < 2; ++n) Of(n).plan = (uint64_t{9} << 40) + 3;
  Say(0, MemberState::kActive, 7);
  Say(1, MemberState::kActive, 7);
  Ready(2);
  WarmUp(2, 2);
  ASSERT_EQ(core_->phase(), GroupPhase::kPlanning);
  EXPECT_GT(CommandTo(0, CommandKind::kPlan).plan, (uint64_t{9} << 40) + 3);
}

TEST_F(AbsenceTest, AStoreThatConflictsForEverIsNotRacedWith) {
  Start(1, 1);
  Ready(0);
  int writes = 0;
  const Time end = now_ + seconds(10);
  while (now_ < end) {
    for (const PersistRecord& request : std::vector(All<PersistRecord>())) {
      ++writes;
      Feed(StoreAnswered{request.request, ErrorCode::kConflict, std::nullopt});
    }
    if (!All<PersistRecord>().empty()) continue;
    now_ = std::max(now_ + milliseconds(1), core_->NextDeadline());
    Say(0);
    Feed(Tick{});
  }
  EXPECT_LT(writes, 40);
  EXPECT_GT(writes, 5);
}

TEST_F(AbsenceTest, ADeposedCoordinatorSaysNothingToTheMembersOfTheOther) {
  FormActive(1, 2);
  Feed(MemberDied{Id(1), "killed"});
  EpochRecord other = Persisted().record;
  other.owner = "other";
  other.term = 99;
  Feed(StoreAnswered{Persisted().request, ErrorCode::kConflict, other});
  EXPECT_EQ(All<Deposed>().size(), 1U);
  EXPECT_THAT(All<SendCommand>(), IsEmpty());
  Say(0);
  EXPECT_THAT(All<SendCommand>(), IsEmpty());
}

// ---- PairFaults ----

PairFaults::Candidate Member(int n, bool veteran, bool newest) {
  return {{"w" + std::to_string(n), 1}, veteran, newest};
}
std::vector<std::string> Left(const PairFaults& faults,
                              const std::vector<PairFaults::Candidate>& members) {
  std::vector<std::string> names;
  for (const MemberId& id : faults.LeftOut(members, 2)) names.push_back(id.actor);
  return names;
}
void Cut(PairFaults& faults, const std::vector<int>& a, const std::vector<int>& b) {
  for (const int x : a) {
    for (const int y : b) {
      for (int i = 0; i < 2; ++i)
        faults.Failed({"w" + std::to_string(x), 1}, {"w" + std::to_string(y), 1});
    }
  }
}

TEST(PairFaultsTest, OneAttemptIsNoProof) {
  PairFaults faults;
  faults.Failed({"w0", 1}, {"w1", 1});
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, true, true)}), IsEmpty());
}

TEST(PairFaultsTest, TheSmallerSideOfACutIsLeftOut) {
  PairFaults faults;
  Cut(faults, {0}, {1, 2, 3});
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, true, true), Member(2, true, true),
                            Member(3, true, true)}),
              ElementsAre("w0"));
}

TEST(PairFaultsTest, OfEqualSidesTheYounger) {
  PairFaults faults;
  Cut(faults, {0, 1}, {2, 3});
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, true, true), Member(2, true, true),
                            Member(3, true, true)}),
              UnorderedElementsAre("w2", "w3"));
}

TEST(PairFaultsTest, JoinersGoBeforeTheOnlyMember) {
  PairFaults faults;
  Cut(faults, {0}, {1, 2, 3});
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, false, false), Member(2, false, false),
                            Member(3, false, false)}),
              UnorderedElementsAre("w1", "w2", "w3"));
}

TEST(PairFaultsTest, TheLastHolderOfTheNewestStateStays) {
  PairFaults faults;
  Cut(faults, {3}, {0, 1, 2});
  EXPECT_THAT(Left(faults, {Member(0, true, false), Member(1, true, false), Member(2, true, false),
                            Member(3, true, true)}),
              UnorderedElementsAre("w0", "w1", "w2"));
}

TEST(PairFaultsTest, AMemberThatFailsByItselfIsLeftOut) {
  PairFaults faults;
  for (int i = 0; i < 2; ++i) faults.Failed({"w1", 1}, {"w1", 1});
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, true, true)}), ElementsAre("w1"));
}

TEST(PairFaultsTest, WhatWorkedInAnEpochIsForgotten) {
  PairFaults faults;
  Cut(faults, {0}, {1});
  View view;
  view.members = {{{"w0", 1}, 1, 0, "h", "", 0, false}, {{"w1", 1}, 2, 1, "h", "", 0, false}};
  faults.Connected(view);
  EXPECT_THAT(Left(faults, {Member(0, true, true), Member(1, true, true)}), IsEmpty());
}

}  // namespace
}  // namespace troupe::groups
