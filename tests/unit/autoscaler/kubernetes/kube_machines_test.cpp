#include "autoscaler/kubernetes/kube_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/autoscaler/kubernetes/stub_kube.h"

namespace troupe::kubernetes {
namespace {

TEST(KubeFeedTest, WhereTooMuchHasComeBothKindsNeedAList) {
  KubeFeed feed;
  KubeNews node;
  node.kind = KubeKind::kNodes;
  KubeNews nodes = node;
  nodes.nodes.emplace();
  for (size_t i = 0; i < kKubeNewsMax; ++i) ASSERT_TRUE(feed.Push({}));
  EXPECT_FALSE(feed.Push({}));
  EXPECT_FALSE(feed.Push(node));  // Some of its events are lost as well.
  EXPECT_TRUE(feed.Push(nodes));
  EXPECT_TRUE(feed.Push(node));
  EXPECT_FALSE(feed.Push({}));
  EXPECT_EQ(feed.Take().size(), 2U);
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fault = tests::StubKube::Fault;
using KubeBody = nlohmann::json;

class KubeMachinesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KubeOptions options;
    options.choice.kubeconfig = "/config";
    options.cluster = "demo";
    options.life = "mine";
    options.offers["spot"] = {
        R"({"spec": {"containers": [{"name": "troupe"}]}})", "troupe", seconds(30), {}};
    KubeWorld world;
    world.variable = [](const std::string&) { return std::nullopt; };
    world.read = [](const std::string&) {
      return "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
             "clusters: [{name: c, cluster: {server: 'https://s'}}]\n"
             "users: [{name: u, user: {token: t}}]\n";
    };
    world.wall_s = [] { return 0; };
    machines_ = std::make_unique<KubeMachines>(
        options,
        KubeTools{world, [this] { return std::make_unique<tests::StubLink>(&kube_); }, &clock_});
  }
  static MachineOrder OrderOf(const std::string& request) {
    return {request, "spot", 1, "script", {{"troupe-life", "mine"}, {"troupe-node", "spot-1"}}};
  }
  void Create(const std::string& request) {
    machines_->Create(OrderOf(request), [this](Result<std::vector<Machine>> made) {
      said_.push_back(made.ok() ? "made " + made->front().id : made.error().message);
      if (!made.ok()) code_ = made.error().code;
    });
  }
  // Until so much was said.
  void StepUntil(size_t count) {
    const Time limit = steady_.Now() + seconds(30);
    while (said_.size() < count && steady_.Now() < limit) {
      machines_->Step(clock_.Now());
      std::this_thread::yield();
    }
    ASSERT_GE(said_.size(), count);
  }
  void List() {
    machines_->List([this](const Result<std::vector<Machine>>& listed) {
      std::string all = listed.ok() ? "listed" : listed.error().message;
      for (const Machine& one : listed.ok() ? *listed : std::vector<Machine>{})
        all += " " + one.id + " " + one.state + (one.ended.empty() ? "" : " " + one.ended);
      said_.push_back(all);
    });
  }
  // Until a list says so.
  void ListUntil(const std::string& wanted) {
    const Time limit = steady_.Now() + seconds(30);
    do {
      machines_->Step(clock_.Now());
      said_.clear();
      List();
      StepUntil(1);
    } while (said_.back() != wanted && steady_.Now() < limit);
    EXPECT_EQ(said_.back(), wanted);
  }
  std::string Name(const std::string& request) { return PodName(OrderOf(request), 0); }

