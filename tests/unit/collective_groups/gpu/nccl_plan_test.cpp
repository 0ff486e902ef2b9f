#include "collective_groups/gpu/internal/nccl_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace troupe::groups {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Way = NcclPlan::Way;

NcclStatement Of(uint64_t form, int rank, int size, NcclState state = NcclState::kIdle) {
  static unsigned char device = 0;
  NcclStatement s;
  s.form = form;
  s.form_rank = rank;
  s.form_size = size;
  s.version = 23102;
  s.device.fill(++device);
  s.state = state;
  s.can_shrink = s.can_grow = true;
  return s;
}
NcclStatement New() { return Of(0, 0, 0, NcclState::kNone); }

std::vector<NcclStatement> All(std::vector<NcclStatement> list) { return list; }

TEST(NcclPlanTest, BeginsWithANewCommunicator) {
  EXPECT_EQ(PlanNccl(All({New(), New()}), false).way, Way::kInit);
}

TEST(NcclPlanTest, KeepsWhatStillFits) {
  const NcclPlan plan = PlanNccl(All({Of(7, 0, 2), Of(7, 1, 2)}), false);
  EXPECT_EQ(plan.way, Way::kKeep);
  EXPECT_EQ(plan.survivors, 2);
}

TEST(NcclPlanTest, ShrinksByWhoIsMissing) {
  const NcclPlan plan = PlanNccl(All({Of(7, 0, 4), Of(7, 2, 4)}), false);
  EXPECT_EQ(plan.way, Way::kShrink);
  EXPECT_THAT(plan.excluded, ElementsAre(1, 3));
  EXPECT_FALSE(plan.abort);
}

TEST(NcclPlanTest, ShrinksWithAbortIfAnOperationWasEnded) {
  const NcclPlan plan = PlanNccl(All({Of(7, 0, 3), Of(7, 2, 3, NcclState::kRevoked)}), false);
  EXPECT_EQ(plan.way, Way::kShrink);
  EXPECT_TRUE(plan.abort);
}

TEST(NcclPlanTest, GrowsByWhoIsNew) {
  const NcclPlan plan = PlanNccl(All({Of(7, 0, 2), Of(7, 1, 2), New()}), false);
  EXPECT_EQ(plan.way, Way::kGrow);
  EXPECT_THAT(plan.excluded, IsEmpty());
  EXPECT_EQ(plan.survivors, 2);
}

TEST(NcclPlanTest, ShrinksBeforeItGrows) {
  const NcclPlan plan = PlanNccl(All({Of(7, 0, 3), Of(7, 2, 3), New()}), false);
  EXPECT_EQ(plan.way, Way::kGrow);
  EXPECT_THAT(plan.excluded, ElementsAre(1));
}

TEST(NcclPlanTest, BeginsAnewWhereNothingCanBeKept) {
  auto old = All({Of(7, 0, 3), Of(7, 1, 3)});
  old[1].can_shrink = false;
  EXPECT_EQ(PlanNccl(old, false).way, Way::kInit) << "a library without shrink";
  auto small = All({Of(7, 0, 2), Of(7, 1, 2), New()});
  small[2].can_grow = false;
  EXPECT_EQ(PlanNccl(small, false).way, Way::kInit) << "a library without grow";
  EXPECT_EQ(PlanNccl(All({Of(7, 1, 2), Of(7, 0, 2)}), false).way, Way::kInit) << "another order";
  EXPECT_EQ(PlanNccl(All({Of(7, 0, 2), New(), Of(7, 1, 2)}), false).way, Way::kInit)
      << "a joiner in between";
  EXPECT_EQ(PlanNccl(All({New(), Of(7, 1, 2)}), false).way, Way::kInit) << "the oldest has none";
  EXPECT_EQ(PlanNccl(All({Of(7, 0, 2), Of(7, 1, 2, NcclState::kRevoked)}), false).way, Way::kInit)
      << "nobody to exclude, but an operation was ended";
  EXPECT_EQ(PlanNccl(All({Of(7, 0, 2), New()}), false).way, Way::kInit) << "one survivor";
  EXPECT_EQ(PlanNccl(All({Of(7, 0, 2), Of(7, 1, 2)}), true).way, Way::kInit) << "told so";
}

TEST(NcclPlanTest, GoesThroughHostMemoryForAReason) {
  auto none = All({New(), New()});
  none[1].version = 0;
  const std::string problem = "there is no NCCL";
  std::copy(problem.begin(), problem.end(), none[1].problem.begin());
  EXPECT_EQ(PlanNccl(none, false).way, Way::kHost);
  EXPECT_EQ(PlanNccl(none, false).reason, "rank 1: there is no NCCL");

  auto versions = All({New(), New()});
  versions[1].version = 22703;
  EXPECT_EQ(PlanNccl(versions, false).reason, "rank 0 has NCCL 2.31.2, rank 1 has 2.27.3");

  auto shared = All({New(), New(), New()});
  shared[2].device = shared[0].device;
  EXPECT_THAT(PlanNccl(shared, false).reason, HasSubstr("ranks 0 and 2 use the same GPU"));
  shared[0].sharing = true;
  EXPECT_EQ(PlanNccl(shared, false).way, Way::kHost) << "only one of them may share";
  std::swap(shared[0].sharing, shared[2].sharing);
  EXPECT_EQ(PlanNccl(shared, false).way, Way::kHost) << "the other one only";
  shared[0].sharing = true;
  EXPECT_EQ(PlanNccl(shared, false).way, Way::kInit);

  auto failed = All({New(), New()});
  failed[1].failures = kNcclFailuresMax;
  EXPECT_THAT(PlanNccl(failed, false).reason, HasSubstr("rank 1: NCCL has failed 3 times"));
}

