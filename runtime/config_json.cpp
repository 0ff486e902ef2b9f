// Parts of a file that are passed on as JSON, whatever they say.
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/config.h"
#include "runtime/internal/config_node.h"

namespace troupe {
namespace {

std::string JsonText(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += std::string("\\") + c;
    } else if (byte < 0x20) {
      json += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
    } else {
      json += c;
    }
  }
  return json + "\"";
}

// Empty: it is none. Of "0o17" or "017", "0x1f", "-12".
std::string WholeNumber(std::string_view word) {
  const bool negative = word.starts_with('-');
  std::string_view digits = negative || word.starts_with('+') ? word.substr(1) : word;
  int base = 10;
  if (digits.starts_with("0x")) base = 16;
  if (digits.starts_with("0o") || (digits.size() > 1 && digits[0] == '0' && base == 10)) base = 8;
  if (digits.starts_with("0x") || digits.starts_with("0o")) digits.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return "";
  return (negative ? "-" : "") + std::to_string(value);
}

}  // namespace

std::string internal::JsonOfWord(std::string_view word, bool quoted) {
  if (quoted) return JsonText(word);
  for (const std::string_view none : {"", "~", "null", "Null", "NULL"}) {
    if (word == none) return "null";
  }
  for (const std::string_view yes : {"true", "True", "TRUE"}) {
    if (word == yes) return "true";
  }
  for (const std::string_view no : {"false", "False", "FALSE"}) {
    if (word == no) return "false";
  }
  if (std::string number = WholeNumber(word); !number.empty()) return number;
  double value = 0;
  const std::string_view digits = word.starts_with('-') ? word.substr(1) : word;
  const bool begins = !digits.empty() && digits[0] >= '0' && digits[0] <= '9';
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  const bool number = begins && digits.back() != '.' && error == std::errc() &&
                      end == word.data() + word.size() && std::isfinite(value);
  // "017" with other digits, such as a date's, is a text.
  const bool leads = digits.size() > 1 && digits[0] == '0' && digits[1] != '.' && digits[1] != 'e';
  return number && !leads ? std::string(word) : JsonText(word);
}

// NOLINTNEXTLINE(misc-no-recursion): no deeper than kConfigDepthMax.
std::string ConfigMap::JsonOf(const Node& node) {
  std::string json;
  switch (node.kind) {
    case Node::Kind::kScalar:
      return internal::JsonOfWord(node.scalar, node.quoted);
    case Node::Kind::kList:
      for (const Node& item : node.list) json += (json.empty() ? "" : ",") + JsonOf(item);
      return "[" + json + "]";
    case Node::Kind::kMap:
      for (const Node::Entry& entry : node.entries) {
        json += (json.empty() ? "" : ",") + internal::JsonOfWord(entry.key, true) + ":" +
                JsonOf(entry.value);
      }
      return "{" + json + "}";
    default:
      return "null";
  }
}

std::string ConfigMap::Json(std::string_view key, std::string_view type) const {
  if (key.empty()) {
    (void)Keys();
    return JsonOf(*node_);
  }
  ConfigKey asked;
  asked.type = type;
  Record(key, std::move(asked));
  const Node* node = Find(key, false);
  return node == nullptr ? "" : JsonOf(*node);
}

void ConfigMap::FailInside(std::string_view key, const std::vector<std::string>& inside,
                           std::string_view what) const {
  const Node* node = key.empty() ? node_ : Find(key, false);
  std::string path = key.empty() ? path_ : PathOf(key);
  for (const std::string& step : inside) {
    const Node* next = nullptr;
    if (node != nullptr && node->kind == Node::Kind::kList) {
      path += "[" + step + "]";
      for (size_t i = 0; i < node->list.size(); ++i) {
        if (std::to_string(i) == step) next = &node->list[i];
      }
    } else {
      path = Join(path, step);
      for (size_t i = 0; node != nullptr && i < node->entries.size(); ++i) {
        if (node->entries[i].key == step) next = &node->entries[i].value;
      }
    }
    if (next == nullptr) break;
    node = next;
  }
  Report(node != nullptr ? *node : *node_, path, what);
}

}  // namespace troupe
