#include "tests/unit/collective_groups/membership/coordinator_rig.h"

namespace troupe::groups {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CoordinatorTest, FormsOnceEnoughAreReadyAndStoresBeforeItSpeaks) {
  Start(2, 3);
  Ready(0);
  Ready(1);
  EXPECT_EQ(core_->phase(), GroupPhase::kForming);
  EXPECT_THAT(core_->waiting_for(), HasSubstr("2 of 3"));
  Ready(2);
  const PersistRecord request = Persisted();
  EXPECT_EQ(request.expected.has_value(), false);
  EXPECT_EQ(request.record.view.epoch, 1U);
  EXPECT_EQ(request.record.term, 5U);
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w1", "w2"));
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  EXPECT_THAT(To(CommandKind::kPrepare), ElementsAre("w0", "w1", "w2"));
  EXPECT_THAT(CommandTo(1, CommandKind::kPrepare).relink, ElementsAre(0, 2));
}

TEST_F(CoordinatorTest, RanksThatAreGivenAreKeptWhoeverIsOlder) {
  limits_.order = {"w2", "w0", "w1"};
  Start(3, 3);
  Ready(0);
  Ready(1);
  Ready(2);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w2", "w0", "w1"));
  EXPECT_EQ(request.record.view.members[0].seniority, 1U) << "as they are listed";
}

TEST_F(CoordinatorTest, AnotherOrderHoldsFromTheNextEpochOn) {
  limits_.order = {"w0", "w1"};
  Start(2, 2);
  Feed(OrderChanged{{"w1", "w0"}});
  Ready(0);
  Ready(1);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w1", "w0"));
}

TEST_F(CoordinatorTest, FormsWithTheMinimumAfterTheFormTimeout) {
  Start(2, 3);
  Ready(0);
  Ready(1);
  now_ = now_ + options_.form_timeout;
  Ready(1);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w1"));
}

TEST_F(CoordinatorTest, WhoeverTrainsIsWaitedForBeforeTheFirstEpochAndAtTheEndOfItsStep) {
  Start(1, 1);
  Feed(TrainingBegins{3, seconds(30), seconds(60)});
  Ready(0);
  Ready(1);
  EXPECT_THAT(All<PersistRecord>(), IsEmpty());
  Ready(2);
  EXPECT_EQ(All<PersistRecord>().size(), 1U);
  EXPECT_EQ(Persisted().record.view.members.size(), 3U);
}

TEST_F(CoordinatorTest, ATrainingThatIsShortOfMembersFormsWithTheMinimumInTime) {
  Start(1, 1);
  PassHearing0(seconds(10));
  Feed(TrainingBegins{3, seconds(30), seconds(60)});
  Ready(0);
  now_ = now_ + seconds(30) - milliseconds(1);
  Ready(0);
  EXPECT_THAT(All<PersistRecord>(), IsEmpty());
  now_ = now_ + milliseconds(1);
  Feed(Tick{});
  EXPECT_EQ(Persisted().record.view.members.size(), 1U);
}

TEST_F(CoordinatorTest, InstallsOffersAndStatesOnlyWhenAllArePrepared) {
  Start(1, 2);
  Ready(0);
  Ready(1);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  Of(0).offers = {{1, 0, "zero-to-one"}};
  Say(0, MemberState::kPrepared, 1);
  EXPECT_THAT(To(CommandKind::kInstall), IsEmpty());
  Of(1).has_state = true;
  Of(1).version = 8;
  Say(1, MemberState::kPrepared, 1);
  const Command install = CommandTo(1, CommandKind::kInstall);
  ASSERT_EQ(install.offers.size(), 1U);
  EXPECT_EQ(install.offers[0].address, "zero-to-one");
  EXPECT_EQ(install.view.members[1].version, 8U);
  Say(0, MemberState::kLinked, 1);
  EXPECT_THAT(To(CommandKind::kActivate), IsEmpty());  // GM-3
  Say(1, MemberState::kLinked, 1);
  EXPECT_THAT(To(CommandKind::kActivate), ElementsAre("w0", "w1"));
}

