// GM-17: who was asked to leave goes on while the others need it.
#include "tests/unit/collective_groups/membership/coordinator_rig.h"

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class DrainTest : public CoordinatorTest {
 protected:
  void SetUp() override { limits_.lease = seconds(3600); }

  // An epoch of 0..count-1, all of whom hold the state.
  void Train(uint32_t min, int count) {
    FormActive(min, count);
    for (int n = 0; n < count; ++n) Holds(n, 7);
  }
  void Holds(int n, uint64_t version) {
    Of(n).has_state = true;
    Of(n).version = version;
    Say(n);
  }
  void Drain(int n) { Feed(DrainRequested{Id(n), "spot notice"}); }
  // Accepts the plan of the last decision on behalf of 0..count-1; what is proposed then.
  std::vector<std::string> Planned(int count) {
    AnswerPlan(count, CommandTo(0, CommandKind::kPlan), true);
    request_ = Persisted();
    return Names(request_.record.view);
  }

  PersistRecord request_;
};

TEST_F(DrainTest, TheLastHolderGoesOnUntilAnotherHasTheState) {
  Train(1, 2);
  Drain(0);
  EXPECT_THAT(Planned(2), ElementsAre("w1"));
  Activate(request_);
  Drain(1);
  EXPECT_THAT(To(CommandKind::kPlan), IsEmpty());
  EXPECT_THAT(core_->waiting_for(), HasSubstr("takes over"));
  Ready(2);
  const Command ahead = CommandTo(2, CommandKind::kPrelink);
  Of(2).linked.push_back({1, ahead.plan, ""});
  Of(1).linked = {{ahead.slot, ahead.plan, ""}};
  Say(1);
  Say(2);
  const Command plan = CommandTo(1, CommandKind::kPlan);
  Of(1).plan = plan.plan;
  Of(1).plan_accepted = true;
  Say(1);
  const PersistRecord together = Persisted();
  EXPECT_THAT(Names(together.record.view), ElementsAre("w1", "w2"));
  Activate(together);
  EXPECT_THAT(To(CommandKind::kPlan), IsEmpty()) << "the joiner has not said that it has it";
  Holds(2, 7);
  EXPECT_THAT(To(CommandKind::kPlan), UnorderedElementsAre("w1", "w2"));
}

TEST_F(DrainTest, NotBelowTheMinimumWhileThereAreEnough) {
  Train(2, 2);
  Drain(1);
  EXPECT_THAT(To(CommandKind::kPlan), IsEmpty());
  Ready(2);
  WarmUp(2, 2);
  EXPECT_THAT(Planned(2), ElementsAre("w0", "w2"));
}

TEST_F(DrainTest, AllAtOnceTheEldestStays) {
  Train(1, 2);
  Drain(0);
  const Command plan = CommandTo(0, CommandKind::kPlan);
  Drain(1);
  AnswerPlan(2, plan, true);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0")) << "the eldest of both";
}

TEST_F(DrainTest, APlanThatLetsNobodyGoIsWithdrawn) {
  Train(1, 2);
  Drain(1);
  const Command plan = CommandTo(0, CommandKind::kPlan);
  Feed(LimitsChanged{2});
  AnswerPlan(2, plan, true);
  EXPECT_THAT(All<PersistRecord>(), IsEmpty());
  EXPECT_EQ(core_->phase(), GroupPhase::kActive);
  EXPECT_EQ(last_.reason, "plan withdrawn");
  now_ = now_ + seconds(5);
  Feed(MemberDied{Id(1), "killed"});
  Say(0, MemberState::kReady, 1);
  Feed(LimitsChanged{1});
  Feed(StoreAnswered{Persisted().request, ErrorCode::kOk, std::nullopt});
  Say(0, MemberState::kPrepared, 2);
  Say(0, MemberState::kLinked, 2);
  ASSERT_EQ(All<EpochActivated>().size(), 1U);
  EXPECT_EQ(All<EpochActivated>()[0].cause, EpochCause::kDeath) << "the drain came to nothing";
  EXPECT_EQ(All<EpochActivated>()[0].took, Duration::zero());
}

TEST_F(DrainTest, AParkedGroupKeepsItsLastHolder) {
  Train(2, 2);
  Drain(0);
  Feed(MemberDied{Id(1), "killed"});
  ASSERT_EQ(core_->phase(), GroupPhase::kParked);
  Say(0, MemberState::kReady, 1);
  EXPECT_THAT(To(CommandKind::kExpel), IsEmpty());
  Ready(2);
  EXPECT_THAT(Names(Persisted().record.view), ElementsAre("w0", "w2"));
}

TEST_F(DrainTest, AParkedGroupLetsGoWhoIsNotNeeded) {
  Train(3, 3);
  Drain(0);
  Feed(MemberDied{Id(1), "killed"});
  ASSERT_EQ(core_->phase(), GroupPhase::kParked);
  Say(0, MemberState::kReady, 1);
  EXPECT_THAT(To(CommandKind::kExpel), IsEmpty()) << "the other is still on its way out";
  Say(2, MemberState::kReady, 1);
  EXPECT_THAT(To(CommandKind::kExpel), ElementsAre("w0")) << "two are too few in any case";
}

TEST_F(DrainTest, AGroupThatHoldsNoStateIsHandedOverAsWell) {
  FormActive(1, 1);
  Drain(0);
  EXPECT_THAT(To(CommandKind::kPlan), IsEmpty());
  Ready(1);
  WarmUp(1, 1);
  EXPECT_THAT(Planned(1), ElementsAre("w0", "w1"));
  Feed(StoreAnswered{request_.request, ErrorCode::kOk, std::nullopt});
  for (const MemberState state :
       {MemberState::kPrepared, MemberState::kLinked, MemberState::kActive}) {
    for (const int n : {0, 1}) Say(n, state, request_.record.view.epoch);
  }
  EXPECT_THAT(To(CommandKind::kPlan), UnorderedElementsAre("w0", "w1"));
}

}  // namespace
}  // namespace troupe::groups
