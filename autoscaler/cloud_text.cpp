#include "autoscaler/cloud_text.h"

#include <charconv>

#include "autoscaler/notices/notice.h"

namespace troupe {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

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

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '~';
}

void AppendEncoded(std::string& to, std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : text) {
    if (IsUnreserved(c)) {
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

std::string EncodeBase64(std::string_view bytes) {
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

Result<std::string> DecodeBase64(std::string_view text) {
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  size_t padding = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == ' ') continue;
    padding += c == '=' ? 1 : 0;
    if (c == '=') continue;
    const size_t value = kDigits.find(c);
    if (value == std::string_view::npos || padding > 0)
      return Error{ErrorCode::kCorrupt, "no base64"};
    held = (held << 6) | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>((held >> bits) & 0xff);
  }
  if (padding > 2 || bits >= 6) return Error{ErrorCode::kCorrupt, "no base64"};
  return bytes;
}

std::optional<int64_t> ParseCloudTime(std::string_view text) {
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

std::string FormBody(const std::vector<std::pair<std::string, std::string>>& parameters) {
  std::string body;
  for (const auto& [name, value] : parameters) {
    if (!body.empty()) body += '&';
    AppendEncoded(body, name);
    body += '=';
    AppendEncoded(body, value);
  }
  return body;
}

std::string HexHash(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a.
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * uint64_t{0x100000001b3ULL};
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += kHex[(hash >> shift) & 15];
  return digits;
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

std::string LastOf(std::string_view printed, size_t most) {
  std::string line = Printable(printed, printed.size());
  if (line.size() <= most) return line;
  size_t from = line.size() - most;
  while (from < line.size() && (static_cast<unsigned char>(line[from]) & 0xc0) == 0x80) ++from;
  return "..." + line.substr(from);
}

}  // namespace troupe