TEST_F(CoordinatorTest, ADeathIsStoredBeforeAnyCommand) {
  const View old = FormActive(1, 3);
  Feed(MemberDied{Id(1), "killed"});
  const PersistRecord request = Persisted();
  ASSERT_TRUE(request.expected.has_value());
  EXPECT_EQ(request.expected->view.epoch, old.epoch);
  EXPECT_EQ(request.record.view.epoch, 2U);
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w2"));
  Activate(request);
  EXPECT_THAT(Names(core_->view()), ElementsAre("w0", "w2"));
}

// Members of one memory: after a death nothing has to be linked, so nobody waits for the others to
// have begun the epoch.
class OneMemory : public CoordinatorTest {
 protected:
  void Form(int members) {
    for (int n = 0; n < members; ++n) Of(n).memory = "m";
    FormActive(1, members);
  }
  // Its epoch is stored, and members 0 and 2 of three are prepared.
  void LoseMember1() {
    Feed(MemberDied{Id(1), "killed"});
    Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  }
};

TEST_F(OneMemory, AfterADeathNothingIsLinkedAndMembersGoAtOnce) {
  Form(3);
  LoseMember1();
  EXPECT_THAT(CommandTo(0, CommandKind::kPrepare).relink, IsEmpty());
  Say(0, MemberState::kPrepared, 2);
  EXPECT_THAT(To(CommandKind::kInstall), IsEmpty());  // GM-3
  Say(2, MemberState::kPrepared, 2);
  EXPECT_TRUE(CommandTo(0, CommandKind::kInstall).at_once);
  EXPECT_TRUE(CommandTo(2, CommandKind::kInstall).at_once);
  Say(2, MemberState::kActive, 2);
  EXPECT_THAT(All<EpochActivated>(), IsEmpty());
  Say(0, MemberState::kActive, 2);
  EXPECT_EQ(All<EpochActivated>().size(), 1U);
  EXPECT_THAT(To(CommandKind::kActivate), IsEmpty());
}

TEST_F(OneMemory, LinksBetweenHostsAreMadeAnewAfterADeath) {
  Of(2).memory = "m";
  Of(0).memory = "m";
  FormActive(1, 4);
  LoseMember1();
  EXPECT_THAT(CommandTo(0, CommandKind::kPrepare).relink, ElementsAre(3));
  EXPECT_THAT(CommandTo(3, CommandKind::kPrepare).relink, ElementsAre(0, 2));
  for (const int n : {0, 2}) {
    Of(n).offers = {{3, 0, "to 3"}};
    Say(n, MemberState::kPrepared, 2);
  }
  Of(3).offers = {{0, 0, "to 0"}, {2, 0, "to 2"}};
  Say(3, MemberState::kPrepared, 2);
  EXPECT_FALSE(CommandTo(0, CommandKind::kInstall).at_once);
}

// It was about to join when a member died: nobody has seen its memory in an active epoch.
TEST_F(OneMemory, ANewcomerIsLinkedTo) {
  Form(3);
  Of(3).memory = "m";
  Ready(3);
  WarmUp(3, 3);
  AnswerPlan(3, CommandTo(0, CommandKind::kPlan), true);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  LoseMember1();
  EXPECT_THAT(CommandTo(0, CommandKind::kPrepare).relink, ElementsAre(3));
  EXPECT_THAT(CommandTo(3, CommandKind::kPrepare).relink, ElementsAre(0, 2));
}

TEST_F(OneMemory, WhoHasFinishedAlreadyIsNotDead) {
  Form(3);
  LoseMember1();
  for (const int n : {0, 2}) Say(n, MemberState::kPrepared, 2);
  Say(2, MemberState::kFinished, 2);
  EXPECT_EQ(core_->phase(), GroupPhase::kLinking);
  Say(0, MemberState::kActive, 2);
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  EXPECT_EQ(core_->view().epoch, 2U);
}

