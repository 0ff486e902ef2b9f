// Where credentials, region and endpoint come from: each link, their order, and what is said when
// none has any.
#include "autoscaler/ec2/aws_chain.h"
#include "autoscaler/cloud_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autoscaler/ec2/aws_credentials_json.h"
#include "autoscaler/ec2/aws_identity.h"

namespace troupe::ec2 {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow_s = 1'767'323'045;  // 2026-01-02T03:04:05Z.
constexpr const char* kCredentialsJson =
    R"({"Code": "Success", "AccessKeyId": "AK", "SecretAccessKey": "SK", "Token": "TK",
        "Expiration": "2026-01-02T04:04:05Z"})";
constexpr const char* kAssumed =
    "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>RK</AccessKeyId>"
    "<SecretAccessKey>RS</SecretAccessKey><SessionToken>RT</SessionToken>"
    "<Expiration>2026-01-02T04:04:05Z</Expiration></Credentials></AssumeRoleResult>"
    "</AssumeRoleResponse>";

class AwsChainTest : public ::testing::Test {
 protected:
  AwsChain Chain(AwsChoice choice = {}) {
    AwsWorld world;
    world.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    world.read = [this](const std::string& path) -> std::optional<std::string> {
      const auto found = files_.find(path);
      return found == files_.end() ? std::nullopt : std::optional(found->second);
    };
    world.run = [this](const std::string& command) -> Result<std::string> {
      commands_.push_back(command);
      return printed_;
    };
    world.wall_s = [this] { return wall_s_; };
    return {std::move(world), std::move(choice)};
  }
  AwsSend Send() {
    return [this](const HttpRequest& request) -> Result<HttpReply> {
      asked_.push_back(request);
      const auto found = replies_.find(request.method + " " + request.url);
      if (found == replies_.end()) return Error{ErrorCode::kUnavailable, "nobody is there"};
      return found->second;
    };
  }
  // "KEY SECRET TOKEN of SOURCE", or what is wrong.
  std::string Found(const AwsChoice& choice = {}) {
    const Result<AwsCredentials> found = Chain(choice).Credentials(Send());
    if (!found.ok()) return found.error().message;
    return found->key_id + " " + found->secret + " " + found->token + " of " + found->source;
  }
  void HasInstanceRole() {
    replies_["PUT http://169.254.169.254/latest/api/token"] = {200, {}, "IT"};
    const std::string path = "http://169.254.169.254/latest/meta-data/";
    replies_["GET " + path + "iam/security-credentials/"] = {200, {}, "role\n"};
    replies_["GET " + path + "iam/security-credentials/role"] = {200, {}, kCredentialsJson};
    replies_["GET " + path + "placement/region"] = {200, {}, "eu-west-1"};
  }

  std::map<std::string, std::string> variables_ = {{"HOME", "/home/me"}};
  std::map<std::string, std::string> files_;
  std::map<std::string, HttpReply> replies_;
  std::vector<HttpRequest> asked_;
  std::vector<std::string> commands_;
  Result<std::string> printed_ = std::string(kCredentialsJson);
  int64_t wall_s_ = kNow_s;
};

