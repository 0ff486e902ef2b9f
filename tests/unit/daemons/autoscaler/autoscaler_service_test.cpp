// AutoscalerService: what it makes of what nodes were told by their clouds, and of providers that
// answer late.
#include "daemons/autoscaler/autoscaler_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace troupe::daemons {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ListedNodes final : public NodeProvider, public NoticeSource {
 public:
  Result<std::string> Launch(const std::string& token, const std::string& pool) override {
    const std::string id = "spot-" + std::to_string(nodes_.size() + 1);
    nodes_.push_back({id, token, pool, false, "", late_});
    return id;
  }
  Status Terminate(const std::string& id) override {
    ended_.push_back(id);
    return Status::Ok();
  }
  Result<std::vector<ProviderNode>> List() override {
    if (mute_) return Error{ErrorCode::kUnavailable, "throttled"};
    return nodes_;
  }
  std::vector<Notice> Poll(Time /*now*/) override { return {}; }

  std::vector<ProviderFailure> TakeFailures() override { return std::exchange(failures_, {}); }
  std::map<std::string, double> TakePrices() override { return std::exchange(prices_, {}); }
  // The last launch comes to nothing.
  void Fail(const Error& error) {
    failures_.push_back({ProviderFailure::Kind::kLaunch, nodes_.back().token, nodes_.back().pool,
                         nodes_.back().id, error});
    nodes_.pop_back();
  }

  std::vector<ProviderNode> nodes_;
  std::vector<ProviderFailure> failures_;
  std::map<std::string, double> prices_;  // Told next.
  std::vector<std::string> ended_;
  bool late_ = false;  // A node is only asked for.
  bool mute_ = false;  // Nodes are not listed.
};

class AutoscalerServiceTest : public ::testing::Test {
 protected:
  AutoscalerServiceTest() {
    config_.limits.pools = {{"spot", Market::kSpot, "", 1, 0, 4, 0.3}};
    config_.limits.min_workers = 1;
    config_.limits.max_workers = 1;
    config_.limits.max_nodes = 4;
    Start(provider_);
    Step();  // Launches spot-1,
    cluster_.wanted_workers = 1;
    cluster_.nodes.push_back({"spot-1", true, false});
    Step();  // which is up.
    said_.clear();
    notes_.clear();
  }
  void Start(ListedNodes& provider) {
    AutoscalerCallbacks callbacks;
    callbacks.provider = &provider;
    callbacks.notices = &provider;
    callbacks.cluster = [this]() -> Result<ClusterState> { return cluster_; };
    callbacks.drain = [this](const std::string& node, const std::string& /*why*/,
                             Duration /*left*/) {
      drained_.push_back(node);
      return Status::Ok();
    };
    callbacks.gone = [](const std::string&) {};
    callbacks.say = [this](const std::string& line) { said_.push_back(line); };
    callbacks.note = [this](const FleetNote& note) {
      const std::string& about = note.group.empty() ? note.node : note.group;
      notes_.push_back(std::string(FleetNoteKindName(note.kind)) + " " + about + " " + note.pool +
                       " " + note.text);
    };
    service_.emplace(config_, "t-", std::move(callbacks));
  }
  void Step() {
    now_ = now_ + seconds(1);
    (void)service_->Step(now_);
  }

  ClusterConfig config_;
  ListedNodes provider_;
  ClusterState cluster_;
  std::vector<std::string> drained_;
  std::vector<std::string> said_;
  std::vector<std::string> notes_;
  std::optional<AutoscalerService> service_;
  Time now_{1'000'000'000'000};
};

TEST_F(AutoscalerServiceTest, ANodeThatDrainsByItselfIsReplacedInTheSameStep) {
  ClusterState::Node& node = cluster_.nodes[0];
  node.draining = true;
  node.reason = "preempt (aws: terminate)";
  node.drain_left = seconds(110);
  node.source = "aws";
  node.kind = "preempt";
  Step();
  EXPECT_EQ(provider_.nodes_.size(), 2U);
  EXPECT_THAT(said_, Contains("notice: node spot-1 drains within 110.0 s: preempt (aws: "
                              "terminate)"));
  EXPECT_THAT(drained_, IsEmpty());  // It does already.
  said_.clear();
  Step();
  EXPECT_EQ(provider_.nodes_.size(), 2U);
  EXPECT_THAT(said_, Not(Contains(HasSubstr("notice:"))));
  EXPECT_THAT(provider_.ended_, IsEmpty());
  node.idle = true;
  Step();
  EXPECT_THAT(provider_.ended_, ElementsAre("spot-1"));
}