TEST_F(OneMemory, WhoHasComeOutAgainIsNotWaitedFor) {
  Form(3);
  LoseMember1();
  for (const int n : {0, 2}) Say(n, MemberState::kPrepared, 2);
  Say(2, MemberState::kActive, 2);
  Say(2, MemberState::kReady, 2);  // What it trained gave the epoch up.
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  EXPECT_EQ(Persisted().record.view.epoch, 3U);
}

TEST_F(CoordinatorTest, ASecondDeathWhileStoringAsksForAnotherEpoch) {
  FormActive(1, 3);
  Feed(MemberDied{Id(2), "killed"});
  const PersistRecord first = Persisted();
  Feed(MemberDied{Id(1), "killed"});
  EXPECT_THAT(last_.actions, IsEmpty());
  Feed(StoreAnswered{first.request, ErrorCode::kOk, std::nullopt});
  const PersistRecord second = Persisted();
  EXPECT_EQ(second.record.view.epoch, 3U);
  EXPECT_THAT(Names(second.record.view), ElementsAre("w0"));
  EXPECT_EQ(second.expected->view.epoch, 2U);
}

TEST_F(CoordinatorTest, ADeadIncarnationIsFencedIfItSpeaksAgain) {
  FormActive(1, 2);
  Feed(MemberDied{Id(1), "lost"});
  Say(1);
  EXPECT_EQ(CommandTo(1, CommandKind::kExpel).expel, ExpelKind::kFenced);
}

TEST_F(CoordinatorTest, ASilentMemberIsFencedAfterItsLease) {
  FormActive(1, 2);
  PassHearing0(options_.lease + milliseconds(1));
  ASSERT_EQ(All<FenceMember>().size(), 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(1));
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0"));
}

TEST_F(CoordinatorTest, WhileNobodyIsHeardNobodyIsPutAside) {
  FormActive(1, 2);
  now_ = now_ + options_.silent_lease;
  Feed(Tick{});
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  Say(0);
  PassHearing0(options_.lease - milliseconds(1));
  EXPECT_THAT(All<FenceMember>(), IsEmpty());  // The other is given the time to be heard.
  PassHearing0(milliseconds(2));
  ASSERT_EQ(All<FenceMember>().size(), 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(1));
}

// A member that is heard so rarely that each gap might be ours does not keep a dead one alive.
TEST_F(CoordinatorTest, TheTimeThatIsGivenHasItsLimit) {
  FormActive(1, 2);
  const Time until = now_ + options_.silent_lease + options_.lease;
  size_t fenced = 0;
  while (now_ <= until && fenced == 0) {
    now_ = now_ + options_.lease * 3 / 4;
    Say(0);
    Feed(Tick{});
    fenced += All<FenceMember>().size();
  }
  ASSERT_EQ(fenced, 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(1));
}

TEST_F(CoordinatorTest, ThatNobodyIsHeardHasItsLimit) {
  FormActive(1, 2);
  now_ = now_ + options_.silent_lease + milliseconds(1);
  Feed(Tick{});
  EXPECT_EQ(All<FenceMember>().size(), 2U);
}

// GM-12: its end would be that of the training, and the machine may only be slow.
TEST_F(CoordinatorTest, TheLastHolderOfTheStateIsGivenMoreTime) {
  FormActive(1, 2);
  Of(1).has_state = true;
  Of(1).version = 7;
  Say(1);
  PassHearing0(options_.silent_lease);
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  Say(1);  // It is back.
  PassHearing0(options_.silent_lease);
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  PassHearing0(milliseconds(1));
  EXPECT_EQ(All<FenceMember>().size(), 1U);
}

