#include "autoscaler/kubernetes/kube_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "autoscaler/cloud_text.h"
#include "autoscaler/kubernetes/kube_identity.h"

namespace troupe::kubernetes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kConfig = R"(
apiVersion: v1
kind: Config
current-context: dev
contexts:
- {name: dev, context: {cluster: here, user: me, namespace: team}}
- {name: bare, context: {cluster: here}}
- {name: lost, context: {cluster: nowhere, user: me}}
clusters:
- name: here
  cluster:
    server: https://10.0.0.1:6443/
    certificate-authority: ca.crt
    tls-server-name: api
    proxy-url: http://proxy:1
users:
- {name: me, user: {token: secret, client-key-data: a2V5, client-certificate: /etc/me.crt}}
)";

Result<KubeContext> Read(const std::string& text, const std::string& context = "") {
  return ReadKubeconfig({{"/home/me/config", text}}, context);
}

TEST(KubeConfigTest, AContextHasItsClusterAndItsUser) {
  const Result<KubeContext> read = Read(kConfig);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->source, "context dev of /home/me/config");
  EXPECT_EQ(read->server, "https://10.0.0.1:6443");
  EXPECT_EQ(read->kube_namespace, "team");
  EXPECT_EQ(read->ca_file, "/home/me/ca.crt");  // From the kubeconfig's folder on.
  EXPECT_EQ(read->tls_server_name, "api");
  EXPECT_EQ(read->proxy, "http://proxy:1");
  EXPECT_EQ(read->token, "secret");
  EXPECT_EQ(read->key, "key");
  EXPECT_EQ(read->certificate_file, "/etc/me.crt");
  const Result<KubeContext> bare = Read(kConfig, "bare");
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->token, "");
}

TEST(KubeConfigTest, OfSeveralFilesTheFirstCounts) {
  const Result<KubeContext> read = ReadKubeconfig(
      {{"/a",
        "contexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {token: first}}]\n"},
       {"/b",
        "current-context: x\nusers: [{name: u, user: {token: second}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://s', insecure-skip-tls-verify: true}}]"
        "\n"}},
      "");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->token, "first");
  EXPECT_EQ(read->server, "https://s");
  EXPECT_TRUE(read->insecure);
}

TEST(KubeConfigTest, WhatIsMissingIsNamed) {
  EXPECT_EQ(Read("{}").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(Read(kConfig, "prod").error().message,
              HasSubstr("no context is called prod; there are: bare, dev, lost"));
  EXPECT_THAT(Read(kConfig, "lost").error().message,
              HasSubstr("context lost is of cluster \"nowhere\"; there are: here"));
  EXPECT_THAT(Read("a: [").error().message, HasSubstr("/home/me/config:1:"));
  std::string old = kConfig;
  old.replace(old.find("token: secret"), 13, "auth-provider: {name: gcp}");
  EXPECT_THAT(Read(old).error().message, HasSubstr("use exec"));
  std::string wrong = kConfig;
  wrong.replace(wrong.find("a2V5"), 4, "a2V%");
  EXPECT_THAT(Read(wrong).error().message, HasSubstr("client-key-data is no base64"));
}

constexpr const char* kExec = R"(
current-context: dev
contexts: [{name: dev, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: 'https://s', certificate-authority-data: cGVt}}]
users:
- name: me
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./plugin
      args: [get, 7]
      env: [{name: A, value: b}]
      provideClusterInfo: true
      installHint: get it there
)";

TEST(KubeConfigTest, APluginIsReadWhole) {
  const Result<KubeContext> read = Read(kExec);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_TRUE(read->exec);
  EXPECT_EQ(read->exec->command, "/home/me/./plugin");
  EXPECT_THAT(read->exec->args, ElementsAre("get", "7"));
  EXPECT_EQ(read->exec->env.at("A"), "b");
  EXPECT_THAT(read->exec->info, HasSubstr(R"("certificate-authority-data":"cGVt")"));
  std::string alpha = kExec;
  alpha.replace(alpha.find("k8s.io/v1"), 9, "k8s.io/v1alpha1");
  EXPECT_THAT(Read(alpha).error().message, HasSubstr("v1 and v1beta1"));
}

TEST(KubeConfigTest, WhatAPluginPrints) {
  const std::string version = "client.authentication.k8s.io/v1";
  const std::string begin = R"({"kind": "ExecCredential", "apiVersion": ")" + version + R"(", )";
  const auto answer = ReadPluginAnswer(
      begin + R"("status": {"token": "t", "expirationTimestamp": "1970-01-01T01:00:10+01:00"}})",
      version);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->token, "t");
  EXPECT_EQ(answer->expires_s, 10);
  EXPECT_FALSE(ReadPluginAnswer("secret", version).ok());
  EXPECT_THAT(ReadPluginAnswer("secret", version).error().message,
              testing::Not(HasSubstr("secret")));
  EXPECT_FALSE(ReadPluginAnswer(begin + R"("status": {}})", version).ok());
  EXPECT_FALSE(ReadPluginAnswer(begin + R"("status": {"token": "t"}})", "other/v1").ok());
}

TEST(CloudTextTest, Base64BothWays) {
  for (const std::string& text :
       std::vector<std::string>{"", "a", "ab", "abc", "abcd", std::string("\0\xff\n", 3)}) {
    const Result<std::string> back = DecodeBase64(EncodeBase64(text));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, text);
  }
  for (const char* text : {"a", "a===", "ab=c", "a*bc"})
    EXPECT_FALSE(DecodeBase64(text).ok()) << text;
}

