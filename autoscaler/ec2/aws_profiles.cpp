#include "autoscaler/ec2/aws_profiles.h"

#include <algorithm>
#include <optional>

namespace troupe::ec2 {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view Trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(kBlank);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(kBlank) + 1 - from);
}

std::string_view Unquoted(std::string_view name) {
  const bool quoted = name.size() >= 2 && (name.front() == '"' || name.front() == '\'') &&
                      name.front() == name.back();
  return quoted ? name.substr(1, name.size() - 2) : name;
}

// None: the section is no profile.
std::optional<std::string> ProfileOf(std::string_view section, bool config) {
  section = Trimmed(section);
  constexpr std::string_view kWord = "profile";
  if (!config || section == "default") return std::string(Unquoted(section));
  if (!section.starts_with(kWord)) return std::nullopt;
  const std::string_view rest = section.substr(kWord.size());
  if (rest.empty() || kBlank.find(rest.front()) == std::string_view::npos) return std::nullopt;
  return std::string(Unquoted(Trimmed(rest)));
}

}  // namespace

AwsProfiles ParseAwsProfiles(std::string_view text, bool config) {
  AwsProfiles profiles;
  std::optional<std::string> current;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view whole = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    const std::string_view line = Trimmed(whole);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const size_t close = line.find(']');
      current = close == std::string_view::npos ? std::nullopt
                                                : ProfileOf(line.substr(1, close - 1), config);
      if (current) profiles[*current];
      continue;
    }
    const size_t mark = line.find('=');
    if (!current || mark == std::string_view::npos || whole.front() == ' ' || whole.front() == '\t')
      continue;
    std::string key(Trimmed(line.substr(0, mark)));
    std::ranges::transform(key, key.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
    profiles[*current][key] = Trimmed(line.substr(mark + 1));
  }
  return profiles;
}

}  // namespace troupe::ec2
