#include "daemons/protocol/join.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace troupe::daemons {
namespace {

constexpr std::string_view kTokenPrefix = "troupe-join-";
constexpr size_t kZ85Bytes = 40;  // Of a key.
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
constexpr std::string_view kHex = "0123456789abcdef";

// What Z85 says, in hexadecimal digits; nothing if it is none.
std::optional<std::string> HexOfZ85(std::string_view text) {
  std::string hex;
  for (size_t at = 0; at < text.size(); at += 5) {
    uint64_t word = 0;
    for (const char c : text.substr(at, 5)) {
      const size_t digit = kZ85.find(c);
      if (digit == std::string_view::npos) return std::nullopt;
      word = word * 85 + digit;
    }
    for (int shift = 28; shift >= 0; shift -= 4) hex += kHex[(word >> shift) & 15];
  }
  return hex;
}

std::optional<std::string> Z85OfHex(std::string_view hex) {
  std::string text;
  for (size_t at = 0; at < hex.size(); at += 8) {
    uint64_t word = 0;
    for (const char c : hex.substr(at, 8)) {
      const size_t digit = kHex.find(c);
      if (digit == std::string_view::npos) return std::nullopt;
      word = word * 16 + digit;
    }
    std::array<char, 5> digits{};
    for (size_t i = digits.size(); i-- > 0; word /= 85) digits[i] = kZ85[word % 85];
    text.append(digits.data(), digits.size());
  }
  return text;
}

}  // namespace

std::string JoinPlaceJson(const JoinPlace& place) {
  return nlohmann::json{{"head_key", place.head_key}, {"listens", place.listens}}.dump();
}

Result<JoinPlace> ParseJoinPlace(const std::string& json) {
  const auto value = nlohmann::json::parse(json, nullptr, false);
  const bool good = value.is_object() && value.contains("head_key") && value.contains("listens") &&
                    value["head_key"].is_string() && value["listens"].is_string();
  if (!good) return Error{ErrorCode::kCorrupt, "the head's answer makes no sense"};
  return JoinPlace{value["head_key"], value["listens"]};
}

std::string JoinTokenText(const JoinToken& token) {
  return std::string(kTokenPrefix) + HexOfZ85(token.head_key).value_or("") +
         HexOfZ85(token.guest.secret_key).value_or("");
}

Result<JoinToken> ParseJoinToken(std::string_view text) {
  const Error wrong{ErrorCode::kInvalidArgument,
                    "this is no join token; `troupe token` on a host of the cluster makes one"};
  constexpr size_t kKeyHex = kZ85Bytes / 5 * 8;
  if (!text.starts_with(kTokenPrefix) || text.size() != kTokenPrefix.size() + 2 * kKeyHex)
    return wrong;
  text.remove_prefix(kTokenPrefix.size());
  const std::optional<std::string> head = Z85OfHex(text.substr(0, kKeyHex));
  const std::optional<std::string> secret = Z85OfHex(text.substr(kKeyHex));
  if (!head || !secret) return wrong;
  const Result<CurveKeys> guest = CurveKeysOf(*secret);
  if (!guest.ok()) return wrong;
  return JoinToken{*guest, *head};
}

}  // namespace troupe::daemons
