// PlacementGroups with the scheduler: requests, repeats, owners, restarts of the head.
#include "daemons/head/core/placement_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "actors/core/error_chain.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

using actors::ActorAnswer;
using actors::GroupRequest;
using actors::PlacementGroupVerb;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PlacementGroupsTest : public ::testing::Test {
 protected:
  PlacementGroupsTest() { Restart(); }

  // A new head in place of the old one, with what the store has.
  void Restart() {
    queue_.emplace();
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{});
    groups_ = std::make_unique<PlacementGroups>(&*queue_, scheduler_.get());
    if (!store_.empty()) Schedule(sched::Recover{now_ + seconds(5)});
    groups_->Restore(store_);
    Settle();
  }
  // All is done that waits for nothing but the store, and what waits for that if it answers.
  void Settle() {
    std::optional<HeadQueue::Kept> kept;
    do {
      while (const std::optional<HeadStep> next = queue_->Take(now_)) {
        if (const auto* task = std::get_if<HeadTask>(&*next)) OnTask(*task);
        if (const auto* effect = std::get_if<HeadEffect>(&*next)) OnEffect(*effect);
      }
      kept = store_answers_ ? queue_->TakeWhenKept() : std::nullopt;
      if (kept) queue_->Put(std::move(kept->step));
    } while (kept);
  }
  void OnTask(const HeadTask& task) {
    if (const auto* schedule = std::get_if<step::Schedule>(&task)) {
      const SchedulerDecision decision = scheduler_->Step(now_, schedule->event);
      for (const auto& one : decision.groups) groups_->OnChange(one);
      for (const auto& one : decision.granted) granted_[one.lease] = one;
      for (const auto& one : decision.revoked) revoked_.push_back(one.lease);
      for (const auto& one : decision.refused) groups_->OnRefused(one);
    } else if (std::holds_alternative<step::GroupTried>(task)) {
      groups_->OnTried();
    } else if (const auto* answer = std::get_if<step::AnswerGroup>(&task)) {
      groups_->AnswerKept(*answer);
    } else if (const auto* placed = std::get_if<step::AnswerWaiters>(&task)) {
      groups_->AnswerPlaced(placed->group);
    }
  }
  void OnEffect(const HeadEffect& effect) {
    if (const auto* keep = std::get_if<step::Keep>(&effect)) {
      keep->record.empty() ? (void)store_.erase(keep->key)
                           : (void)(store_[keep->key] = keep->record);
    } else if (const auto* send = std::get_if<step::Send>(&effect)) {
      answers_.emplace_back(send->to,
                            *wire::Decode<ActorAnswer>(actors::kFrameActorAnswer, send->frame));
    }
  }
  void Tick(bool final) {
    queue_->SetNow(now_);
    groups_->OnTick(final);
    Settle();
  }
  void Schedule(SchedulerEvent event) {
    queue_->Put(step::Schedule{std::move(event)});
    Settle();
  }
  void NodeUp(const std::string& node, double cpus = 4, uint64_t incarnation = 1) {
    Schedule(sched::NodeUp{node, incarnation, *ResourceSet::FromMap({{"CPU", cpus}}), {}});
    groups_->OnNodeUp();
    Settle();
  }
  // The answer, if it came.
  std::optional<ActorAnswer> Ask(const GroupRequest& request, const std::string& from = "d") {
    answers_.clear();
    queue_->SetNow(now_);
    groups_->OnRequest(from, request);
    Settle();
    if (answers_.empty()) return std::nullopt;
    EXPECT_THAT(answers_, SizeIs(1));
    EXPECT_EQ(answers_[0].first, from);
    EXPECT_EQ(answers_[0].second.request, request.request);
    return answers_[0].second;
  }
  GroupRequest About(PlacementGroupVerb verb, const std::string& group = "pg-1") {
    GroupRequest request;
    request.request = next_request_++;
    request.verb = verb;
    request.spec.group = group;
    request.spec.owner = "driver/d";
    return request;
  }
  GroupRequest CreateOf(size_t bundles, double cpus = 2, const std::string& group = "pg-1") {
    GroupRequest request = About(PlacementGroupVerb::kCreate, group);
    request.add.assign(bundles, PlacementBundle{{{"CPU", cpus}}, {}});
    return request;
  }
  PlacementGroupStatus Status(const std::string& group = "pg-1") {
    const auto answer = Ask(About(PlacementGroupVerb::kStatus, group));
    EXPECT_TRUE(answer && answer->error.empty());
    return answer ? answer->group : PlacementGroupStatus{};
  }
  std::vector<std::string> Nodes(const std::string& group = "pg-1") {
    std::vector<std::string> nodes;
    for (const auto& bundle : Status(group).bundles) nodes.push_back(bundle.node);
    return nodes;
  }
  static ErrorCode CodeOf(const std::optional<ActorAnswer>& answer) {
    return answer ? actors::FromChain(answer->error).code : ErrorCode::kInternal;
  }

  Time now_ = Time{} + seconds(1000);
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<PlacementGroups> groups_;
  std::map<std::string, std::string> store_;
  std::optional<HeadQueue> queue_;
  bool store_answers_ = true;
  std::vector<std::pair<std::string, ActorAnswer>> answers_;
  std::map<std::string, sched::Granted> granted_;
  std::vector<std::string> revoked_;
  uint64_t next_request_ = 1;
};