TEST_F(AwsChainTest, SaysOfEachLinkWhyItHasNothing) {
  const Result<AwsCredentials> none = Chain().Credentials(Send());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(none.error().message,
              AllOf(HasSubstr("environment: AWS_ACCESS_KEY_ID is not set"),
                    HasSubstr("web identity: AWS_WEB_IDENTITY_TOKEN_FILE is not set"),
                    HasSubstr("neither /home/me/.aws/credentials nor /home/me/.aws/config has the "
                              "profile default"),
                    HasSubstr("container: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
                    HasSubstr("instance role: http://169.254.169.254: nobody is there")));
}

TEST_F(AwsChainTest, LinksGoBeforeEachOther) {
  HasInstanceRole();
  EXPECT_EQ(Found(), "AK SK TK of the instance's role role");
  EXPECT_THAT(asked_.back().headers,
              ElementsAre(std::pair<std::string, std::string>("X-aws-ec2-metadata-token", "IT")));
  variables_["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/x";
  replies_["GET http://169.254.170.2/v2/x"] = {200, {}, kCredentialsJson};
  EXPECT_EQ(Found(), "AK SK TK of the container");
  files_["/home/me/.aws/credentials"] = "[default]\naws_access_key_id=PK\naws_secret_access_key=PS";
  EXPECT_EQ(Found(), "PK PS  of profile default");
  variables_["AWS_ACCESS_KEY_ID"] = "EK";
  variables_["AWS_SECRET_ACCESS_KEY"] = "ES";
  variables_["AWS_SESSION_TOKEN"] = "ET";
  EXPECT_EQ(Found(), "EK ES ET of the environment");
  // The cluster file's profile goes before a shell's keys, and before what would follow.
  EXPECT_EQ(Found({"default", "", ""}), "PK PS  of profile default");
  EXPECT_THAT(Found({"nobody", "", ""}), HasSubstr("has the profile nobody"));
}

TEST_F(AwsChainTest, ALinkThatFailsEndsTheSearch) {
  HasInstanceRole();
  variables_["AWS_ACCESS_KEY_ID"] = "EK";
  EXPECT_THAT(Found(), HasSubstr("AWS_SECRET_ACCESS_KEY is not"));
  variables_.erase("AWS_ACCESS_KEY_ID");
  variables_["AWS_PROFILE"] = "gone";
  EXPECT_THAT(Found(), HasSubstr("has the profile gone"));
  variables_.erase("AWS_PROFILE");
  files_["/home/me/.aws/config"] = "[default]\ncredential_process = get it\n";
  printed_ = std::string(R"({"AccessKeyId": "half-a-secret")");
  EXPECT_THAT(Found(), AllOf(HasSubstr("credential_process of profile default"),
                             Not(HasSubstr("half-a-secret"))));
  printed_ = std::string(kCredentialsJson);
  EXPECT_EQ(Found(), "AK SK TK of profile default");
  EXPECT_THAT(commands_, ElementsAre("get it", "get it"));
}

TEST_F(AwsChainTest, ProfilesAreReadAsAmazonsToolsDo) {
  const AwsProfiles profiles = ParseAwsProfiles(
      "\xEF\xBB\xBF# mine\n[default]\nregion = us-east-1\r\ns3 =\n  region = no\n[profile \"a "
      "b\"]\n"
      "AWS_Access_Key_Id=x=y\n; no\n[profiles]\nz = 1\n[sso-session s]\nz = 1\n[broken\nz = 1\n"
      "[profile c]\nno mark\n",
      true);
  ASSERT_EQ(profiles.size(), 3);
  EXPECT_EQ(profiles.at("default").at("region"), "us-east-1");
  EXPECT_EQ(profiles.at("a b").at("aws_access_key_id"), "x=y");
  EXPECT_TRUE(profiles.at("c").empty());
  EXPECT_EQ(ParseAwsProfiles("[a]\nb=c", false).at("a").at("b"), "c");
}

TEST_F(AwsChainTest, RolesAreAssumedWithTheirSource) {
  variables_["AWS_REGION"] = "us-east-1";
  variables_["AWS_PROFILE"] = "top";
  files_["/home/me/.aws/config"] =
      "[profile top]\nrole_arn = arn:top\nsource_profile = keys\nexternal_id = e\n"
      "[profile keys]\naws_access_key_id = PK\naws_secret_access_key = PS\n"
      "[profile loop]\nrole_arn = r\nsource_profile = pool\n"
      "[profile pool]\nrole_arn = r\nsource_profile = loop\n"
      "[profile self]\nrole_arn = arn:self\nsource_profile = self\naws_access_key_id = SK\n"
      "aws_secret_access_key = SS\n[profile mfa]\nrole_arn = r\nmfa_serial = m\n"
      "[profile sso]\nsso_session = s\n[profile env]\nrole_arn = r\n"
      "credential_source = Environment\n";
  replies_["POST https://sts.us-east-1.amazonaws.com/"] = {200, {}, kAssumed};
  EXPECT_EQ(Found(), "RK RS RT of profile top");
  ASSERT_EQ(asked_.size(), 1);
  EXPECT_EQ(asked_[0].aws->key_id, "PK");
  EXPECT_EQ(asked_[0].aws->service, "sts");
  EXPECT_THAT(asked_[0].body, AllOf(HasSubstr("Action=AssumeRole&"), HasSubstr("arn%3Atop"),
                                    HasSubstr("ExternalId=e")));
  EXPECT_THAT(Found({"self", "", ""}), HasSubstr("RK RS RT"));
  EXPECT_EQ(asked_[1].aws->key_id, "SK");
  EXPECT_THAT(Found({"loop", "", ""}), HasSubstr("names it again"));
  EXPECT_THAT(Found({"mfa", "", ""}), HasSubstr("mfa_serial"));
  EXPECT_THAT(Found({"sso", "", ""}), HasSubstr("export-credentials --profile sso"));
  EXPECT_THAT(Found({"env", "", ""}), HasSubstr("AWS_ACCESS_KEY_ID is not set"));
  replies_["POST https://sts.us-east-1.amazonaws.com/"] = {
      403,
      {},
      "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
      "</ErrorResponse>"};
  EXPECT_THAT(Found(), HasSubstr("AssumeRole: AccessDenied: no"));
}

TEST_F(AwsChainTest, AWebIdentityIsATokenAndARole) {
  variables_["AWS_REGION"] = "cn-north-1";
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/token";
  EXPECT_THAT(Found(), HasSubstr("AWS_ROLE_ARN is not"));
  variables_["AWS_ROLE_ARN"] = "arn:web";
  EXPECT_THAT(Found(), HasSubstr("/token cannot be read"));
  files_["/token"] = "jwt\n";
  std::string answer = kAssumed;
  for (size_t at = 0; (at = answer.find("AssumeRoleRes", at)) != std::string::npos; at += 20)
    answer.replace(at, 10, "AssumeRoleWithWebIdentity");
  replies_["POST https://sts.cn-north-1.amazonaws.com.cn/"] = {200, {}, answer};
  EXPECT_EQ(Found(), "RK RS RT of web identity");
  EXPECT_FALSE(asked_.back().aws);
  EXPECT_THAT(asked_.back().body, HasSubstr("WebIdentityToken=jwt"));
}

TEST_F(AwsChainTest, AContainersAgentIsOfThisHostOrHasACertificate) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://10.0.0.1/c";
  EXPECT_THAT(Found(), HasSubstr("neither HTTPS nor of this host"));
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1.evil.net/c";
  EXPECT_THAT(Found(), HasSubstr("neither HTTPS nor of this host"));
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1:99/c";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = "/auth";
  EXPECT_THAT(Found(), HasSubstr("/auth cannot be read"));
  files_["/auth"] = "a\nb";
  EXPECT_THAT(Found(), HasSubstr("two lines"));
  files_["/auth"] = "secret\n";
  EXPECT_THAT(Found(), HasSubstr("nobody is there"));
  replies_["GET http://127.0.0.1:99/c"] = {200, {}, kCredentialsJson};
  EXPECT_EQ(Found(), "AK SK TK of the container");
  EXPECT_EQ(asked_.back().headers.front().second, "secret");
}

TEST_F(AwsChainTest, CredentialsThatCannotBeReadAreNotTold) {
  for (const char* text :
       {"", "[]", "{}", "nonsense secret", R"({"AccessKeyId": "secret"})",
        R"({"AccessKeyId": "secret", "SecretAccessKey": 1})",
        R"({"AccessKeyId": "secret", "SecretAccessKey": "s", "Expiration": "x"})"}) {
    const Result<AwsCredentials> found = ParseCredentialsJson(text);
    ASSERT_FALSE(found.ok()) << text;
    EXPECT_THAT(found.error().message, Not(HasSubstr("secret"))) << text;
  }
}

TEST_F(AwsChainTest, RegionAndEndpointAreLookedForInTurn) {
  EXPECT_THAT(Chain().Region(Send()).error().message,
              AllOf(HasSubstr("ec2.region"), HasSubstr("AWS_REGION"), HasSubstr("no instance")));
  HasInstanceRole();
  EXPECT_EQ(*Chain().Region(Send()), "eu-west-1");
  files_["/home/me/.aws/config"] = "[default]\nregion = eu-west-2";
  EXPECT_EQ(*Chain().Region(Send()), "eu-west-2");
  variables_["AWS_DEFAULT_REGION"] = "eu-west-3";
  EXPECT_EQ(*Chain().Region(Send()), "eu-west-3");
  variables_["AWS_REGION"] = "eu-west-4";
  EXPECT_EQ(*Chain().Region(Send()), "eu-west-4");
  EXPECT_EQ(*Chain({"", "eu-west-5", ""}).Region(Send()), "eu-west-5");
  EXPECT_EQ(Chain().Endpoint("ec2", "us-east-1"), "https://ec2.us-east-1.amazonaws.com/");
  variables_["AWS_ENDPOINT_URL"] = "http://here";
  EXPECT_EQ(Chain().Endpoint("ec2", "us-east-1"), "http://here/");
  variables_["AWS_ENDPOINT_URL_EC2"] = "http://there/";
  EXPECT_EQ(Chain().Endpoint("ec2", "us-east-1"), "http://there/");
  EXPECT_EQ(Chain().Endpoint("sts", "us-east-1"), "http://here/");
  EXPECT_EQ(Chain({"", "", "http://mine"}).Endpoint("ec2", "us-east-1"), "http://mine/");
  variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  asked_.clear();
  EXPECT_THAT(Found(), HasSubstr("AWS_EC2_METADATA_DISABLED"));
  EXPECT_TRUE(asked_.empty());
}

TEST_F(AwsChainTest, CredentialsAreRenewedBeforeTheyExpire) {
  HasInstanceRole();
  AwsIdentity identity(Chain());
  ASSERT_TRUE(identity.Credentials(Send()).ok());
  const size_t asked = asked_.size();
  wall_s_ += 3600 - kRenewAhead_s - 1;
  ASSERT_TRUE(identity.Credentials(Send()).ok());
  EXPECT_EQ(asked_.size(), asked);
  wall_s_ += 2;
  replies_.clear();  // They cannot be renewed now; the old ones serve, and are not asked for again.
  ASSERT_TRUE(identity.Credentials(Send()).ok());
  EXPECT_GT(asked_.size(), asked);
  const size_t once = asked_.size();
  ASSERT_TRUE(identity.Credentials(Send()).ok());
  EXPECT_EQ(asked_.size(), once);
  wall_s_ += kRenewAhead_s;
  EXPECT_FALSE(identity.Credentials(Send()).ok());
  HasInstanceRole();
  EXPECT_TRUE(identity.Credentials(Send()).ok());
}

TEST_F(AwsChainTest, ARegionIsAWord) {
  AwsIdentity identity(Chain({"", "us-east-1.evil.net/#", ""}));
  EXPECT_THAT(identity.Region(Send()).error().message, HasSubstr("see ec2.region"));
}

TEST(AwsQueryTest, FormsAndTimes) {
  EXPECT_EQ(FormBody({{"A", "a b&c=d/\xC3\xA9~"}, {"B", ""}}), "A=a%20b%26c%3Dd%2F%C3%A9~&B=");
  EXPECT_EQ(EncodeBase64(""), "");
  EXPECT_EQ(EncodeBase64("f"), "Zg==");
  EXPECT_EQ(EncodeBase64("fo"), "Zm8=");
  EXPECT_EQ(EncodeBase64("\xff\xfe\xfd"), "//79");
  EXPECT_EQ(ParseCloudTime("2026-01-02T03:04:05.123Z"), kNow_s);
  EXPECT_EQ(ParseCloudTime("2026-01-02T04:34:05+01:30"), kNow_s);
  EXPECT_EQ(ParseCloudTime("2026-01-02T03:04:05+xx:30"), std::nullopt);
  EXPECT_EQ(ParseCloudTime("tomorrow"), std::nullopt);
  EXPECT_EQ(Printable("a\n\n b\x01", 10), "a b");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace troupe::ec2