  tests::StubKube kube_;
  FakeClock clock_;
  SteadyClock steady_;
  std::vector<std::string> said_;
  ErrorCode code_ = ErrorCode::kInternal;
  std::unique_ptr<KubeMachines> machines_;
};

TEST_F(KubeMachinesTest, AnOrderIsAnsweredWhenItsPodRuns) {
  ListUntil("listed");
  said_.clear();
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  for (int i = 0; i < 20; ++i) machines_->Step(clock_.Now());
  EXPECT_THAT(said_, IsEmpty());
  kube_.Run(Name("r"));
  StepUntil(1);
  EXPECT_THAT(said_, ElementsAre("made " + Name("r")));
  ListUntil("listed " + Name("r") + " running");
  const std::vector<HttpRequest> asked = kube_.asked();
  for (const HttpRequest& request : asked) {
    EXPECT_THAT(request.headers, testing::Contains(testing::Pair("Authorization", "Bearer t")));
    if (!request.url.ends_with("/secrets")) continue;
    const KubeBody secret = KubeBody::parse(request.body);
    EXPECT_EQ(secret["metadata"]["ownerReferences"][0]["name"], Name("r"));
    EXPECT_THAT(std::string(secret["metadata"]["ownerReferences"][0]["uid"]), HasSubstr("uid-"));
  }
  said_.clear();
  machines_->Terminate({Name("r")},
                       [this](const Status& s) { said_.push_back(s.ok() ? "ok" : "no"); });
  StepUntil(1);
  EXPECT_THAT(said_, ElementsAre("ok"));
  ListUntil("listed");
}

TEST_F(KubeMachinesTest, FaultsAreWaitedOutAndMakeNothingTwice) {
  kube_.Fail("POST pods", Fault::kThrottle);
  kube_.Fail("POST pods", Fault::kLost);  // It is made, and nobody is told.
  kube_.Fail("POST secrets", Fault::kServer);
  kube_.Fail("GET pod", Fault::kUnauthorized);
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 2));
  kube_.Run(Name("r"));
  StepUntil(1);
  EXPECT_THAT(said_, ElementsAre("made " + Name("r")));
  EXPECT_EQ(kube_.Count("POST pods"), 3U);
  EXPECT_EQ(kube_.Count("GET pod"), 2U);
  ListUntil("listed " + Name("r") + " running");
}

TEST_F(KubeMachinesTest, APodWhoseSecretIsRefusedIsEndedAgain) {
  kube_.Fail("POST secrets", Fault::kForbidden);
  Create("r");
  StepUntil(1);
  EXPECT_EQ(code_, ErrorCode::kPermissionDenied);
  EXPECT_THAT(said_[0], HasSubstr("a Role with the verb \"create\" on secrets in namespace "
                                  "default is needed"));
  EXPECT_EQ(kube_.Count("DELETE pod"), 1U);
  ListUntil("listed");
}

TEST_F(KubeMachinesTest, AnotherPodOfTheSameNameIsLeftAlone) {
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  kube_.Run(Name("r"));
  StepUntil(1);
  kube_.Update(Name("r"), {{"metadata", {{"annotations", {{"troupe.dev/request", "theirs"}}}}}});
  said_.clear();
  Create("r");
  StepUntil(1);
  EXPECT_THAT(said_[0], HasSubstr("is there, and of somebody else"));
}

TEST_F(KubeMachinesTest, WhatHasNoPlaceIsEndedBeforeItIsAnswered) {
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  kube_.Update(Name("r"), {{"status",
                            {{"conditions",
                              {{{"type", "PodScheduled"},
                                {"status", "False"},
                                {"reason", "Unschedulable"},
                                {"message", "0/1 nodes are available"}}}}}}});
  ASSERT_TRUE(kube_.AwaitHeard());
  machines_->Step(clock_.Now());
  const Time limit = steady_.Now() + seconds(30);
  while (said_.empty() && steady_.Now() < limit) {
    clock_.Advance(seconds(1));
    machines_->Step(clock_.Now());
    std::this_thread::yield();
  }
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(code_, ErrorCode::kResourceExhausted);
  EXPECT_THAT(said_[0], HasSubstr("pool spot: no capacity: pod " + Name("r") +
                                  " had no place: 0/1 nodes are available"));
  EXPECT_EQ(kube_.Count("DELETE pod"), 1U);
}

TEST_F(KubeMachinesTest, AnOrderThatIsWithdrawnIsEnded) {
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  machines_->Withdraw("r");
  machines_->Withdraw("nobody's");
  StepUntil(1);
  EXPECT_EQ(code_, ErrorCode::kCancelled);
  EXPECT_EQ(kube_.Count("DELETE pod"), 1U);
  ListUntil("listed");
}