TEST_F(PlacementGroupsTest, IsPlacedAllAtOnceOrWaitsWithAReason) {
  NodeUp("a");
  ASSERT_TRUE(Ask(CreateOf(3))->error.empty());
  EXPECT_EQ(Status().state, "pending");
  EXPECT_THAT(Status().reason, HasSubstr("CPU"));
  EXPECT_THAT(Nodes(), ElementsAre("", "", ""));
  EXPECT_FALSE(Ask(About(PlacementGroupVerb::kAwait)).has_value())
      << "it is answered when it is placed";
  answers_.clear();
  NodeUp("b");
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_TRUE(answers_[0].second.group.placed());
  EXPECT_TRUE(Ask(About(PlacementGroupVerb::kAwait))->group.placed()) << "and at once from then on";
}

TEST_F(PlacementGroupsTest, ARepeatHasItsEffectOnceAlsoAfterARestart) {
  NodeUp("a", 16);
  const GroupRequest create = CreateOf(1);
  ASSERT_TRUE(Ask(create)->error.empty());
  ASSERT_TRUE(Ask(create)->error.empty());
  GroupRequest resize = About(PlacementGroupVerb::kResize);
  resize.add.push_back({{{"CPU", 1}}, {}});
  resize.remove = {0};
  ASSERT_TRUE(Ask(resize)->error.empty());
  ASSERT_TRUE(Ask(resize)->error.empty());
  EXPECT_THAT(Status().bundles, SizeIs(1));
  Restart();
  NodeUp("a", 16);
  ASSERT_TRUE(Ask(resize)->error.empty());
  ASSERT_THAT(Status().bundles, SizeIs(1));
  EXPECT_EQ(Status().bundles[0].number, 1U);
  EXPECT_EQ(scheduler_->Nodes()[0].used.ToMap().at("CPU"), 1);
}

TEST_F(PlacementGroupsTest, TheAnswerComesWhenItIsKept) {
  NodeUp("a");
  answers_.clear();
  store_answers_ = false;
  groups_->OnRequest("d", CreateOf(1));
  Settle();
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_THAT(store_, SizeIs(1));
  store_answers_ = true;
  Settle();
  EXPECT_THAT(answers_, SizeIs(1));
}

TEST_F(PlacementGroupsTest, BadRequestsChangeNothing) {
  NodeUp("a");
  EXPECT_EQ(CodeOf(Ask(CreateOf(0))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(CreateOf(1, -1))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(CreateOf(1, 2, ""))), ErrorCode::kInvalidArgument);
  GroupRequest odd = CreateOf(1);
  odd.spec.strategy = "nearby";
  EXPECT_EQ(CodeOf(Ask(odd)), ErrorCode::kInvalidArgument);
  odd = CreateOf(1);
  odd.add[0].labels = {"zone=("};
  EXPECT_EQ(CodeOf(Ask(odd)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(About(PlacementGroupVerb::kResize))), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(Ask(About(PlacementGroupVerb::kAwait))), ErrorCode::kNotFound);
  EXPECT_EQ(CodeOf(Ask(About(PlacementGroupVerb::kStatus))), ErrorCode::kNotFound);
  EXPECT_TRUE(Ask(About(PlacementGroupVerb::kRemove))->error.empty());
  EXPECT_THAT(store_, IsEmpty());
  EXPECT_THAT(groups_->groups(), IsEmpty());
  ASSERT_TRUE(Ask(CreateOf(1))->error.empty());
  GroupRequest resize = About(PlacementGroupVerb::kResize);
  resize.remove = {7};
  EXPECT_EQ(CodeOf(Ask(resize)), ErrorCode::kNotFound);
  resize = About(PlacementGroupVerb::kResize);
  resize.add.assign(kBundlesMax, {{{"CPU", 1}}, {}});
  EXPECT_EQ(CodeOf(Ask(resize)), ErrorCode::kInvalidArgument);
  EXPECT_THAT(Status().bundles, SizeIs(1)) << "what was refused is not in the record";
}