TEST_F(CoordinatorTest, OneOfSeveralHoldersOfTheStateIsNot) {
  for (const uint64_t other : {6U, 7U, 8U}) {  // A step behind, the same, a step ahead.
    reports_.clear();
    FormActive(1, 2);
    for (const int n : {0, 1}) Of(n).has_state = true;
    Of(0).version = other;
    Of(1).version = 7;
    Say(1);
    PassHearing0(options_.lease + milliseconds(1));
    EXPECT_EQ(All<FenceMember>().size(), 1U) << other;
  }
}

TEST_F(CoordinatorTest, TheLastHolderOfTheStateIsNotPutAsideToLink) {
  FormActive(1, 2);
  for (const int n : {0, 1}) Of(n).has_state = n == 1;
  Of(0).broken = true;
  Say(0);
  Say(1);
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  const PersistRecord request = Persisted();
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  for (const int n : {0, 1}) Say(n, MemberState::kPrepared, request.record.view.epoch);
  ASSERT_EQ(core_->phase(), GroupPhase::kLinking);
  Say(0, MemberState::kLinked, request.record.view.epoch);
  now_ = now_ + options_.link_timeout;
  Say(1);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w1"));
}

TEST_F(CoordinatorTest, AfterARestartTheLastHolderOfTheStateIsWaitedForLonger) {
  EpochRecord record{"old", 4, View{"g", 7, {}, "before"}, 5, false};
  for (int n = 0; n < 2; ++n)
    record.view.members.push_back(
        {Id(n), static_cast<uint64_t>(n + 1), static_cast<uint32_t>(n), "h", "", 0, false});
  for (const bool held : {false, true}) {
    reports_.clear();
    Start(1, 2, record);
    Of(0).has_state = held;
    Say(0, MemberState::kActive, 7);
    PassHearing0(options_.recover_grace);
    EXPECT_EQ(core_->phase(), held ? GroupPhase::kPersisting : GroupPhase::kRecovering);
    PassHearing0(options_.silent_lease - options_.recover_grace);
    EXPECT_EQ(core_->phase(), GroupPhase::kPersisting);
  }
}

TEST_F(CoordinatorTest, ABrokenLinkWaitsForTheDeathReport) {
  FormActive(1, 3);
  Of(0).broken = true;
  Of(0).problem = "reset";
  Say(0);
  EXPECT_THAT(last_.actions, IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), now_ + options_.error_grace);
  now_ = now_ + options_.error_grace;
  Feed(Tick{});
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w1", "w2"));
}

TEST_F(CoordinatorTest, ADrainIsPlannedAtABoundaryAndARefusalLooksFurther) {
  FormActive(1, 3);
  Of(1).boundary = 10;
  Say(1);
  Feed(DrainRequested{Id(2), "spot notice"});
  EXPECT_EQ(core_->phase(), GroupPhase::kPlanning);
  const Command first = CommandTo(0, CommandKind::kPlan);
  EXPECT_EQ(first.boundary, 10 + options_.plan_margin);
  AnswerPlan(3, first, false);
  const Command second = CommandTo(0, CommandKind::kPlan);
  EXPECT_GT(second.boundary, first.boundary);
  EXPECT_GT(second.plan, first.plan);
  AnswerPlan(3, second, true);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w1"));
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  EXPECT_TRUE(CommandTo(0, CommandKind::kPrepare).planned);
  EXPECT_THAT(CommandTo(0, CommandKind::kPrepare).relink, IsEmpty());  // Links stay up.
  EXPECT_EQ(CommandTo(2, CommandKind::kLeave).boundary, second.boundary);
  Say(0, MemberState::kPrepared, 2);
  Say(1, MemberState::kPrepared, 2);
  EXPECT_EQ(CommandTo(2, CommandKind::kExpel).expel, ExpelKind::kDrained);
}