// A world of variables and files.
class KubeIdentityTest : public ::testing::Test {
 protected:
  KubeIdentity Identity(KubeChoice choice = {}) {
    KubeWorld world;
    world.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    world.read = [this](const std::string& path) -> std::optional<std::string> {
      const auto found = files_.find(path);
      return found == files_.end() ? std::nullopt : std::optional(found->second);
    };
    world.run = [this](const ExecCommand& command) -> Result<std::string> {
      ran_.push_back(command);
      if (printed_.empty()) return Error{ErrorCode::kNotFound, "it cannot be run"};
      return printed_;
    };
    world.wall_s = [this] { return now_s_; };
    return {std::move(world), std::move(choice)};
  }
  static std::string Printed(const std::string& token, const std::string& expires) {
    return R"({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", )"
           R"("status": {"token": ")" +
           token + R"(", "expirationTimestamp": ")" + expires + R"("}})";
  }
  std::map<std::string, std::string> variables_;
  std::map<std::string, std::string> files_;
  std::vector<ExecCommand> ran_;
  std::string printed_;
  int64_t now_s_ = 0;
};

TEST_F(KubeIdentityTest, WhereNothingIsItSaysWhereItLooked) {
  EXPECT_THAT(Identity().Session().error().message,
              HasSubstr("neither KUBECONFIG nor HOME is set, and this is no pod"));
  variables_["HOME"] = "/home/me";
  EXPECT_THAT(Identity().Session().error().message,
              HasSubstr("KUBECONFIG is not set, and there is no /home/me/.kube/config"));
  variables_["KUBECONFIG"] = "/x:/y";
  EXPECT_THAT(Identity().Session().error().message,
              HasSubstr("KUBECONFIG is /x:/y, which cannot be read"));
  KubeChoice choice;
  choice.kubeconfig = "/z";
  EXPECT_THAT(Identity(choice).Session().error().message,
              HasSubstr("kubernetes.kubeconfig is /z, which cannot be read"));
  variables_.clear();
  variables_["KUBERNETES_SERVICE_HOST"] = "10.0.0.1";
  EXPECT_THAT(Identity().Session().error().message, HasSubstr("automountServiceAccountToken"));
}

TEST_F(KubeIdentityTest, AServiceAccountIsReadAgain) {
  const std::string folder = "/var/run/secrets/kubernetes.io/serviceaccount/";
  variables_ = {{"KUBERNETES_SERVICE_HOST", "fd00::1"}, {"KUBERNETES_SERVICE_PORT", "443"}};
  files_ = {{folder + "token", "one\n"}, {folder + "ca.crt", "pem"}, {folder + "namespace", "n"}};
  KubeIdentity identity = Identity();
  Result<KubeSession> session = identity.Session();
  ASSERT_TRUE(session.ok()) << session.error().message;
  EXPECT_EQ(session->server, "https://[fd00::1]:443");
  EXPECT_EQ(session->token, "one");
  EXPECT_EQ(session->tls.ca, "pem");
  EXPECT_EQ(session->kube_namespace, "n");
  files_[folder + "token"] = "two";
  EXPECT_EQ(identity.Session()->token, "two");
  files_.erase(folder + "ca.crt");
  EXPECT_THAT(identity.Session().error().message,
              HasSubstr("its certificate-authority cannot be read: " + folder + "ca.crt"));
}

TEST_F(KubeIdentityTest, APluginIsAskedWhenItsAnswerExpiresOrIsRefused) {
  variables_["KUBECONFIG"] = "/home/me/config";
  files_["/home/me/config"] = kExec;
  printed_ = Printed("one", "1970-01-01T00:10:00Z");
  KubeIdentity identity = Identity();
  ASSERT_TRUE(identity.Session().ok()) << identity.Session().error().message;
  EXPECT_EQ(identity.Session()->token, "one");
  ASSERT_EQ(ran_.size(), 1U);
  EXPECT_THAT(ran_[0].argv, ElementsAre("/home/me/./plugin", "get", "7"));
  EXPECT_EQ(ran_[0].env.at("A"), "b");
  EXPECT_THAT(ran_[0].env.at("KUBERNETES_EXEC_INFO"), HasSubstr("ExecCredential"));
  now_s_ = 541;  // Within a minute of its end.
  printed_.clear();
  EXPECT_EQ(identity.Session()->token, "one");  // The old one serves as long as it is good.
  printed_ = Printed("two", "1970-01-01T01:00:00Z");
  EXPECT_EQ(identity.Session()->token, "two");
  printed_ = Printed("three", "1970-01-01T02:00:00Z");
  KubeSession other = *identity.Session();
  EXPECT_EQ(other.token, "two");
  identity.Forget(other);
  EXPECT_EQ(identity.Session()->token, "three");
  identity.Forget(other);  // Somebody was late.
  printed_.clear();
  EXPECT_EQ(identity.Session()->token, "three");
  now_s_ = 7200;
  EXPECT_THAT(identity.Session().error().message,
              HasSubstr("the plugin /home/me/./plugin: it cannot be run; get it there"));
}

}  // namespace
}  // namespace troupe::kubernetes
