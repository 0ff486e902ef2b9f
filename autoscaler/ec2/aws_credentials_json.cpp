#include "autoscaler/ec2/aws_credentials_json.h"

#include <nlohmann/json.hpp>

#include "autoscaler/cloud_text.h"

namespace troupe::ec2 {
namespace {

std::string WordOf(const nlohmann::json& document, const char* key) {
  const auto found = document.find(key);
  return found != document.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Result<AwsCredentials> ParseCredentialsJson(std::string_view text) {
  constexpr size_t kTextMax = 64 << 10;
  const auto corrupt = [](const std::string& why) {
    return Error{ErrorCode::kCorrupt, "the credentials cannot be read: " + why};
  };
  if (text.size() > kTextMax) return corrupt("they are too long");
  const auto document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return corrupt("they are no JSON object");
  if (const std::string code = WordOf(document, "Code"); !code.empty() && code != "Success")
    return corrupt("it says " + Printable(code, 60));
  AwsCredentials credentials;
  credentials.key_id = WordOf(document, "AccessKeyId");
  credentials.secret = WordOf(document, "SecretAccessKey");
  credentials.token = WordOf(document, "SessionToken");
  if (credentials.token.empty()) credentials.token = WordOf(document, "Token");
  if (credentials.key_id.empty() || credentials.secret.empty())
    return corrupt("AccessKeyId or SecretAccessKey is missing");
  if (const std::string expires = WordOf(document, "Expiration"); !expires.empty()) {
    credentials.expires_s = ParseCloudTime(expires);
    if (!credentials.expires_s) return corrupt("Expiration is no time");
  }
  return credentials;
}

}  // namespace troupe::ec2