TEST_F(AutoscalerServiceTest, APriceThatIsToldIsSaidOnceAndCounts) {
  provider_.prices_ = {{"spot", 0.25}, {"other", 1}};
  Step();
  provider_.prices_ = {{"spot", 0.25}};
  Step();
  EXPECT_THAT(notes_, ElementsAre("price  spot $0.25 per node-hour, was $0.3"));
  const double before = service_->accounts().total().Dollars();
  Step();
  EXPECT_NEAR(service_->accounts().total().Dollars() - before, 0.25 / 3600, 1e-9);
}

TEST_F(AutoscalerServiceTest, PricesAreNotUsedBesideAPoolWithoutOne) {
  config_.limits.pools.push_back({"base", Market::kOnDemand, "", 1, 0, 4, 0});
  ListedNodes provider;
  Start(provider);
  for (int step = 0; step < 2; ++step) {
    provider.prices_ = {{"spot", 0.25}};
    Step();
  }
  const auto prices = [this] {
    return std::ranges::count_if(notes_,
                                 [](const std::string& n) { return n.starts_with("price"); });
  };
  EXPECT_EQ(prices(), 1);
  EXPECT_THAT(said_, Contains(HasSubstr("pool base has none")));
  provider.prices_ = {{"base", 1.5}};  // Now all have one, that of before too.
  Step();
  EXPECT_EQ(prices(), 3);
}

TEST_F(AutoscalerServiceTest, WhatMayOnlyComeIsSaidOnceAndReplacesNobodyFromItsOwnPool) {
  ClusterState::Node& node = cluster_.nodes[0];
  node.warning = "recommended";
  node.warning_source = "aws";
  node.warning_kind = "rebalance";
  Step();
  Step();
  EXPECT_THAT(said_, ElementsAre("notice: node spot-1 may be taken back: rebalance (aws: "
                                 "recommended)"));
  node.warning = "";
  Step();
  EXPECT_THAT(said_.back(), HasSubstr("stays"));
  EXPECT_EQ(provider_.nodes_.size(), 1U);
}

TEST_F(AutoscalerServiceTest, ALaunchThatIsUnderWayCountsAndItsFailureCoolsThePool) {
  provider_.late_ = true;
  cluster_.nodes.clear();
  provider_.nodes_.clear();
  Step();
  ASSERT_EQ(provider_.nodes_.size(), 1U);
  Step();
  EXPECT_EQ(provider_.nodes_.size(), 1U) << "nobody asks twice";
  provider_.Fail({ErrorCode::kResourceExhausted, "no capacity"});
  Step();
  EXPECT_THAT(said_, Contains("launch in pool spot failed: no capacity"));
  EXPECT_THAT(notes_, Contains("failure spot-1 spot launch failed: no capacity"));
  EXPECT_THAT(said_, Not(Contains("node spot-2 is gone"))) << "it never was one";
  EXPECT_THAT(provider_.nodes_, IsEmpty()) << "the pool is left alone";
}

TEST_F(AutoscalerServiceTest, WhatIsDoneIsNotedWithItsPoolAndItsReason) {
  ClusterState::Node& node = cluster_.nodes[0];
  node.draining = true;
  node.reason = "asked by `troupe drain`";
  Step();
  EXPECT_THAT(notes_, Contains("notice spot-1 spot drains: asked by `troupe drain`"));
  EXPECT_THAT(notes_, Contains(HasSubstr("launch spot-2 spot cheapest that can serve: $0.3")));
  node.idle = true;
  Step();
  EXPECT_THAT(notes_, Contains("terminate spot-1 spot it is drained"));
  provider_.nodes_.erase(provider_.nodes_.begin());
  Step();
  EXPECT_THAT(notes_, Contains("gone spot-1 spot "));
}

