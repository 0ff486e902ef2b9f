// How EC2 is asked through throttling, hiccups and half an answer, and what is left behind.
#include "autoscaler/ec2/ec2_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/autoscaler/ec2/fake_ec2.h"

namespace troupe::ec2 {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using tests::FakeEc2;
using tests::Refusal;
using tests::Success;

const Result<HttpReply> kMadeFleet =
    Success("CreateFleet",
            "<fleetInstanceSet><item><instanceIds><item>i-1</item></instanceIds></item>"
            "</fleetInstanceSet>");
const Result<HttpReply> kSilence = Error{ErrorCode::kDeadlineExceeded, "no reply in time"};

Result<HttpReply> NoFleet(const std::string& code) {
  return Success("CreateFleet", "<errorSet><item><errorCode>" + code +
                                    "</errorCode><errorMessage>m</errorMessage></item></errorSet>");
}

class Ec2ApiTest : public ::testing::Test {
 protected:
  Ec2ApiTest() : identity_(AwsChain(tests::WorldWithKeys(), {})) {
    options_.cluster = "demo";
    options_.image = "ami-1";
    options_.offers["spot"] = {true, {"c5.large", "m5.large"}, {}, "", ""};
  }
  Ec2Api Api() { return {&options_, &identity_, ec2_.Seams()}; }
  Result<std::vector<Machine>> Create(const std::string& offer = "spot") {
    return Api().Create({"life-1", offer, 1, "#!/bin/sh\n", {{"troupe-node", "spot-1"}}});
  }

  Ec2Options options_;
  AwsIdentity identity_;
  FakeEc2 ec2_;
};

TEST_F(Ec2ApiTest, ATemplateIsMadeForAnOrderAndDeletedAfterIt) {
  ec2_.Answers("CreateFleet", {kMadeFleet});
  const auto made = Create();
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->front().id, "i-1");
  EXPECT_EQ(made->front().request_id, "life-1");
  EXPECT_EQ(made->front().tags.at("troupe-node"), "spot-1");
  EXPECT_THAT(ec2_.actions,
              ElementsAre("CreateLaunchTemplate", "CreateFleet", "DeleteLaunchTemplate"));
  EXPECT_EQ(ec2_.requests[1].aws->key_id, "AK");
  EXPECT_EQ(ec2_.requests[1].url, "https://ec2.us-east-1.amazonaws.com/");
  EXPECT_THAT(ec2_.requests[2].body, HasSubstr("LaunchTemplateName=troupe-life-1"));
}

TEST_F(Ec2ApiTest, ATemplateIsDeletedWhateverBecomesOfTheOrder) {
  for (const Result<HttpReply>& reply :
       {NoFleet("InsufficientInstanceCapacity"), Result<HttpReply>(Refusal(403, "AuthFailure")),
        kSilence, Result<HttpReply>(HttpReply{200, {}, "<CreateFleetResponse><fleetId>"}),
        Result<HttpReply>(HttpReply{200, {}, "<html/>"})}) {
    ec2_.actions.clear();
    ec2_.Answers("CreateFleet", {reply});
    EXPECT_FALSE(Create().ok());
    EXPECT_EQ(ec2_.actions.back(), "DeleteLaunchTemplate");
  }
  // Its making may have come through.
  ec2_.Answers("CreateLaunchTemplate", {kSilence});
  EXPECT_EQ(Create().error().code, ErrorCode::kUnavailable);  // But no machine.
  EXPECT_EQ(ec2_.actions.back(), "DeleteLaunchTemplate");
  ec2_.actions.clear();
  ec2_.Answers("CreateLaunchTemplate",
               {Refusal(400, "InvalidLaunchTemplateName.AlreadyExistsException")});
  ec2_.Answers("CreateFleet", {kMadeFleet});
  EXPECT_TRUE(Create().ok());
  ec2_.actions.clear();
  ec2_.Answers("CreateLaunchTemplate", {Refusal(403, "UnauthorizedOperation")});
  EXPECT_THAT(Create().error().message, HasSubstr("allow ec2:CreateLaunchTemplate"));
  EXPECT_THAT(ec2_.actions, ElementsAre("CreateLaunchTemplate"));
}

