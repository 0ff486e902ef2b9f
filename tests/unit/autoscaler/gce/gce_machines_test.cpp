// What is asked of Compute Engine, and what becomes of its answers.
#include "autoscaler/gce/gce_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "autoscaler/gce/gce_api.h"
#include "tests/unit/autoscaler/gce/fake_gce.h"

namespace troupe::gce {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using tests::FakeGce;
using tests::FakeWorld;
using tests::Refuses;
using tests::Says;

constexpr const char* kBegun = R"({"name": "op", "zone": "us-central1-a", "status": "RUNNING"})";
constexpr const char* kDone = R"({"name": "op", "zone": "us-central1-a", "status": "DONE"})";

GceOptions OptionsOf() {
  GceOptions options;
  options.cluster = "demo";
  options.image = "i";
  options.offers["spot"] = {true, {"n2"}, {"us-central1-a"}, ""};
  options.offers["wide"] = {true, {"n2"}, {"us-central1-a", "us-central1-b"}, ""};
  return options;
}

FakeWorld UsersWorld() {
  FakeWorld world;
  world.variables = {{"GOOGLE_APPLICATION_CREDENTIALS", "/c"},
                     {"TROUPE_GCE_ENDPOINT", "http://g/"}};
  world.files = {{"/c", tests::kUser}};
  return world;
}

MachineOrder Order(const std::string& offer = "spot", int count = 1) {
  return {"life-1", offer, count, "boot\n", {{kClusterTag, "demo"}, {kNodeTag, "spot-1"}}};
}

class GceApiTest : public ::testing::Test {
 protected:
  GceApiTest() { google_.Answers("o/token", {Says(R"({"access_token": "t"})")}); }
  GceApi Api() { return {&options_, &identity_, &zones_, google_.Seams()}; }

  GceOptions options_ = OptionsOf();
  FakeWorld world_ = UsersWorld();
  GceIdentity identity_{world_.World(), {}};
  GceZones zones_;
  FakeGce google_;
};

TEST_F(GceApiTest, AnOrderIsOneOperationThatIsWaitedFor) {
  google_.Answers("bulkInsert", {Says(kBegun)});
  google_.Answers("operations/op/wait", {Says(kBegun), Says(kDone)});
  const auto made = Api().Create(Order());
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_THAT(*made, SizeIs(1));
  EXPECT_EQ(made->front().id, "us-central1-a/" + InstanceNameOf(Order(), 0));
  EXPECT_EQ(made->front().request_id, "life-1");
  const HttpRequest& asked = google_.requests[1];
  EXPECT_EQ(asked.url,
            "http://g/compute/v1/projects/p1/zones/us-central1-a/instances/bulkInsert?requestId=" +
                RequestUuidOf("life-1"));
  EXPECT_EQ(google_.Bearer(1), "Bearer t");
  EXPECT_EQ(google_.Count("/wait"), 2U);
}

TEST_F(GceApiTest, OfSeveralZonesTheOperationSaysWhichItWas) {
  google_.Answers("bulkInsert", {Says(R"({"name": "op", "region": "us-central1", "status": "DONE",
                            "instancesBulkInsertOperationMetadata": {"perLocationStatus": {
                              "zones/us-central1-a": {"createdVmCount": 0},
                              "zones/us-central1-b": {"createdVmCount": 1}}}})")});
  google_.Answers("regions/us-central1",
                  {Says(R"({"zones": ["g/zones/us-central1-a", "g/zones/us-central1-f"]})")});
  EXPECT_THAT(Api().Create(Order("wide"))->front().id, HasSubstr("us-central1-b/"));
  EXPECT_THAT(google_.requests.back().body,
              HasSubstr(R"("zones/us-central1-f":{"preference":"DENY"})"));
  EXPECT_TRUE(Api().Create(Order("wide")).ok());
  EXPECT_EQ(google_.requests.size(), 4U);  // A token, the region, and two orders.
}

TEST_F(GceApiTest, OfSeveralMachinesAListSaysWhereTheyAre) {
  zones_.Are("us-central1", {"us-central1-a", "us-central1-b"});
  google_.Answers("bulkInsert", {Says(R"({"name": "op", "region": "us-central1", "status": "DONE",
                            "instancesBulkInsertOperationMetadata": {"perLocationStatus": {
                              "zones/us-central1-a": {"createdVmCount": 1},
                              "zones/us-central1-b": {"createdVmCount": 1}}}})")});
  google_.Answers("aggregated/instances", {Says(R"({"items": {"zones/us-central1-b": {"instances": [
                     {"name": "m", "zone": "us-central1-b", "status": "RUNNING",
                      "labels": {"troupe-request": "life-1"}},
                     {"name": "other", "zone": "us-central1-b", "status": "RUNNING"}]}}})")});
  const auto made = Api().Create(Order("wide", 2));
  ASSERT_TRUE(made.ok());
  ASSERT_THAT(*made, SizeIs(1));
  EXPECT_EQ(made->front().id, "us-central1-b/m");
}

TEST_F(GceApiTest, ARegionThatIsNoneIsTold) {
  google_.Answers("regions/us-central1",
                  {Refuses(404, "notFound", "projects/p/regions/x"), Says("{}")});
  EXPECT_THAT(Api().Create(Order("wide")).error().message,
              HasSubstr("pool wide: region us-central1: notFound"));
  EXPECT_EQ(Api().Create(Order("wide")).error().code, ErrorCode::kCorrupt);
}

TEST_F(GceApiTest, NoCapacityIsToldWithThePoolAndItsPlace) {
  google_.Answers("bulkInsert", {Says(R"({"name": "op", "zone": "us-central1-a", "status": "DONE",
      "httpErrorStatusCode": 503, "error": {"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED",
      "message": "The zone does not have enough resources."}]}})")});
  const Error error = Api().Create(Order()).error();
  EXPECT_EQ(error.code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.message, AllOf(HasSubstr("no capacity: pool spot: bulkInsert of n2 in "),
                                   HasSubstr("ZONE_RESOURCE_POOL_EXHAUSTED: The zone")));
}

