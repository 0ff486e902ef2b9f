#include "autoscaler/ec2/aws_query.h"

#include <charconv>

#include "autoscaler/notices/notice.h"

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

// Seconds of "+01:30".
std::optional<int64_t> OffsetOf(std::string_view text) {
  if (text.size() != 6 || text[3] != ':') return std::nullopt;
  int hours = 0;
  int minutes = 0;
  if (std::from_chars(text.data() + 1, text.data() + 3, hours).ptr != text.data() + 3 ||
      std::from_chars(text.data() + 4, text.data() + 6, minutes).ptr != text.data() + 6)
    return std::nullopt;
  return (hours * 3600 + minutes * 60) * (text[0] == '-' ? -1 : 1);
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

std::string Base64(std::string_view bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = bytes.size() - i;
    uint32_t group = static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << 16;
    if (left > 1) group |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i + 1])) << 8;
    if (left > 2) group |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i + 2]));
    text += kDigits[group >> 18];
    text += kDigits[(group >> 12) & 63];
    text += left > 1 ? kDigits[(group >> 6) & 63] : '=';
    text += left > 2 ? kDigits[group & 63] : '=';
  }
  return text;
}

std::optional<int64_t> ParseAwsTime(std::string_view text) {
  constexpr size_t kOffset = 6;
  constexpr size_t kSeconds = 19;  // "2026-01-02T03:04:05".
  const char sign = text.size() >= kSeconds + kOffset ? text[text.size() - kOffset] : ' ';
  if (sign != '+' && sign != '-') return notices::ParseIsoTime(text);
  const auto offset = OffsetOf(text.substr(text.size() - kOffset));
  const auto local =
      notices::ParseIsoTime(std::string(text.substr(0, text.size() - kOffset)) + "Z");
  if (!offset || !local) return std::nullopt;
  return *local - *offset;
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

std::string Printable(std::string_view text, size_t most) {
  std::string word;
  for (const char c : text) {
    if (word.size() >= most) return word + "...";
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
    if (!blank) {
      word += c;
    } else if (!word.empty() && word.back() != ' ') {
      word += ' ';
    }
  }
  while (!word.empty() && word.back() == ' ') word.pop_back();
  return word;
}

}  // namespace troupe::ec2