TEST_F(CoordinatorTest, ADrainedMemberThatReturnsBeforeTheBoundaryIsNotWaitedFor) {  // GM-10
  FormActive(2, 3);
  Feed(DrainRequested{Id(2), "spot notice"});
  AnswerPlan(3, CommandTo(0, CommandKind::kPlan), true);
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  ASSERT_TRUE(CommandTo(0, CommandKind::kPrepare).planned);
  Say(2, MemberState::kFinished, 1);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w1"));
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  EXPECT_FALSE(
      CommandTo(0, CommandKind::kPrepare).planned);  // The step that needs it is cut short.
}

TEST_F(CoordinatorTest, AJoinerIsLinkedAheadThenPlannedIn) {
  FormActive(1, 2);
  Ready(2);
  EXPECT_THAT(CommandTo(2, CommandKind::kPrelink).relink, ElementsAre(0, 1));
  EXPECT_THAT(To(CommandKind::kPlan), IsEmpty());
  WarmUp(2, 2);
  AnswerPlan(2, CommandTo(0, CommandKind::kPlan), true);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w1", "w2"));
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  EXPECT_THAT(CommandTo(2, CommandKind::kPrepare).relink, IsEmpty());
}

TEST_F(CoordinatorTest, ParksBelowTheMinimumAndResumes) {  // GM-6
  FormActive(2, 2);
  Feed(MemberDied{Id(1), "killed"});
  ASSERT_EQ(All<GroupParked>().size(), 1U);
  EXPECT_THAT(All<GroupParked>()[0].reason, HasSubstr("below the minimum of 2"));
  EXPECT_THAT(To(CommandKind::kHalt), ElementsAre("w0"));
  Ready(2);
  EXPECT_EQ(core_->phase(), GroupPhase::kParked);  // w0 still unwinds.
  Ready(0);
  const PersistRecord request = Persisted();
  EXPECT_THAT(Names(request.record.view), ElementsAre("w0", "w2"));
  EXPECT_EQ(Activate(request).epoch, 2U);
}

TEST_F(CoordinatorTest, FailsWhenParkedLongerThanTheElasticTimeout) {
  FormActive(2, 2);
  Feed(MemberDied{Id(1), "killed"});
  now_ = now_ + options_.park_timeout;
  Ready(0);
  ASSERT_EQ(All<GroupFailed>().size(), 1U);
  EXPECT_THAT(All<GroupFailed>()[0].reason, HasSubstr("only 1 of at least 2"));
}

TEST_F(CoordinatorTest, ItsOwnStopIsNotTheSilenceOfItsMembers) {
  FormActive(1, 2);
  now_ = now_ + 3 * options_.lease;
  Feed(Resumed{3 * options_.lease});
  Feed(Tick{});
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  PassHearing0(options_.lease - milliseconds(1));
  EXPECT_THAT(All<FenceMember>(), IsEmpty());
  PassHearing0(milliseconds(2));  // From its resumption on the lease counts as ever.
  ASSERT_EQ(All<FenceMember>().size(), 1U);
  EXPECT_EQ(All<FenceMember>()[0].id, Id(1));
}

// The others may stand in a collective with it.
TEST_F(CoordinatorTest, ADeadlineThatHasPassedDoesNotWakeAgain) {  // GM-16
  Start(2, 2);
  Ready(0);
  const Time form = now_ + options_.form_timeout;
  while (now_ < form) {
    now_ = core_->NextDeadline();
    Say(0);
    Feed(Tick{});
  }
  EXPECT_EQ(core_->phase(), GroupPhase::kForming);
  EXPECT_EQ(core_->NextDeadline(), now_ + options_.repeat);
  Ready(1);  // It has passed, though.
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w1"));
}

TEST_F(CoordinatorTest, EndsWhenEveryMemberFinished) {
  FormActive(1, 2);
  Say(0, MemberState::kFinished, 1);
  EXPECT_THAT(All<PersistRecord>(), IsEmpty());
  Say(1, MemberState::kFinished, 1);
  const PersistRecord request = Persisted();
  EXPECT_TRUE(request.record.ended);
  Feed(StoreAnswered{request.request, ErrorCode::kOk, std::nullopt});
  EXPECT_EQ(All<GroupEnded>().size(), 1U);
  EXPECT_EQ(core_->phase(), GroupPhase::kEnded);
}

