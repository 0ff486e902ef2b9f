// What EC2 is asked, what its answers say, and what its errors mean.
#include "autoscaler/ec2/ec2_requests.h"
#include "autoscaler/cloud_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/autoscaler/ec2/fake_ec2.h"

namespace troupe::ec2 {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

Ec2Options Options() {
  Ec2Options options;
  options.image = "ami-1";
  options.security_groups = {"sg-1", "default", "sg-2"};
  options.instance_profile = "arn:aws:iam::1:instance-profile/p";
  options.strategy = "price-capacity-optimized";
  options.tags = {{"team", "vision"}, {"Name", "mine"}};
  options.cluster = "demo";
  return options;
}

const MachineOrder kOrder = {"life-1", "spot", 1, "#!/bin/sh\n", {{"troupe-node", "spot-1"}}};

std::string ValueOf(const AwsParameters& request, const std::string& name) {
  for (const auto& [key, value] : request) {
    if (key == name) return value;
  }
  return "(none)";
}

TEST(Ec2PricesTest, OneQuestionIsForAllTypesAsOfNow) {
  const AwsParameters request = SpotPricesRequest({"m5.large", "c5.large"}, 1'800'000'000, "more");
  EXPECT_EQ(ValueOf(request, "Action"), "DescribeSpotPriceHistory");
  EXPECT_EQ(ValueOf(request, "StartTime"), "2027-01-15T08:00:00Z");
  EXPECT_EQ(ValueOf(request, "InstanceType.2"), "m5.large");
  EXPECT_EQ(ValueOf(request, "NextToken"), "more");
  EXPECT_EQ(ValueOf(SpotPricesRequest({"a"}, 0, ""), "NextToken"), "(none)");
}

TEST(Ec2PricesTest, AnOfferCostsWhatItsCheapestPlaceDoesNow) {
  const auto item = [](const std::string& type, const std::string& zone, const std::string& price) {
    return "<item><instanceType>" + type + "</instanceType><availabilityZone>" + zone +
           "</availabilityZone><spotPrice>" + price + "</spotPrice></item>";
  };
  const Result<XmlElement> answer =
      ParseXml("<r><spotPriceHistorySet>" + item("a", "z1", "0.5") + item("a", "z1", "0.1") +
               item("a", "z2", "0.3") + item("b", "z1", "0.2") + item("b", "z2", "x") +
               item("b", "z2", "-1") + item("c", "z1", "0.01") + "</spotPriceHistorySet></r>");
  ASSERT_TRUE(answer.ok());
  const std::vector<Ec2SpotPrice> prices = SpotPricesOf(*answer);
  EXPECT_EQ(prices.size(), 5U);
  Ec2Options options = Options();
  options.offers["all"] = {true, {"a", "b"}, {}, "", ""};
  options.offers["one"] = {true, {"a"}, {"z1"}, "", ""};  // The older one of z1 is over.
  options.offers["base"] = {false, {"a"}, {}, "", ""};
  options.offers["none"] = {true, {"b"}, {"z2"}, "", ""};
  EXPECT_THAT(OfferPrices(options, prices), ElementsAre(Pair("all", 0.2), Pair("one", 0.5)));
}

TEST(Ec2RequestsTest, ATemplateSaysWhatAMachineIsLike) {
  const AwsParameters request = CreateTemplateRequest(Options(), {}, kOrder);
  const std::string data = "LaunchTemplateData.";
  EXPECT_EQ(request.front().second, "CreateLaunchTemplate");
  EXPECT_EQ(ValueOf(request, "LaunchTemplateName"), "troupe-life-1");
  EXPECT_EQ(ValueOf(request, data + "ImageId"), "ami-1");
  EXPECT_EQ(ValueOf(request, data + "SecurityGroupId.2"), "sg-2");
  EXPECT_EQ(ValueOf(request, data + "SecurityGroup.1"), "default");
  EXPECT_EQ(ValueOf(request, data + "IamInstanceProfile.Arn"), "arn:aws:iam::1:instance-profile/p");
  EXPECT_EQ(ValueOf(request, data + "MetadataOptions.HttpTokens"), "required");
  EXPECT_EQ(ValueOf(request, data + "InstanceInitiatedShutdownBehavior"), "terminate");
  EXPECT_EQ(ValueOf(request, data + "UserData"), EncodeBase64(UserDataOf("#!/bin/sh\n")));
  EXPECT_EQ(ValueOf(request, data + "KeyName"), "(none)");
  EXPECT_EQ(ValueOf(request, data + "TagSpecification.1.ResourceType"), "instance");
  EXPECT_EQ(ValueOf(request, data + "TagSpecification.1.Tag.1.Key"), "Name");
  EXPECT_EQ(ValueOf(request, data + "TagSpecification.1.Tag.1.Value"), "mine");
  EXPECT_THAT(request, Contains(Pair(data + "TagSpecification.1.Tag.3.Key", "troupe-node")));
  EXPECT_EQ(ValueOf(request, "TagSpecification.1.ResourceType"), "launch-template");
  Ec2Offer offer;
  offer.image = "ami-2";
  EXPECT_EQ(ValueOf(CreateTemplateRequest(Options(), offer, kOrder), data + "ImageId"), "ami-2");
}

TEST(Ec2RequestsTest, AFleetIsOfTypesAndPlaces) {
  Ec2Offer offer{true, {"c5.large", "m5.large"}, {"a", "b"}, "0.9", ""};
  const auto overrides = OverridesOf(Options(), offer, {});
  ASSERT_TRUE(overrides.ok());
  const AwsParameters request = CreateFleetRequest(Options(), offer, kOrder, *overrides, 0);
  EXPECT_EQ(ValueOf(request, "Type"), "instant");
  const std::string entry = "LaunchTemplateConfigs.1.Overrides.4.";
  EXPECT_EQ(ValueOf(request, entry + "InstanceType"), "m5.large");
  EXPECT_EQ(ValueOf(request, entry + "AvailabilityZone"), "b");
  EXPECT_EQ(ValueOf(request, entry + "MaxPrice"), "0.9");
  EXPECT_EQ(ValueOf(request, "SpotOptions.AllocationStrategy"), "price-capacity-optimized");
  EXPECT_EQ(ValueOf(request, "TargetCapacitySpecification.DefaultTargetCapacityType"), "spot");
  EXPECT_EQ(ValueOf(request, "ClientToken"), "life-1");
  offer.spot = false;
  const AwsParameters steady = CreateFleetRequest(Options(), offer, kOrder, *overrides, 1);
  EXPECT_EQ(ValueOf(steady, "TargetCapacitySpecification.DefaultTargetCapacityType"), "on-demand");
  EXPECT_EQ(ValueOf(steady, entry + "MaxPrice"), "(none)");
  EXPECT_EQ(ValueOf(steady, "OnDemandOptions.AllocationStrategy"), "lowest-price");
  EXPECT_EQ(ValueOf(steady, "ClientToken"), "life-1-1");
}

TEST(Ec2RequestsTest, ATemplateOfTheUsersIsOnlyAddedTo) {
  Ec2Options options;
  options.launch_template = "lt-1:7";
  const AwsParameters request =
      RunInstancesRequest(options, {true, {}, {}, "0.5", ""}, kOrder, {"", "subnet-1", ""}, 2);
  EXPECT_EQ(ValueOf(request, "LaunchTemplate.LaunchTemplateId"), "lt-1");
  EXPECT_EQ(ValueOf(request, "LaunchTemplate.Version"), "7");
  EXPECT_EQ(ValueOf(request, "SubnetId"), "subnet-1");
  EXPECT_EQ(ValueOf(request, "InstanceMarketOptions.SpotOptions.MaxPrice"), "0.5");
  EXPECT_THAT(request, Not(Contains(Key("ImageId"))));
  EXPECT_THAT(request, Not(Contains(Key("InstanceType"))));
  options.launch_template = "mine";
  EXPECT_EQ(
      ValueOf(RunInstancesRequest(options, {}, kOrder, {}, 0), "LaunchTemplate.LaunchTemplateName"),
      "mine");
}

TEST(Ec2RequestsTest, SubnetsAreThoseOfThePoolsZones) {
  Ec2Options options;
  options.subnets = {"s1", "s2", "s3"};
  const std::map<std::string, std::string> zones = {{"s1", "a"}, {"s2", "b"}, {"s3", "a"}};
  Ec2Offer offer{true, {"t"}, {"a"}, "", ""};
  const auto some = OverridesOf(options, offer, zones);
  ASSERT_TRUE(some.ok());
  ASSERT_EQ(some->size(), 2);
  EXPECT_EQ((*some)[1].subnet, "s3");
  EXPECT_EQ((*some)[1].zone, "");
  offer.zones = {"c"};
  EXPECT_THAT(OverridesOf(options, offer, zones).error().message, HasSubstr("ec2.subnets is in c"));
  offer.instance_types.assign(200, "t");
  offer.zones = {"a"};
  EXPECT_EQ(OverridesOf(options, offer, zones).error().code, ErrorCode::kInvalidArgument);
}

TEST(Ec2RequestsTest, TokensAreShortAndTheSame) {
  const std::string longest(300, 'x');
  EXPECT_EQ(ClientTokenOf(longest, 2), ClientTokenOf(longest, 2));
  EXPECT_LE(ClientTokenOf(longest, 2).size(), 64);
  EXPECT_NE(ClientTokenOf(longest, 2), ClientTokenOf(longest + "y", 2));
  EXPECT_NE(ClientTokenOf("a/b", 0), ClientTokenOf("a-b", 0));
  EXPECT_LE(TemplateNameOf(longest).size(), 128);
}

TEST(Ec2RequestsTest, InstancesAreReadWithTheirReasons) {
  const auto xml = ParseXml(
      "<?xml version='1.0'?><R xmlns='u'><reservationSet><item><instancesSet>"
      "<item><instanceId>i-1</instanceId><instanceState><code>16</code><name>running</name>"
      "</instanceState><instanceType>c5.large</instanceType><placement><availabilityZone>a"
      "</availabilityZone></placement><instanceLifecycle>spot</instanceLifecycle><tagSet><item>"
      "<key>troupe-node</key><value>a &amp; b</value></item><item><key>troupe-request</key>"
      "<value>r</value></item></tagSet></item>"
      "<item><instanceId>i-2</instanceId><instanceState><name>terminated</name></instanceState>"
      "<stateReason><code>Server.SpotInstanceTermination</code><message>"
      "Server.SpotInstanceTermination: Spot instance termination</message></stateReason></item>"
      "<item><instanceState/></item></instancesSet></item></reservationSet></R>");
  ASSERT_TRUE(xml.ok());
  const std::vector<Ec2Instance> instances = InstancesOf(*xml);
  ASSERT_EQ(instances.size(), 2);
  EXPECT_EQ(instances[0].machine.state, "running");
  EXPECT_EQ(instances[0].machine.detail, "c5.large in a, spot");
  EXPECT_EQ(instances[0].machine.tags.at("troupe-node"), "a & b");
  EXPECT_EQ(instances[0].machine.request_id, "r");
  EXPECT_TRUE(instances[1].ended);
  EXPECT_EQ(instances[1].machine.ended,
            "Server.SpotInstanceTermination: Spot instance termination");
}

TEST(Ec2RequestsTest, HostileXmlIsRefused) {
  std::string bomb = "<!DOCTYPE b [<!ENTITY a 'aaaaaaaaaa'>";
  for (char c = 'b'; c < 'n'; ++c) {
    const std::string before = std::string("&") + static_cast<char>(c - 1) + ";";
    bomb += std::string("<!ENTITY ") + c + " '" + before + before + before + before + "'>";
  }
  bomb += "]><R>&m;</R>";
  const auto parsed = ParseXml(bomb);
  EXPECT_LT(parsed.ok() ? parsed->text.size() : 0, 10);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  std::string closed = deep;
  for (int i = 0; i < 100'000; ++i) closed += "</a>";
  EXPECT_EQ(ParseXml(deep).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(ParseXml(closed).error().code, ErrorCode::kCorrupt);
  const std::string whole = "<R><a>b</a><c d='e'/></R>";
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(ParseXml(whole.substr(0, size)).ok()) << whole.substr(0, size);
  EXPECT_FALSE(ParseXml(std::string("\0\0<R>", 5)).ok());
  EXPECT_FALSE(ParseXml("{\"json\": 1}").ok());
  std::string many = "<R>";
  for (size_t i = 0; i <= kXmlElementsMax; ++i) many += "<a/>";
  EXPECT_THAT(ParseXml(many + "</R>").error().message, HasSubstr("too many"));
}

TEST(Ec2RequestsTest, AFleetsErrorsAreJoined) {
  const auto item = [](const char* code, const char* type) {
    return std::string("<item><errorCode>") + code + "</errorCode><errorMessage>why." +
           "</errorMessage><launchTemplateAndOverrides><overrides><instanceType>" + type +
           "</instanceType><availabilityZone>a</availabilityZone></overrides>"
           "</launchTemplateAndOverrides></item>";
  };
  const auto fleet_of = [&](const std::string& errors) {
    return FleetOf(*ParseXml("<R><errorSet>" + errors + "</errorSet></R>"), true);
  };
  const Error mixed = JoinRefusals(fleet_of(item("InvalidParameterValue", "x1") +
                                            item("InsufficientInstanceCapacity", "p3.2xlarge") +
                                            item("MaxSpotInstanceCountExceeded", "p3.8xlarge") +
                                            item("InsufficientInstanceCapacity", "p3.2xlarge"))
                                       .refusals);
  EXPECT_EQ(mixed.code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(mixed.message,
              AllOf(HasSubstr("InsufficientInstanceCapacity: why; "), HasSubstr("p3.2xlarge in a"),
                    HasSubstr("\"All P4, P3 and P2 Spot Instance Requests\" (L-7212CCBC)"),
                    HasSubstr("InvalidParameterValue")));
  EXPECT_EQ(mixed.message.find("p3.2xlarge"), mixed.message.rfind("p3.2xlarge"));
  EXPECT_EQ(JoinRefusals(fleet_of(item("UnauthorizedOperation", "t")).refusals).code,
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(JoinRefusals({}).code, ErrorCode::kResourceExhausted);
  const Ec2Fleet made = FleetOf(
      *ParseXml("<R><fleetInstanceSet><item><instanceType>c5.large</instanceType><instanceIds>"
                "<item>i-1</item><item>i-2</item></instanceIds></item></fleetInstanceSet></R>"),
      true);
  ASSERT_EQ(made.made.size(), 2);
  EXPECT_EQ(made.made[1].id, "i-2");
}

TEST(Ec2RequestsTest, ErrorsSayWhoMayTryAgainAndWhatToDo) {
  struct Case {
    const char* code;
    const char* message;
    ErrorCode wanted;
    const char* advice;
  };
  const std::vector<Case> cases = {
      {"UnauthorizedOperation", "not allowed. Encoded authorization failure message: xyzzy",
       ErrorCode::kPermissionDenied, "allow ec2:CreateFleet"},
      {"AuthFailure.ServiceLinkedRoleCreationNotPermitted", "", ErrorCode::kPermissionDenied,
       "create-service-linked-role"},
      {"AuthFailure", "", ErrorCode::kPermissionDenied, "credentials"},
      {"InvalidAMIID.NotFound", "", ErrorCode::kInvalidArgument, "ec2.image"},
      {"InvalidKeyPair.NotFound", "", ErrorCode::kInvalidArgument, "ec2.key_name"},
      {"InvalidGroup.NotFound", "", ErrorCode::kInvalidArgument, "ec2.security_groups"},
      {"InvalidSubnetID.NotFound", "", ErrorCode::kInvalidArgument, "ec2.subnets"},
      {"InvalidParameterValue",
       "Value (x) for parameter iamInstanceProfile.name is invalid. "
       "Invalid IAM Instance Profile name",
       ErrorCode::kInvalidArgument, "ec2.instance_profile"},
      {"InvalidParameterValue", "Invalid availability zone: [x]", ErrorCode::kInvalidArgument,
       "pools[].zones"},
      {"InvalidLaunchTemplateId.NotFound", "", ErrorCode::kInvalidArgument, "ec2.launch_template"},
      {"VcpuLimitExceeded", "", ErrorCode::kResourceExhausted, "L-3819A6DF"},
      {"InsufficientInstanceCapacity", "", ErrorCode::kResourceExhausted, "no capacity"},
      {"SpotMaxPriceTooLow", "", ErrorCode::kResourceExhausted, "pools[].max_price"},
      {"RequestExpired", "", ErrorCode::kPermissionDenied, "clock"},
      {"InternalError", "", ErrorCode::kUnavailable, ""},
      {"SomethingNew", "", ErrorCode::kUnavailable, "SomethingNew"}};
  for (const Case& is : cases) {
    const Ec2Error read = ReadEc2Error(tests::Refusal(400, is.code, is.message));
    const Error told = TellEc2Error(read, {"CreateFleet", "g5.xlarge", "us-east-1a", true});
    EXPECT_EQ(told.code, is.wanted) << is.code;
    EXPECT_THAT(told.message,
                AllOf(HasSubstr(is.advice), HasSubstr(is.code), Not(HasSubstr("xyzzy"))));
  }
  EXPECT_EQ(ReadEc2Error({503, {}, "<html>busy</html>"}).failure, Ec2Failure::kThrottled);
  EXPECT_EQ(ReadEc2Error({502, {}, ""}).failure, Ec2Failure::kServer);
  EXPECT_EQ(ReadEc2Error({301, {}, ""}).failure, Ec2Failure::kOther);
  EXPECT_THAT(InstancesIn("The instance IDs 'i-0a, i-1b' do not exist (i-)"),
              ElementsAre("i-0a", "i-1b"));
}

TEST(Ec2RequestsTest, OnlyTemplatesOfOursAreFound) {
  const auto xml = ParseXml(
      "<R><launchTemplates><item><launchTemplateName>troupe-a</launchTemplateName><createTime>"
      "2026-01-02T03:04:05.000Z</createTime></item><item><launchTemplateName>mine"
      "</launchTemplateName></item></launchTemplates></R>");
  const std::vector<Ec2Template> templates = TemplatesOf(*xml);
  ASSERT_EQ(templates.size(), 1);
  EXPECT_EQ(templates[0].name, "troupe-a");
  EXPECT_EQ(templates[0].made_s, 1'767'323'045);
}

}  // namespace
}  // namespace troupe::ec2