TEST_F(KubeMachinesTest, AWatchGoesOnOrBeginsAnew) {
  ListUntil("listed");
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  kube_.Run(Name("r"));
  ListUntil("listed " + Name("r") + " running");
  const size_t lists = kube_.Count("GET pods");
  kube_.Say("cut");  // It goes on from where it was.
  ASSERT_TRUE(kube_.Await("GET pods", lists + 1));
  EXPECT_THAT(kube_.asked().back().url, HasSubstr("watch=1"));
  kube_.Say(R"({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})");
  ASSERT_TRUE(kube_.Await("GET pods", lists + 3));
  kube_.Remove(Name("r"));
  ListUntil("listed " + Name("r") + " stopping it was deleted");
}

TEST_F(KubeMachinesTest, OneThatEndsIsToldWithItsLastWords) {
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  kube_.Update(Name("r"),
               {{"status",
                 {{"phase", "Failed"},
                  {"containerStatuses",
                   {{{"name", "troupe"}, {"state", {{"terminated", {{"exitCode", 1}}}}}}}}}}});
  StepUntil(1);
  EXPECT_EQ(said_[0],
            "pool spot: pod " + Name("r") + " has ended: exit code 1; its last words: no disk");
  EXPECT_EQ(kube_.Count("DELETE pod"), 1U);
}

TEST_F(KubeMachinesTest, WhatAPodThatRunsHasPrintedIsToldWhereItIsWanted) {
  Create("r");
  ASSERT_TRUE(kube_.Await("POST secrets", 1));
  kube_.Run(Name("r"));
  StepUntil(1);
  said_.clear();
  const auto tell = [this](const std::string& words) { said_.push_back(words); };
  machines_->Printed(Name("r"), tell);
  machines_->Printed("nobody", tell);
  EXPECT_THAT(said_, ElementsAre(""));
  StepUntil(2);
  EXPECT_EQ(said_[1], "no disk");
}

TEST_F(KubeMachinesTest, AnApiThatIsNotThereIsTold) {
  kube_.Fail("GET pods", Fault::kForbidden);
  List();
  StepUntil(1);
  EXPECT_THAT(said_[0], HasSubstr("list pods in namespace default"));
  ListUntil("listed");
}

TEST_F(KubeMachinesTest, WhatWasHeardIsGoodForAWhile) {
  ListUntil("listed");
  kube_.Say("cut");
  ASSERT_TRUE(kube_.Await("GET pods", 3));  // The list, the watch, and the watch again.
  ASSERT_TRUE(kube_.AwaitHeard());
  machines_->Step(clock_.Now());
  clock_.Advance(kKubeStale);
  ListUntil("listed");  // Nothing has happened, and that was heard.
  kube_.Down(true);
  const size_t asked = kube_.Count("GET pods");
  ASSERT_TRUE(kube_.Await("GET pods", asked + 2));
  ListUntil("listed");
  clock_.Advance(kKubeStale);
  ListUntil("watch pods: nobody is there");
  kube_.Down(false);
  ListUntil("listed");
}

TEST_F(KubeMachinesTest, ItsEndWaitsForNobody) {
  for (int i = 0; i < 100; ++i) Create(std::to_string(i));
  List();
  ASSERT_TRUE(kube_.Await("POST pods", 1));
  const Time begun = steady_.Now();
  machines_.reset();
  EXPECT_LT(steady_.Now() - begun, seconds(20));
}

TEST_F(KubeMachinesTest, AnEndThatFailsIsToldAndOneOfNobodySucceeds) {
  machines_->Terminate({"nobody"},
                       [this](const Status& s) { said_.push_back(s.ok() ? "ok" : "no"); });
  StepUntil(1);
  kube_.Fail("DELETE pod", Fault::kForbidden);
  machines_->Terminate({"nobody"},
                       [this](const Status& s) { said_.push_back(s.ok() ? "ok" : "no"); });
  StepUntil(2);
  machines_->Terminate({}, [this](const Status& s) { said_.push_back(s.ok() ? "ok" : "no"); });
  EXPECT_THAT(said_, ElementsAre("ok", "no", "ok"));
}

}  // namespace
}  // namespace troupe::kubernetes