TEST_F(GceApiTest, AnOrderWhoseAnswerWasLostIsAskedForAgainWithItsId) {
  google_.Answers("bulkInsert", {Error{ErrorCode::kPeerGone, "cut"}, Says("<html>", 200),
                                 Refuses(503, "backendError"), Says(kDone)});
  EXPECT_TRUE(Api().Create(Order()).ok());
  EXPECT_EQ(google_.Count(RequestUuidOf("life-1")), 4U);
  // One that was made under this name before.
  google_.requests.clear();
  FakeGce again;
  again.Answers("o/token", {Says(R"({"access_token": "t"})")});
  again.Answers("bulkInsert", {Refuses(409, "alreadyExists")});
  GceApi api(&options_, &identity_, &zones_, again.Seams());
  EXPECT_THAT(api.Create(Order())->front().id, HasSubstr("us-central1-a/spot-1-"));
}

TEST_F(GceApiTest, AnOperationThatDoesNotEndMayHaveMadeIt) {
  google_.Answers("bulkInsert", {Says(kBegun)});
  google_.Answers("/wait", {Says(kBegun)});
  EXPECT_EQ(Api().Create(Order()).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_GE(google_.clock.Now(), Time{} + kGceOperationLimit);
  FakeGce away;
  away.Answers("o/token", {Says(R"({"access_token": "t"})")});
  away.Answers("bulkInsert", {Says(kBegun)});
  away.Answers("/wait", {Error{ErrorCode::kUnavailable, "refused"}});
  GceApi api(&options_, &identity_, &zones_, away.Seams());
  EXPECT_EQ(api.Create(Order()).error().code, ErrorCode::kCorrupt);
}

TEST_F(GceApiTest, ThrottlingIsWaitedOutAndATokenRenewedOnce) {
  google_.Answers("aggregated", {Refuses(403, "rateLimitExceeded"), Refuses(429, "x"),
                                 Refuses(401, "authError"), Says("{}"), Refuses(401, "authError")});
  EXPECT_TRUE(Api().List().ok());
  EXPECT_THAT(google_.pauses, SizeIs(2));
  EXPECT_EQ(google_.Count("o/token"), 2U);
  const Error error = Api().List().error();
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(error.message, HasSubstr("are the credentials good?"));
  FakeGce busy;
  busy.Answers("o/token", {Says(R"({"access_token": "t"})")});
  busy.Answers("aggregated", {Refuses(429, "rateLimitExceeded")});
  busy.wanted = false;
  GceApi api(&options_, &identity_, &zones_, busy.Seams());
  EXPECT_FALSE(api.List().ok());
  EXPECT_THAT(busy.pauses, IsEmpty());
}

TEST_F(GceApiTest, AListHasAllPages) {
  google_.Answers("aggregated",
                  {Says(R"({"nextPageToken": "2", "items": {"zones/a": {"instances": [
                     {"name": "m", "zone": "a", "status": "RUNNING"}]}}})"),
                   Says(R"({"unreachables": ["zones/b"]})"), Says(R"({"nextPageToken": "2"})")});
  const auto listed = Api().List();
  ASSERT_TRUE(listed.ok());
  EXPECT_THAT(listed->machines, SizeIs(1));
  EXPECT_THAT(listed->unreachable, ElementsAre("b"));
  EXPECT_THAT(google_.requests[1].url, AllOf(HasSubstr("filter=labels.troupe-cluster%3Ddemo"),
                                             HasSubstr("returnPartialSuccess=true")));
  EXPECT_THAT(google_.requests[2].url, HasSubstr("pageToken=2"));
  EXPECT_THAT(Api().List().error().message, HasSubstr("pages do not end"));
}

