#include "actors/core/waiting_notes.h"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsOfWord(char c) { return IsDigit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '.'; }

// The reason with one sign for each number and each id: words with a digit in them.
std::string WithoutNumbers(const std::string& reason) {
  std::string kind;
  for (size_t at = 0; at < reason.size();) {
    size_t end = at;
    while (end < reason.size() && IsOfWord(reason[end])) ++end;
    const std::string word = reason.substr(at, end - at);
    kind += std::ranges::any_of(word, IsDigit) ? "#" : word;
    if (end < reason.size()) kind += reason[end];
    at = end + 1;
  }
  return kind;
}

struct Line {
  std::string first;  // Of those that wait.
  std::string reason;
  size_t count = 0;
  Duration longest = Duration::zero();
};

}  // namespace

std::vector<std::string> WaitingNotes::Update(Time now,
                                              const std::map<std::string, std::string>& waiting) {
  std::erase_if(since_, [&](const auto& entry) { return !waiting.contains(entry.first); });
  std::map<std::string, Line> due;
  std::set<std::string> kinds;
  for (const auto& [what, reason] : waiting) {
    if (since_.size() >= kNotesMax && !since_.contains(what)) continue;
    const Duration waited = now - since_.try_emplace(what, now).first->second;
    const std::string kind = WithoutNumbers(reason);
    kinds.insert(kind);
    if (waited < kTellAfter || told_.contains(kind)) continue;
    Line& line = due[kind];
    if (line.count++ == 0) {
      line.first = what;
      line.reason = reason;
    }
    line.longest = std::max(line.longest, waited);
  }
  std::erase_if(told_, [&](const std::string& kind) { return !kinds.contains(kind); });
  std::vector<std::string> lines;
  for (const auto& [kind, line] : due) {
    told_.insert(kind);
    const std::string others =
        line.count == 1   ? " has waited"
        : line.count == 2 ? " and another one have waited"
                          : " and " + std::to_string(line.count - 1) + " others have waited";
    const auto whole = static_cast<long>(std::floor(ToSeconds(line.longest)));
    lines.push_back(line.first + others + " for room for " + std::to_string(whole) +
                    " s: " + line.reason);
  }
  return lines;
}

}  // namespace troupe::actors