TEST_F(AutoscalerServiceTest, WhatIsPaidIsAccountedForAndNotedNowAndThen) {
  cluster_.nodes[0].workers = cluster_.nodes[0].members = 1;
  cluster_.runs = {{"train", "running", "", 1, 1, 1, "id", 5}};
  for (int i = 0; i < 70; ++i) Step();
  const auto accounts = std::ranges::count_if(
      notes_, [](const std::string& note) { return note.starts_with("account"); });
  EXPECT_EQ(accounts, 14) << "every five seconds at first";
  EXPECT_THAT(notes_, Contains(HasSubstr("useful")));
  const FleetAccounts::Sums& sums = service_->accounts().total();
  EXPECT_DOUBLE_EQ(sums.worker_s[static_cast<size_t>(TimeUse::kUseful)], 70);
  EXPECT_EQ(sums.steps, 5U);
  ClusterState::Node& node = cluster_.nodes[0];
  node.draining = true;  // By an operator, which is no preemption.
  Step();
  EXPECT_EQ(sums.preemptions, 0);
  (void)service_->End(now_ + seconds(1));
  EXPECT_DOUBLE_EQ(sums.worker_s[static_cast<size_t>(TimeUse::kUseful)], 72);
}

TEST_F(AutoscalerServiceTest, RunsAreNotedWhenTheyChange) {
  cluster_.runs = {{"train", "running", "group formed", 1, 2, 2}};
  Step();
  Step();
  EXPECT_THAT(notes_, ElementsAre("group train  running, 2 of 2 members, epoch 1: group formed"));
  cluster_.runs[0].epoch = 2;
  cluster_.runs[0].members = 1;
  cluster_.runs[0].reason = "w1 died";
  Step();
  EXPECT_EQ(notes_.back(), "group train  running, 1 of 2 members, epoch 2: w1 died");
  // Another one of that name does not have both noted with each step.
  cluster_.runs.push_back({"train", "running", "", 1, 1, 1, "another"});
  notes_.clear();
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(std::ranges::count_if(
                notes_, [](const std::string& note) { return note.starts_with("group"); }),
            1);
}

TEST_F(AutoscalerServiceTest, ATimeThatPassesIsNotSaidAgain) {
  cluster_.nodes.clear();
  provider_.nodes_.clear();
  provider_.late_ = true;
  Step();
  provider_.Fail({ErrorCode::kResourceExhausted, "no capacity in 3 zones"});
  for (int i = 0; i < 5; ++i) Step();
  const auto cooling = std::ranges::count_if(said_, [](const std::string& line) {
    return line.find("cools down for") != std::string::npos;
  });
  EXPECT_EQ(cooling, 1) << "it passes with each step";
  EXPECT_THAT(said_, Contains(HasSubstr("(no capacity in 3 zones)")));
}

TEST_F(AutoscalerServiceTest, AtTheEndANodeThatIsOnlyAskedForIsWaitedFor) {
  provider_.late_ = true;
  cluster_.nodes.clear();
  provider_.nodes_.clear();
  Step();
  EXPECT_FALSE(service_->End(now_));
  EXPECT_THAT(provider_.ended_, Contains(provider_.nodes_[0].id));
  provider_.nodes_.clear();
  EXPECT_TRUE(service_->End(now_));
}

TEST_F(AutoscalerServiceTest, AtTheEndNodesAreEndedThatAreNotListedNow) {
  provider_.mute_ = true;
  EXPECT_FALSE(service_->End(now_));
  EXPECT_THAT(provider_.ended_, ElementsAre("spot-1"));
}

TEST_F(AutoscalerServiceTest, NobodyIsWaitedForWhoHasMadeNothing) {
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded}) {
    ListedNodes quiet;
    quiet.late_ = true;
    quiet.mute_ = true;
    Start(quiet);
    Step();
    ASSERT_EQ(quiet.nodes_.size(), 1U);
    EXPECT_FALSE(service_->End(now_));
    EXPECT_THAT(quiet.ended_, ElementsAre("spot-1"));
    quiet.Fail({code, "why"});
    // One that did not answer in time may have made it.
    EXPECT_EQ(service_->End(now_), code == ErrorCode::kUnavailable);
    service_.reset();
  }
}

}  // namespace
}  // namespace troupe::daemons