// Members come, go and have their operations ended, on libraries of all ages. What a plan makes of
// the old communicators is computed from NCCL's own rules.
class History {
 public:
  explicit History(uint32_t seed) : random_(seed) {}

  void Step() {
    Change();
    std::vector<NcclStatement> all;
    for (const Member& m : members_) all.push_back(m.statement);
    const bool afresh = Chance(10);
    const NcclPlan plan = PlanNccl(all, afresh);
    const NcclPlan again = PlanNccl(all, afresh);
    ASSERT_EQ(plan.way, again.way);  // NP-1
    ASSERT_EQ(plan.excluded, again.excluded);
    ++seen[plan.way];
    Check(plan);
    if (HasFailure()) return;
    Follow(plan);
  }

  std::map<Way, int> seen;

 private:
  struct Member {
    int id = 0;
    NcclStatement statement;
  };
  using Order = std::vector<int>;  // Ids by rank.

  static bool HasFailure() { return ::testing::Test::HasFatalFailure(); }
  bool Chance(int percent) { return std::uniform_int_distribution<int>(0, 99)(random_) < percent; }
  size_t Pick(size_t size) { return std::uniform_int_distribution<size_t>(0, size - 1)(random_); }

  void Change() {
    while (members_.size() > 1 && Chance(25)) {
      members_.erase(members_.begin() + static_cast<ptrdiff_t>(Pick(members_.size())));
    }
    while (members_.empty() || (members_.size() < 6 && Chance(30))) {
      Member member{next_id_++, New()};
      member.statement.can_shrink = !Chance(5);
      member.statement.can_grow = !Chance(5);
      // Never in front of its elders, except where a team is made of others.
      const bool youngest = !Chance(5);
      members_.insert(youngest ? members_.end() : members_.begin(), member);
    }
    for (Member& m : members_) {
      if (m.statement.state == NcclState::kNone) continue;
      if (Chance(10)) m.statement.state = Chance(50) ? NcclState::kRevoked : NcclState::kNone;
      // One that missed the others' last forming, and has its like of an earlier one.
      if (Chance(3)) forms_[m.statement.form = next_form_++] = {m.id};
    }
    if (members_.size() > 1 && Chance(3)) std::swap(members_[0], members_[1]);
  }

  void Check(const NcclPlan& plan) {
    if (plan.way == Way::kHost || plan.way == Way::kInit) return;
    const NcclStatement& first = members_[0].statement;
    const Order& old = forms_.at(first.form);
    Order result;
    for (size_t rank = 0; rank < old.size(); ++rank) {
      const bool out = std::find(plan.excluded.begin(), plan.excluded.end(),
                                 static_cast<int>(rank)) != plan.excluded.end();
      if (!out) result.push_back(old[rank]);
    }
    ASSERT_EQ(static_cast<int>(result.size()), plan.survivors);
    ASSERT_GT(plan.survivors, 0);
    bool outstanding = false;
    for (size_t i = 0; i < members_.size(); ++i) {
      const NcclStatement& s = members_[i].statement;
      if (i < result.size()) {
        ASSERT_EQ(s.form, first.form);
        ASSERT_NE(s.state, NcclState::kNone);
        outstanding = outstanding || s.state == NcclState::kRevoked;
      } else {
        result.push_back(members_[i].id);
      }
    }
    Order wanted;
    for (const Member& m : members_) wanted.push_back(m.id);
    ASSERT_EQ(result, wanted);  // NP-2
    if (outstanding) {          // NP-3
      ASSERT_TRUE(plan.abort && !plan.excluded.empty());
    } else {
      ASSERT_FALSE(plan.abort);
    }
    ASSERT_EQ(plan.way == Way::kGrow, plan.survivors < static_cast<int>(members_.size()));
    ASSERT_TRUE(plan.way != Way::kKeep || plan.excluded.empty());
    ASSERT_TRUE(plan.way != Way::kShrink || !plan.excluded.empty());
  }

  void Follow(const NcclPlan& plan) {
    if (plan.way == Way::kHost || plan.way == Way::kKeep) return;
    const uint64_t form = next_form_++;
    for (size_t i = 0; i < members_.size(); ++i) {
      NcclStatement& s = members_[i].statement;
      forms_[form].push_back(members_[i].id);
      s.form = form;
      s.form_rank = static_cast<int32_t>(i);
      s.form_size = static_cast<int32_t>(members_.size());
      s.state = NcclState::kIdle;
    }
  }

  std::mt19937 random_;
  std::vector<Member> members_;
  std::map<uint64_t, Order> forms_;
  int next_id_ = 0;
  uint64_t next_form_ = 1;
};

TEST(NcclPlanTest, EveryPlanOfARandomHistoryKeepsItsPromises) {
  std::map<Way, int> seen;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    History history(seed);
    for (int step = 0; step < 60; ++step) {
      history.Step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    for (const auto& [way, count] : history.seen) seen[way] += count;
  }
  // A plan that never edits keeps its promises too; these would miss it.
  for (const Way way : {Way::kInit, Way::kKeep, Way::kShrink, Way::kGrow}) {
    EXPECT_GT(seen[way], 1000) << static_cast<int>(way);
  }
}

}  // namespace
}  // namespace troupe::groups