TEST_F(CoordinatorTest, AParkedGroupSendsADrainedMemberAwayOnce) {
  FormActive(2, 2);
  Say(2, MemberState::kIdle, 0);
  Feed(DrainRequested{Id(2), "asked"});
  Feed(MemberDied{Id(1), "killed"});
  ASSERT_EQ(core_->phase(), GroupPhase::kParked);
  EXPECT_THAT(To(CommandKind::kExpel), ElementsAre("w2"));
}

// Nobody waits for as many members as there were when the group was opened.
TEST_F(CoordinatorTest, AMemberDrainedBeforeTheGroupFormedIsNotWaitedFor) {
  Start(1, 3);
  Ready(0);
  Ready(1);
  Say(2, MemberState::kIdle, 0);
  Feed(DrainRequested{Id(2), "resized"});
  ASSERT_EQ(All<PersistRecord>().size(), 1U);
  EXPECT_THAT(Names(All<PersistRecord>()[0].record.view), ElementsAre("w0", "w1"));
  EXPECT_THAT(To(CommandKind::kExpel), ElementsAre("w2"));
  Say(2, MemberState::kIdle, 0);
  EXPECT_EQ(CommandTo(2, CommandKind::kExpel).expel, ExpelKind::kDrained) << "the word was lost";
}

// A founder has nothing built yet: members would wait for it in the first step of the new epoch.
TEST_F(CoordinatorTest, AFounderThatComesLateBuildsFirst) {
  FormActive(1, 2);
  Of(2).founder = true;
  Ready(2);
  EXPECT_THAT(To(CommandKind::kBuildFirst), ElementsAre("w2"));
  EXPECT_THAT(To(CommandKind::kPrelink), IsEmpty());
  Say(2, MemberState::kIdle, 0);
  EXPECT_THAT(To(CommandKind::kBuildFirst), IsEmpty());
  Of(2).founder = false;
  Ready(2);
  EXPECT_THAT(To(CommandKind::kBuildFirst), IsEmpty());
  EXPECT_THAT(To(CommandKind::kPrelink), Contains("w2"));
}

TEST_F(CoordinatorTest, FoundersFormTheFirstEpochAndGoOnInASecond) {
  Start(1, 2);
  for (const int n : {0, 1}) {
    Of(n).founder = true;
    Ready(n);
  }
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  EXPECT_THAT(To(CommandKind::kPrepare), ElementsAre("w0", "w1"));
  Feed(MemberDied{Id(0), "killed"});  // Nobody trains yet: the other one may still found it.
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w1"));
}

TEST_F(CoordinatorTest, AParkedGroupDoesNotResumeWithAFounder) {
  FormActive(2, 2);
  Feed(MemberDied{Id(1), "killed"});
  Ready(0);
  Of(2).founder = true;
  Ready(2);
  EXPECT_EQ(core_->phase(), GroupPhase::kParked);
  EXPECT_THAT(To(CommandKind::kBuildFirst), ElementsAre("w2"));
  Say(2, MemberState::kIdle, 0);
  Of(2).founder = false;
  Ready(2);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w2"));
}

// A head that starts without the record, which an older one stores just then.
TEST_F(CoordinatorTest, AFormingGroupCallsMembersOutOfAnEpochItDoesNotKnow) {
  Start(1, 2);
  Say(0, MemberState::kPrepared, 1);
  Ready(1);
  now_ = now_ + options_.repeat;
  Feed(Tick{});
  EXPECT_THAT(To(CommandKind::kHalt), ElementsAre("w0"));
  Ready(0);
  EXPECT_GT(Persisted().record.view.epoch, 2U);  // GM-1: there may have been more.
}

}  // namespace
}  // namespace troupe::groups
