#include "autoscaler/ec2/aws_query.h"

namespace troupe::ec2 {
namespace {

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '~';
}

void AppendEncoded(std::string& to, std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : text) {
    if (IsPlain(c)) {
      to += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    to += '%';
    to += kHex[byte >> 4];
    to += kHex[byte & 15];
  }
}

}  // namespace

std::string FormBody(const AwsParameters& parameters) {
  std::string body;
  for (const auto& [name, value] : parameters) {
    if (!body.empty()) body += '&';
    AppendEncoded(body, name);
    body += '=';
    AppendEncoded(body, value);
  }
  return body;
}

HttpRequest SignedPost(const std::string& url, const std::string& service,
                       const std::string& region, const AwsCredentials& credentials,
                       const AwsParameters& parameters) {
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
  if (!credentials.token.empty())
    request.headers.emplace_back("X-Amz-Security-Token", credentials.token);
  request.body = FormBody(parameters);
  request.aws = AwsSigning{region, service, credentials.key_id, credentials.secret};
  return request;
}

}  // namespace troupe::ec2