TEST_F(PlacementGroupsTest, NamesAreUniqueAndFound) {
  NodeUp("a");
  GroupRequest create = CreateOf(1, 1);
  create.spec.name = "team";
  ASSERT_TRUE(Ask(create)->error.empty());
  GroupRequest other = CreateOf(1, 1, "pg-2");
  other.spec.name = "team";
  EXPECT_EQ(CodeOf(Ask(other)), ErrorCode::kAlreadyExists);
  GroupRequest find = About(PlacementGroupVerb::kFind, "");
  find.spec.name = "team";
  EXPECT_EQ(Ask(find)->group.id, "pg-1");
  ASSERT_TRUE(Ask(About(PlacementGroupVerb::kRemove))->error.empty());
  EXPECT_EQ(CodeOf(Ask(find)), ErrorCode::kNotFound);
  EXPECT_TRUE(Ask(other)->error.empty()) << "its name is free again";
}

TEST_F(PlacementGroupsTest, GoesWithItsOwnerUnlessItIsDetached) {
  NodeUp("a");
  ASSERT_TRUE(Ask(CreateOf(1))->error.empty());
  GroupRequest kept = CreateOf(1, 2, "pg-2");
  kept.spec.detached = true;
  ASSERT_TRUE(Ask(kept)->error.empty());
  ASSERT_FALSE(Ask(CreateOf(9, 2, "pg-3")) == std::nullopt);
  EXPECT_FALSE(Ask(About(PlacementGroupVerb::kAwait, "pg-3")).has_value());
  answers_.clear();
  groups_->OwnerGone("driver/d");
  Settle();
  Settle();
  ASSERT_THAT(answers_, SizeIs(1)) << "who waits for it is told";
  EXPECT_EQ(CodeOf(answers_[0].second), ErrorCode::kNotFound);
  EXPECT_THAT(groups_->groups(), SizeIs(1));
  EXPECT_THAT(store_, SizeIs(1));
  EXPECT_EQ(scheduler_->Nodes()[0].used.ToMap().at("CPU"), 2);
}

TEST_F(PlacementGroupsTest, BundlesStayWhereTheyWereOverARestart) {
  NodeUp("a");
  NodeUp("b");
  ASSERT_TRUE(Ask(CreateOf(4))->error.empty());
  const std::vector<std::string> before = Nodes();
  Restart();
  EXPECT_TRUE(groups_->Unconfirmed());
  NodeUp("b");
  EXPECT_TRUE(groups_->Unconfirmed()) << "one node is still missing";
  NodeUp("a");
  EXPECT_FALSE(groups_->Unconfirmed());
  EXPECT_THAT(Nodes(), ::testing::ElementsAreArray(before));
  // A lease in one of them, as the node tells it.
  sched::LeaseRequest lease;
  lease.id = "actor/x#1";
  lease.resources = *ResourceSet::FromMap({{"CPU", 2}});
  lease.group = "pg-1";
  Schedule(sched::Claim{lease, before[1], 1, {}});
  EXPECT_EQ(granted_.at("actor/x#1").bundle, 1);
}

TEST_F(PlacementGroupsTest, ABundleWhoseNodeDoesNotComeBackIsPlacedElsewhere) {
  NodeUp("a");
  ASSERT_TRUE(Ask(CreateOf(1))->error.empty());
  Restart();
  NodeUp("b");
  EXPECT_THAT(Nodes(), ElementsAre("")) << "its node may yet come";
  now_ = now_ + seconds(6);
  Schedule(sched::Wake{});
  groups_->Recovered();
  Settle();
  EXPECT_THAT(Nodes(), ElementsAre("b"));
  Restart();
  NodeUp("b");
  EXPECT_FALSE(groups_->Unconfirmed());
}

TEST_F(PlacementGroupsTest, WaitersThatDoNotRepeatThemselvesAreForgotten) {
  NodeUp("a");
  ASSERT_TRUE(Ask(CreateOf(3))->error.empty());
  const GroupRequest silent = About(PlacementGroupVerb::kAwait);
  const GroupRequest heard = About(PlacementGroupVerb::kAwait);
  EXPECT_FALSE(Ask(silent).has_value());
  EXPECT_FALSE(Ask(heard).has_value());
  now_ = now_ + kGroupWaiterKept;
  EXPECT_FALSE(Ask(heard).has_value());
  Tick(false);
  answers_.clear();
  NodeUp("b");
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_EQ(answers_[0].second.request, heard.request);
}

TEST_F(PlacementGroupsTest, OnOneMachineWhatCanNeverBeIsSaid) {
  NodeUp("a");
  ASSERT_TRUE(Ask(CreateOf(1, 100))->error.empty());
  EXPECT_FALSE(Ask(About(PlacementGroupVerb::kAwait)).has_value());
  Tick(false);
  EXPECT_THAT(answers_, IsEmpty()) << "a node that is large enough may join";
  Tick(true);
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_EQ(CodeOf(answers_[0].second), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace troupe::daemons
