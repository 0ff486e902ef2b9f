#include "autoscaler/gce/gce_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <nlohmann/json.hpp>

#include "autoscaler/cloud_text.h"
#include "autoscaler/gce/gce_jwt.h"
#include "tests/unit/autoscaler/gce/fake_gce.h"

namespace troupe::gce {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using tests::FakeGce;
using tests::FakeWorld;
using tests::Says;
using TestJson = nlohmann::json;

std::string FromUrlBase64(std::string text) {
  for (char& c : text) c = c == '-' ? '+' : c == '_' ? '/' : c;
  text.append((4 - text.size() % 4) % 4, '=');
  return DecodeBase64(text).value();
}

// An RSA key of our own.
struct Key {
  EVP_PKEY* const key = EVP_RSA_gen(2048);
  ~Key() { EVP_PKEY_free(key); }
  [[nodiscard]] std::string Pem() const {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    char* data = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(bio, &data));
    std::string pem(data, size);
    BIO_free(bio);
    return pem;
  }
  [[nodiscard]] bool HasSigned(const std::string& text, const std::string& signature) const {
    EVP_MD_CTX* const context = EVP_MD_CTX_new();
    EVP_DigestVerifyInit(context, nullptr, EVP_sha256(), nullptr, key);
    const bool good =
        EVP_DigestVerify(context, reinterpret_cast<const unsigned char*>(signature.data()),
                         signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                         text.size()) == 1;
    EVP_MD_CTX_free(context);
    return good;
  }
};

class GceIdentityTest : public ::testing::Test {
 protected:
  Result<GceSession> Session(GceIdentity& identity) { return identity.Session(google_.Send()); }
  std::string Told(const GceChoice& choice = {}) {
    GceIdentity identity(world_.World(), choice);
    const Result<GceSession> session = Session(identity);
    return session.ok() ? session->token + " of " + session->project + " by " + session->source
                        : session.error().message;
  }
  void Credentials(const std::string& text) {
    world_.variables["GOOGLE_APPLICATION_CREDENTIALS"] = "/c.json";
    world_.files["/c.json"] = text;
  }

  FakeWorld world_;
  FakeGce google_;
};

TEST_F(GceIdentityTest, AServiceAccountSignsWhatItClaims) {
  const Key key;
  Credentials(TestJson{
      {"type", "service_account"},
      {"client_email", "me@p.example"},
      {"private_key", key.Pem()},
      {"private_key_id", "k1"},
      {"token_uri", "https://o/token"},
      {"project_id",
       "p"}}.dump());
  google_.Answers("o/token", {Says(R"({"access_token": "t", "expires_in": 3600})")});
  EXPECT_EQ(Told(), "t of p by /c.json");
  const std::string& body = google_.requests.at(0).body;
  EXPECT_THAT(body, HasSubstr("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer"));
  const std::string jwt = body.substr(body.find("assertion=") + 10);
  const size_t second = jwt.rfind('.');
  const size_t first = jwt.find('.');
  EXPECT_TRUE(key.HasSigned(jwt.substr(0, second), FromUrlBase64(jwt.substr(second + 1))));
  EXPECT_EQ(TestJson::parse(FromUrlBase64(jwt.substr(0, first))),
            (TestJson{{"alg", "RS256"}, {"typ", "JWT"}, {"kid", "k1"}}));
  const TestJson claims = TestJson::parse(FromUrlBase64(jwt.substr(first + 1, second - first - 1)));
  EXPECT_EQ(claims, (TestJson{{"iss", "me@p.example"},
                              {"aud", "https://o/token"},
                              {"scope", kGceScope},
                              {"iat", 1000},
                              {"exp", 4600}}));
}

TEST_F(GceIdentityTest, AKeyThatIsNoneIsToldWithoutAWordOfIt) {
  for (const char* bad : {"secret", "-----BEGIN PRIVATE KEY-----\nAAAA\n", ""}) {
    Credentials(
        TestJson{{"type", "service_account"}, {"client_email", "e"}, {"private_key", bad}}.dump());
    EXPECT_THAT(Told(), AllOf(HasSubstr("credentials /c.json: its private_key is no RSA key"),
                              Not(HasSubstr("secret"))));
  }
  EXPECT_TRUE(google_.requests.empty());
}

TEST_F(GceIdentityTest, AUserRefreshes) {
  Credentials(tests::kUser);
  google_.Answers("o/token", {Says(R"({"access_token": "t"})")});
  EXPECT_EQ(Told(), "t of p1 by /c.json");
  EXPECT_EQ(google_.requests[0].body,
            "grant_type=refresh_token&client_id=c&client_secret=s&refresh_token=r");
  EXPECT_EQ(Told({"", "mine", ""}), "t of mine by /c.json");
  world_.variables["GOOGLE_CLOUD_PROJECT"] = "of-variable";
  EXPECT_EQ(Told(), "t of of-variable by /c.json");
}

TEST_F(GceIdentityTest, ATokenIsKeptUntilItExpiresOrIsRefused) {
  Credentials(tests::kUser);
  google_.Answers("o/token", {Says(R"({"access_token": "t1", "expires_in": 1000})"),
                              Says(R"({"access_token": "t2", "expires_in": 1000})"),
                              Says("{}", 503), Says(R"({"access_token": "t3"})")});
  GceIdentity identity(world_.World(), {});
  EXPECT_EQ(Session(identity)->token, "t1");
  EXPECT_EQ(Session(identity)->token, "t1");
  world_.wall_s += 701;
  EXPECT_EQ(Session(identity)->token, "t2");
  world_.wall_s += 701;
  EXPECT_EQ(Session(identity)->token, "t2");  // It is good still, and Google hiccups.
  identity.Forget("t1");
  identity.Forget("t2");
  EXPECT_EQ(Session(identity)->token, "t3");
  EXPECT_THAT(google_.requests, SizeIs(4));
}