TEST_F(GceApiTest, OneThatIsNotThereHasEnded) {
  google_.Answers("instances/m",
                  {Says(kBegun), Refuses(404, "notFound"), Refuses(403, "forbidden")});
  EXPECT_TRUE(Api().Terminate("a/m").status.ok());
  EXPECT_EQ(google_.requests[1].method, "DELETE");
  EXPECT_TRUE(Api().Terminate("a/m").gone);
  EXPECT_THAT(Api().Terminate("a/m").status.error().message, HasSubstr("compute.instances.delete"));
  EXPECT_TRUE(Api().Terminate("../../m").gone);
  EXPECT_EQ(google_.Count(".."), 0U);
}

TEST_F(GceApiTest, WhatAnInstanceHasPrintedIsToldFromItsEnd) {
  google_.Answers("serialPort", {Says(R"({"contents": "booting\nno disk\n"})"), Says("{}"),
                                 Refuses(403, "forbidden")});
  EXPECT_EQ(Api().Printed("a/m"), "booting no disk");
  EXPECT_EQ(Api().Printed("a/m"), "");
  EXPECT_EQ(Api().Printed("a/m"), "");
}

// Links of several threads to one Google.
class SharedLink final : public HttpLink {
 public:
  SharedLink(FakeGce* google, std::mutex* mu) : google_(google), mu_(mu) {}
  Result<HttpReply> Send(const HttpRequest& request) override {
    const std::lock_guard lock(*mu_);
    return (*google_)(request);
  }
  void Cancel() override {}

 private:
  FakeGce* const google_;
  std::mutex* const mu_;
};

class GceMachinesTest : public ::testing::Test {
 protected:
  GceMachinesTest() {
    google_.Answers("o/token", {Says(R"({"access_token": "t"})")});
    GceTools tools{world_.World(), [this] { return std::make_unique<SharedLink>(&google_, &mu_); },
                   &clock_};
    machines_ = std::make_unique<GceMachines>(OptionsOf(), GceChoice{}, std::move(tools));
  }
  void Answers(const std::string& part, std::deque<Result<HttpReply>> replies) {
    const std::lock_guard lock(mu_);
    google_.Answers(part, std::move(replies));
  }
  size_t Count(const std::string& part) {
    const std::lock_guard lock(mu_);
    return google_.Count(part);
  }
  std::string Listed() {
    std::string said;
    machines_->List([&](const Result<std::vector<Machine>>& listed) {
      said = listed.ok() ? "listed" : listed.error().message;
      for (const Machine& one : listed.ok() ? *listed : std::vector<Machine>{})
        said += " " + one.id + " " + one.state + (one.ended.empty() ? "" : " (" + one.ended + ")");
    });
    StepUntil([&] { return !said.empty(); });
    clock_.Advance(kGceListGap);
    return said;
  }
  void StepUntil(const std::function<bool()>& over) {
    const Time limit = steady_.Now() + seconds(30);
    while (!over() && steady_.Now() < limit) {
      machines_->Step(clock_.Now());
      std::this_thread::yield();
    }
    ASSERT_TRUE(over());
  }
  static HttpReply ListOf(const std::string& status, const std::string& more = "") {
    return Says(R"({"items": {"zones/a": {"instances": [{"name": "m", "zone": "a", "status": ")" +
                status + R"("}]}})" + more + "}");
  }

  std::mutex mu_;
  FakeGce google_;
  FakeWorld world_ = UsersWorld();
  FakeClock clock_;
  SteadyClock steady_;
  std::unique_ptr<GceMachines> machines_;
};