TEST_F(Ec2ApiTest, ErrorsSayWhatMayHaveBeenMade) {
  ec2_.Answers("CreateFleet", {kSilence});
  EXPECT_EQ(Create().error().code, ErrorCode::kDeadlineExceeded);
  ec2_.Answers("CreateFleet", {Result<HttpReply>(HttpReply{200, {}, "<Create"})});
  EXPECT_EQ(Create().error().code, ErrorCode::kCorrupt);
  ec2_.Answers("CreateFleet", {NoFleet("InsufficientInstanceCapacity")});
  EXPECT_EQ(Create().error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Create("nobody").error().code, ErrorCode::kInvalidArgument);
  const auto huge = Api().Create({"r", "spot", 1, std::string(20'000, 'x'), {}});
  EXPECT_THAT(huge.error().message, HasSubstr("shorten nodes.setup"));
}

TEST_F(Ec2ApiTest, AnOrderIsRepeatedWithItsToken) {
  ec2_.Answers("CreateFleet", {kSilence, Refusal(500, "InternalError"), kMadeFleet});
  EXPECT_TRUE(Create().ok());
  ASSERT_THAT(ec2_.requests, SizeIs(5));
  EXPECT_EQ(ec2_.requests[1].body, ec2_.requests[2].body);
  EXPECT_EQ(ec2_.requests[1].body, ec2_.requests[3].body);
  // What failed inside of a fleet would be answered with again.
  ec2_.requests.clear();
  ec2_.Answers("CreateFleet", {NoFleet("RequestLimitExceeded"), kMadeFleet});
  EXPECT_TRUE(Create().ok());
  EXPECT_THAT(ec2_.requests[1].body, HasSubstr("ClientToken=life-1&"));
  EXPECT_THAT(ec2_.requests[2].body, HasSubstr("ClientToken=life-1-1&"));
  ec2_.Answers("CreateFleet", {NoFleet("InternalError"), kMadeFleet});
  EXPECT_TRUE(Create().ok());
  ec2_.Answers("CreateFleet", {NoFleet("InsufficientInstanceCapacity"), kMadeFleet});
  EXPECT_FALSE(Create().ok());
}

TEST_F(Ec2ApiTest, ThrottlingIsWaitedOutBeyondTheLimit) {
  std::deque<Result<HttpReply>> replies(12, Refusal(503, "RequestLimitExceeded"));
  replies.push_back(kMadeFleet);
  ec2_.Answers("CreateFleet", replies);
  EXPECT_TRUE(Create().ok());
  ASSERT_THAT(ec2_.pauses, SizeIs(12));
  EXPECT_EQ(ec2_.pauses[0], kEc2PauseMin);
  EXPECT_EQ(ec2_.pauses[1], kEc2PauseMin * 2);
  EXPECT_EQ(ec2_.pauses[11], kEc2PauseMax);
  ec2_.Answers("CreateFleet", {Refusal(503, "RequestLimitExceeded")});
  const Time before = ec2_.clock.Now();
  EXPECT_EQ(Create().error().code, ErrorCode::kUnavailable);
  EXPECT_LE(ec2_.clock.Now() - before, kEc2ThrottlePatience);
  EXPECT_GT(ec2_.clock.Now() - before, kEc2ThrottlePatience - kEc2PauseMax - seconds(1));
  EXPECT_EQ(Ec2Pause(3, 0.0), kEc2PauseMin * 2);
  EXPECT_EQ(Ec2Pause(1'000'000, 7.0), kEc2PauseMax);
}

TEST_F(Ec2ApiTest, AnOrderThatIsWithdrawnWaitsForNoThrottling) {
  ec2_.wanted = false;
  ec2_.Answers("CreateLaunchTemplate", {Refusal(503, "RequestLimitExceeded")});
  EXPECT_EQ(Create().error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(ec2_.pauses, IsEmpty());
  // What may have been made is asked for until it is known.
  ec2_.Answers("CreateLaunchTemplate", {Success("CreateLaunchTemplate")});
  ec2_.Answers("CreateFleet", {kSilence, kMadeFleet});
  EXPECT_TRUE(Create().ok());
}

TEST_F(Ec2ApiTest, WhoeverDoesNotAnswerIsAskedAFewTimes) {
  ec2_.Answers("DescribeInstances", {Error{ErrorCode::kUnavailable, "refused"}});
  const auto listed = Api().List();
  EXPECT_THAT(listed.error().message,
              AllOf(HasSubstr("DescribeInstances: https://ec2.us-east-1"), HasSubstr("refused")));
  EXPECT_THAT(ec2_.actions, SizeIs(kEc2TriesMax));
  EXPECT_LE(ec2_.requests[0].limit, options_.limit / 2);
  ec2_.cancelled = true;
  EXPECT_EQ(Api().List().error().code, ErrorCode::kCancelled);
}

TEST_F(Ec2ApiTest, WhatAnInstanceHasPrintedIsToldFromItsEnd) {
  ec2_.Answers("GetConsoleOutput",
               {Success("GetConsoleOutput", "<output>Ym9vdGluZwpubyBzcGFjZSBsZWZ0Cg==</output>"),
                Success("GetConsoleOutput", "<output>?</output>"), Success("GetConsoleOutput"),
                Refusal(403, "UnauthorizedOperation")});
  EXPECT_EQ(Api().Printed("i-1"), "booting no space left");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Api().Printed("i-1"), "");
}

TEST_F(Ec2ApiTest, AWrongClockIsToldAndStaleCredentialsAreLookedForOnce) {
  HttpReply skewed = Refusal(400, "RequestExpired");
  skewed.headers["date"] = "Fri, 02 Jan 2026 05:04:05 GMT";
  ec2_.Answers("DescribeInstances", {skewed});
  EXPECT_THAT(Api().List().error().message, HasSubstr("clock is 7200 s behind EC2's"));
  ec2_.requests.clear();
  ec2_.Answers("DescribeInstances", {Refusal(400, "ExpiredToken")});
  EXPECT_EQ(Api().List().error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(ec2_.requests, SizeIs(2));
  EXPECT_THAT(ec2_.pauses, IsEmpty());
}

TEST_F(Ec2ApiTest, WithATemplateOfTheUsersTypesAreTriedInTurn) {
  options_.launch_template = "mine";
  ec2_.Answers("RunInstances",
               {Refusal(500, "InsufficientInstanceCapacity"),
                Success("RunInstances",
                        "<instancesSet><item><instanceId>i-9</instanceId></item></instancesSet>")});
  const auto made = Create();
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->front().id, "i-9");
  EXPECT_THAT(made->front().detail, HasSubstr("after no capacity"));
  EXPECT_THAT(ec2_.actions, ElementsAre("RunInstances", "RunInstances"));
  EXPECT_THAT(ec2_.requests[0].body, AllOf(HasSubstr("c5.large"), HasSubstr("Token=life-1&")));
  EXPECT_THAT(ec2_.requests[1].body, AllOf(HasSubstr("m5.large"), HasSubstr("Token=life-1-1&")));
  ec2_.actions.clear();
  ec2_.Answers("RunInstances", {Refusal(400, "InvalidAMIID.NotFound")});
  EXPECT_EQ(Create().error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(ec2_.actions, SizeIs(1));
  ec2_.Answers("RunInstances", {Success("RunInstances")});
  EXPECT_EQ(Create().error().code, ErrorCode::kCorrupt);
}

TEST_F(Ec2ApiTest, AListHasAllPages) {
  std::string page = "<reservationSet>";
  for (int i = 0; i < 500; ++i)
    page += "<item><instancesSet><item><instanceId>i-" + std::to_string(i) +
            "</instanceId></item></instancesSet></item>";
  page += "</reservationSet>";
  ec2_.Answers("DescribeInstances",
               {Success("DescribeInstances", page + "<nextToken>n</nextToken>"),
                Success("DescribeInstances", page)});
  const auto listed = Api().List();
  ASSERT_TRUE(listed.ok());
  EXPECT_THAT(*listed, SizeIs(1000));
  EXPECT_THAT(ec2_.requests[0].body, AllOf(HasSubstr("tag%3Atroupe-cluster"), HasSubstr("=demo")));
  EXPECT_THAT(ec2_.requests[1].body, HasSubstr("NextToken=n"));
  ec2_.Answers("DescribeInstances", {Success("DescribeInstances", "<nextToken>same</nextToken>")});
  EXPECT_EQ(Api().List().error().code, ErrorCode::kCorrupt);
}

TEST_F(Ec2ApiTest, OneThatIsNotThereLeavesNoneOfTheOthersRunning) {
  ec2_.Answers("TerminateInstances", {Refusal(400, "InvalidInstanceID.NotFound",
                                              "The instance IDs 'i-1, i-3, i-99' do not exist"),
                                      Success("TerminateInstances")});
  const auto ended = Api().Terminate({"i-1", "i-2", "i-3"}, {"i-3"});
  EXPECT_TRUE(ended.at("i-1").gone);
  EXPECT_TRUE(ended.at("i-2").status.ok());
  EXPECT_FALSE(ended.at("i-2").gone);
  EXPECT_THAT(ended.at("i-3").status.error().message, HasSubstr("does not know i-3 yet"));
  EXPECT_THAT(ec2_.requests[1].body, AllOf(HasSubstr("i-2"), Not(HasSubstr("i-1"))));
}

TEST_F(Ec2ApiTest, OneThatMayNotBeEndedLeavesNoneOfTheOthersRunning) {
  const HttpReply refused = Refusal(400, "OperationNotPermitted", "'i-2' may not be terminated");
  ec2_.Answers("TerminateInstances", {refused, refused, Success("TerminateInstances"), refused,
                                      Success("TerminateInstances")});
  const auto ended = Api().Terminate({"i-1", "i-2", "i-3", "i-4"}, {});
  EXPECT_TRUE(ended.at("i-1").status.ok());
  EXPECT_THAT(ended.at("i-2").status.error().message, HasSubstr("OperationNotPermitted"));
  EXPECT_TRUE(ended.at("i-3").status.ok());
  EXPECT_TRUE(ended.at("i-4").status.ok());
}

TEST_F(Ec2ApiTest, ManyAreEndedInFewRequests) {
  std::vector<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back("i-" + std::to_string(i));
  const auto ended = Api().Terminate(ids, {});
  EXPECT_THAT(ended, SizeIs(1000));
  EXPECT_THAT(ec2_.requests, SizeIs(5));
  // A throttled one is not asked for in ever smaller parts.
  ec2_.requests.clear();
  ec2_.Answers("TerminateInstances", {Refusal(503, "RequestLimitExceeded")});
  EXPECT_FALSE(Api().Terminate({"i-1", "i-2"}, {}).at("i-1").status.ok());
  EXPECT_LT(ec2_.requests.size(), 12);
}

TEST_F(Ec2ApiTest, OldTemplatesAreDeleted) {
  ec2_.Answers("DescribeLaunchTemplates",
               {Success("DescribeLaunchTemplates",
                        "<launchTemplates><item><launchTemplateName>troupe-old</launchTemplateName>"
                        "<createTime>2026-01-02T02:04:05Z</createTime></item><item>"
                        "<launchTemplateName>troupe-new</launchTemplateName><createTime>"
                        "2026-01-02T03:03:05Z</createTime></item><item><launchTemplateName>"
                        "theirs</launchTemplateName><createTime>2026-01-02T02:04:05Z</createTime>"
                        "</item></launchTemplates>")});
  EXPECT_EQ(*Api().Sweep(), 1);
  EXPECT_THAT(ec2_.requests.back().body, HasSubstr("troupe-old"));
  EXPECT_THAT(ec2_.actions, ElementsAre("DescribeLaunchTemplates", "DeleteLaunchTemplate"));
}

TEST_F(Ec2ApiTest, SubnetsAreAskedForTheirZones) {
  options_.subnets = {"s1", "s2"};
  options_.offers["spot"].zones = {"b"};
  ec2_.Answers("DescribeSubnets",
               {Success("DescribeSubnets",
                        "<subnetSet><item><subnetId>s1</subnetId><availabilityZone>a"
                        "</availabilityZone></item><item><subnetId>s2</subnetId>"
                        "<availabilityZone>b</availabilityZone></item></subnetSet>")});
  ec2_.Answers("CreateFleet", {kMadeFleet});
  EXPECT_TRUE(Create().ok());
  EXPECT_THAT(ec2_.requests[2].body, AllOf(HasSubstr("SubnetId=s2"), Not(HasSubstr("=s1"))));
}

TEST_F(Ec2ApiTest, NoSecretIsTold) {
  AwsWorld world = tests::WorldWithKeys();
  AwsIdentity identity(AwsChain(world, {}));
  Ec2Api api(&options_, &identity, ec2_.Seams());
  std::vector<std::string> said;
  for (const Result<HttpReply>& reply :
       {Result<HttpReply>(Refusal(403, "SignatureDoesNotMatch")), kSilence,
        Result<HttpReply>(HttpReply{200, {}, "nonsense"})}) {
    ec2_.Answers("DescribeInstances", {reply});
    said.push_back(api.List().error().message);
  }
  EXPECT_THAT(said, Each(AllOf(Not(HasSubstr("SK")), HasSubstr("DescribeInstances"))));
}

}  // namespace
}  // namespace troupe::ec2
