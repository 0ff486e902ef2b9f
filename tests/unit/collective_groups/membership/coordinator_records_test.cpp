// The record of a group: restarts that go on from it, terms, and a store that does not answer.
#include "tests/unit/collective_groups/membership/coordinator_rig.h"

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CoordinatorTest, ARestartGoesOnFromTheRecord) {
  const View view = FormActive(1, 2);
  Start(1, 2, EpochRecord{"old", 4, view, 3, false});
  EXPECT_EQ(core_->phase(), GroupPhase::kRecovering);
  Say(0);
  EXPECT_EQ(core_->phase(), GroupPhase::kRecovering);
  Say(1);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  EXPECT_EQ(core_->view(), view);
  EXPECT_THAT(All<PersistRecord>(), IsEmpty());
  ASSERT_EQ(All<EpochActivated>().size(), 1U) << "who asks this head is to know it";
  EXPECT_TRUE(All<EpochActivated>()[0].known);
  EXPECT_EQ(All<EpochActivated>()[0].view, view);
  EXPECT_EQ(core_->waiting_for(), "");
}

TEST_F(CoordinatorTest, PlansAndPrelinksAfterARestartAreNewerThanThoseBefore) {
  const View view = FormActive(1, 3);
  const auto plan = [&] {
    Feed(DrainRequested{Id(2), "asked"});
    return CommandTo(0, CommandKind::kPlan).plan;
  };
  const auto prelink = [&] {
    Ready(3);
    return CommandTo(3, CommandKind::kPrelink).plan;
  };
  const uint64_t old_prelink = prelink();
  const uint64_t old_plan = plan();
  term_ = 6;
  Start(1, 3, EpochRecord{"old", 5, view, 4, false});
  for (int n = 0; n < 3; ++n) Say(n);
  ASSERT_EQ(core_->phase(), GroupPhase::kActive);
  EXPECT_GT(prelink(), old_prelink);
  EXPECT_GT(plan(), old_plan);
}

TEST_F(CoordinatorTest, ARestartDoesNotWaitForWhoIsKnownToBeDead) {
  const View view = FormActive(1, 2);
  Start(1, 2, EpochRecord{"old", 4, view, 3, false});
  Feed(MemberDied{Id(0), "its process ended"});
  EXPECT_EQ(core_->phase(), GroupPhase::kRecovering);
  Say(1);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w1"));
  EXPECT_EQ(request.record.view.epoch, view.epoch + 1);  // GM-1
}

// Of an epoch that is over; nobody is started in place of those that have died since.
TEST_F(CoordinatorTest, ARestartKnowsThatAMemberHadFinished) {
  const View view = FormActive(2, 2);
  Start(2, 2, EpochRecord{"old", 4, view, 3, false, true});
  Feed(MemberDied{Id(1), "killed"});
  Say(0);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0"));
  EXPECT_TRUE(request.record.finishing);
}

TEST_F(CoordinatorTest, ThatAMemberHadFinishedIsKnownAlsoWhenTheStoreForgets) {  // GM-5
  const View view = FormActive(3, 3);
  Start(3, 3, EpochRecord{"old", 4, view, 4, false, true});
  for (const int n : {0, 1}) Say(n, MemberState::kActive, 1);
  Feed(MemberDied{Id(2), "killed"});
  const PersistRecord request = Persisted();
  Feed(StoreAnswered{request.request, ErrorCode::kConflict, std::nullopt});
  EXPECT_TRUE(Persisted().record.finishing);
  Activate(Persisted());
  Feed(MemberDied{Id(1), "killed"});
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0")) << core_->waiting_for();
}

TEST_F(CoordinatorTest, ARestartDropsWhoIsNotHeardInTime) {
  const View view = FormActive(1, 2);
  Start(1, 2, EpochRecord{"old", 4, view, 3, false});
  Of(1).has_state = true;
  Say(1);
  now_ = now_ + options_.recover_grace;
  Feed(Tick{});
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w1"));
  EXPECT_GT(request.record.view.epoch, view.epoch + 1);  // GM-1: w0 may know a later one.
  EXPECT_EQ(request.record.view.members[0].seniority, 2U);
}

TEST_F(CoordinatorTest, AHigherTermDeposesAndALowerOneIsOverwritten) {
  FormActive(1, 2);
  Feed(MemberDied{Id(1), "killed"});
  PersistRecord request = Persisted();
  EpochRecord other = *request.expected;
  other.term = 4;
  other.view.epoch = 9;
  Feed(StoreAnswered{request.request, ErrorCode::kConflict, other});
  request = Persisted();
  EXPECT_EQ(request.expected->view.epoch, 9U);
  EXPECT_EQ(request.record.view.epoch, 10U);
  other.term = 6;
  Feed(StoreAnswered{request.request, ErrorCode::kConflict, other});
  EXPECT_EQ(All<Deposed>().size(), 1U);
  EXPECT_EQ(core_->NextDeadline(), Time::Never());
}

TEST_F(CoordinatorTest, AnUnavailableStoreIsAskedAgain) {
  FormActive(1, 2);
  Feed(MemberDied{Id(1), "killed"});
  Feed(StoreAnswered{Persisted().request, ErrorCode::kUnavailable, std::nullopt});
  EXPECT_THAT(core_->waiting_for(), HasSubstr("store"));
  now_ = now_ + options_.store_retry;
  Feed(Tick{});
  EXPECT_EQ(All<PersistRecord>().size(), 1U);
}

TEST_F(CoordinatorTest, AnEpochThatAMemberKnowsIsNotWrittenInASecondAttempt) {  // GM-1
  Start(2, 2);
  Ready(0);
  Ready(1);
  const PersistRecord first = Persisted();
  EXPECT_EQ(first.record.view.epoch, 1U);
  Feed(StoreAnswered{first.request, ErrorCode::kUnavailable, std::nullopt});
  Say(2, MemberState::kReady, 1);  // Of a group that the store has forgotten.
  now_ = now_ + options_.store_retry;
  Feed(Tick{});
  EXPECT_GT(Persisted().record.view.epoch, 1U);
}

TEST_F(CoordinatorTest, MembersThatAnotherTookFurtherAreProposedANewerEpoch) {  // GM-5
  FormActive(2, 2);
  Say(0, MemberState::kPrepared, 3);
  now_ = now_ + options_.error_grace;
  Say(1, MemberState::kPrepared, 3);
  const PersistRecord request = Persisted();
  EXPECT_GT(request.record.view.epoch, 3U);
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  const Epoch further = request.record.view.epoch + 1;
  Say(0, MemberState::kPrepared, further);  // Once more, while this one is prepared.
  now_ = now_ + options_.error_grace;
  Say(1, MemberState::kPrepared, further);
  ASSERT_EQ(core_->phase(), GroupPhase::kPersisting);
  now_ = now_ + options_.proposal_delay_min;  // The same members a third time.
  Feed(Tick{});
  EXPECT_GT(Persisted().record.view.epoch, further);
}

TEST_F(CoordinatorTest, TwoCoordinatorsOfOneTermDoNotNumberAlike) {  // GM-3
  std::vector<uint64_t> attempts;
  for (const std::string owner : {"first", "second"}) {  // The store has lost the count of terms.
    owner_ = owner;
    reports_.clear();
    FormActive(1, 2);
    Ready(2);
    attempts.push_back(CommandTo(2, CommandKind::kPrelink).plan);
  }
  EXPECT_NE(attempts[0], attempts[1]);
}

}  // namespace
}  // namespace troupe::groups