TEST_F(GceMachinesTest, OneThatWasMadeIsThereBeforeItIsListed) {
  Answers("bulkInsert", {Says(kDone)});
  Answers("aggregated", {Says("{}")});
  std::string made;
  machines_->Create(Order(), [&](const Result<std::vector<Machine>>& answer) {
    made = answer.ok() ? answer->front().id : answer.error().message;
  });
  StepUntil([&] { return !made.empty(); });
  EXPECT_EQ(Listed(), "listed " + made + " pending");
  clock_.Advance(kCloudListLag);
  EXPECT_EQ(Listed(), "listed");
}

TEST_F(GceMachinesTest, OneThatEndsByItselfIsToldWhenItIsKnownWhy) {
  Answers("aggregated", {ListOf("RUNNING"), ListOf("STOPPING")});
  Answers("zones/a/operations",
          {Says(R"({"items": [{"operationType": "compute.instances.preempted"}]})")});
  EXPECT_EQ(Listed(), "listed a/m running");
  EXPECT_EQ(Listed(), "listed a/m running");
  const std::string told = "listed a/m stopping (preempted by Compute Engine)";
  StepUntil([&] { return Listed() == told; });
  EXPECT_EQ(Listed(), told);
}

TEST_F(GceMachinesTest, OneThatWasStoppedIsToldAndDeleted) {
  Answers("instances/m", {Says(kBegun)});
  Answers("aggregated", {ListOf("TERMINATED")});
  Answers("zones/a/operations",
          {Says(R"({"items": [{"operationType": "compute.instances.guestTerminate"}]})")});
  std::string told;
  const Time limit = steady_.Now() + seconds(30);
  while (told.find("stopping") == std::string::npos && steady_.Now() < limit) told = Listed();
  EXPECT_EQ(told, "listed a/m stopping (it has switched itself off)");
  StepUntil([&] { return Count("instances/m") == 1; });
  EXPECT_EQ(Listed(), "listed a/m stopping");  // It is being deleted.
  EXPECT_EQ(Count("instances/m"), 1U);
}

TEST_F(GceMachinesTest, OneThatIsEndedIsNotAskedForAReason) {
  Answers("instances/m", {Says(kBegun)});
  Answers("aggregated", {ListOf("RUNNING"), ListOf("STOPPING")});
  EXPECT_EQ(Listed(), "listed a/m running");
  bool ended = false;
  machines_->Terminate({"a/m"}, [&](const Status& status) { ended = status.ok(); });
  StepUntil([&] { return ended; });
  EXPECT_EQ(Listed(), "listed a/m stopping");
  ended = false;
  machines_->Terminate({"a/m"}, [&](const Status& status) { ended = status.ok(); });
  EXPECT_TRUE(ended);  // It is on its way.
  EXPECT_EQ(Count("instances/m"), 1U);
  EXPECT_EQ(Count("operations"), 0U);
  clock_.Advance(kGceEndAgain);
  machines_->Terminate({"a/m"}, [&](const Status& status) { ended = status.ok(); });
  StepUntil([&] { return Count("instances/m") == 2; });
}

TEST_F(GceMachinesTest, AZoneOutOfReachKeepsWhatItHad) {
  const std::string away = R"(, "unreachables": ["zones/a"])";
  Answers("aggregated", {Says(R"({"unreachables": ["zones/a"]})"), ListOf("RUNNING"),
                         Says(R"({"unreachables": ["zones/a"]})")});
  EXPECT_EQ(Listed(), "Compute Engine does not reach a");  // Nobody knows what is there.
  EXPECT_EQ(Listed(), "listed a/m running");
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(kCloudListLag);
    EXPECT_EQ(Listed(), "listed a/m running");
  }
}

TEST_F(GceMachinesTest, AnOrderThatIsWithdrawnIsNotSent) {
  const std::lock_guard lock(mu_);  // The first requests wait for this.
  std::vector<std::string> said;
  for (size_t i = 0; i <= kGceCreateThreads; ++i) {
    MachineOrder order = Order();
    order.request_id = "life-" + std::to_string(i);
    machines_->Create(order, [&](const auto& made) { said.push_back(made.error().message); });
  }
  machines_->Withdraw("life-" + std::to_string(kGceCreateThreads));
  mu_.unlock();
  StepUntil([&] { return said.size() == kGceCreateThreads + 1; });
  mu_.lock();
  EXPECT_THAT(said, testing::Contains("it is not wanted any more"));
}

}  // namespace
}  // namespace troupe::gce