TEST_F(GceIdentityTest, WhoHasATokenOfAnotherCloudExchangesIt) {
  world_.files["/subject"] = "{\"token\": \"theirs\"}";
  const TestJson account = {
      {"type", "external_account"},
      {"audience", "//iam/pool"},
      {"subject_token_type", "urn:ietf:params:oauth:token-type:jwt"},
      {"token_url", "https://sts/v1/token"},
      {"service_account_impersonation_url", "https://iam/me:generateAccessToken"},
      {"credential_source",
       {{"file", "/subject"},
        {"format", {{"type", "json"}, {"subject_token_field_name", "token"}}}}}};
  Credentials(account.dump());
  google_.Answers("sts/v1", {Says(R"({"access_token": "exchanged", "expires_in": 60})")});
  google_.Answers("iam/me",
                  {Says(R"({"accessToken": "t", "expireTime": "2026-01-02T03:04:05Z"})")});
  EXPECT_EQ(Told({"", "p", ""}), "t of p by /c.json");
  EXPECT_THAT(google_.requests[0].body, HasSubstr("subject_token=theirs"));
  EXPECT_EQ(google_.Bearer(1), "Bearer exchanged");
  EXPECT_THAT(google_.requests[1].body, HasSubstr(kGceScope));
  TestJson asked = account;  // Of a program that answers over HTTP.
  asked["credential_source"] = {{"url", "http://agent/t"}, {"headers", {{"X-A", "b"}}}};
  Credentials(asked.dump());
  google_.Answers("agent/t", {Says("plain\n")});
  EXPECT_EQ(Told({"", "p", ""}), "t of p by /c.json");
  EXPECT_THAT(google_.requests[3].body, HasSubstr("subject_token=plain"));
  asked["credential_source"] = TestJson::object();
  Credentials(asked.dump());
  EXPECT_THAT(Told({"", "p", ""}), HasSubstr("credential_source: it has neither file nor url"));
}

TEST_F(GceIdentityTest, AUserMayActAsAServiceAccount) {
  Credentials(TestJson{{"type", "impersonated_service_account"},
                       {"service_account_impersonation_url", "https://iam/sa:generateAccessToken"},
                       {"delegates", {"d"}},
                       {"source_credentials", TestJson::parse(tests::kUser)}}
                  .dump());
  google_.Answers("o/token", {Says(R"({"access_token": "mine"})")});
  google_.Answers("iam/sa", {Says(R"({"accessToken": "t"})")});
  EXPECT_EQ(Told({"", "p", ""}), "t of p by /c.json");
  EXPECT_EQ(google_.Bearer(1), "Bearer mine");
  EXPECT_THAT(google_.requests[1].body, HasSubstr(R"("delegates":["d"])"));
}

TEST_F(GceIdentityTest, WithoutAFileTheMetadataServerIsAsked) {
  world_.variables["GCE_METADATA_HOST"] = "meta";
  google_.Answers("default/token", {Says(R"({"access_token": "t", "expires_in": 3600})")});
  google_.Answers("project-id", {Says("of-meta")});
  EXPECT_EQ(Told(), "t of of-meta by the service account of this instance");
  EXPECT_EQ(google_.requests[0].url,
            "http://meta/computeMetadata/v1/instance/service-accounts/default/token");
  world_.variables["CLOUDSDK_CONFIG"] = "/g";
  world_.files["/g/application_default_credentials.json"] = tests::kUser;
  google_.Answers("o/token", {Says(R"({"access_token": "u"})")});
  EXPECT_THAT(Told(), HasSubstr("u of p1 by /g/application_default"));
}

TEST_F(GceIdentityTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(Told(), AllOf(HasSubstr("no credentials for Google"), HasSubstr("gcloud auth"),
                            HasSubstr("nobody is there")));
  world_.variables["GCE_METADATA_HOST"] = "meta";
  google_.Answers("meta/", {HttpReply{200, {}, "<html>a hotel's page</html>"}});
  EXPECT_THAT(Told(), HasSubstr("meta has no instance/service-accounts"));  // No header.
  EXPECT_THAT(Told({"/gone", "", ""}), HasSubstr("credentials cannot be read: /gone"));
  Credentials("{");
  EXPECT_THAT(Told(), HasSubstr("credentials /c.json: it is no JSON object"));
  Credentials(R"({"type": "gdch"})");
  EXPECT_THAT(Told(), HasSubstr("its type is \"gdch\", not service_account"));
  Credentials(R"({"type": "authorized_user", "client_id": "c"})");
  EXPECT_THAT(Told(), HasSubstr("it has no client_secret"));
  Credentials(tests::kUser);
  google_.Answers(
      "o/token",
      {Says(R"({"error": "invalid_grant", "error_description": "Token revoked"})", 400)});
  EXPECT_THAT(Told(), HasSubstr("https://o/token: invalid_grant: Token revoked"));
}

}  // namespace
}  // namespace troupe::gce
