#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config.h"

namespace troupe {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr std::array<Unit, 7> kDurationUnits = {
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9}}};
constexpr std::array<Unit, 10> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"kB", 1e3},
                                              {"MB", 1e6},
                                              {"GB", 1e9},
                                              {"TB", 1e12},
                                              {"KiB", 1024.0},
                                              {"MiB", 1048576.0},
                                              {"GiB", 1073741824.0},
                                              {"TiB", 1099511627776.0}}};

// A number and one of `units` as a count of the smallest unit; nullopt for anything else.
template <size_t N>
std::optional<int64_t> ParseWithUnit(std::string_view text, const std::array<Unit, N>& units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Unit& unit : units) {
    if (rest != unit.name) continue;
    const double scaled = std::round(number * unit.scale);
    if (scaled >= 9.2e18) return std::nullopt;
    return static_cast<int64_t>(scaled);
  }
  return std::nullopt;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours count one
// each.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

// At most 60 bytes of a value, printable, in quotes.
std::string internal::Quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    quoted += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return quoted + (text.size() > kShown ? "...\"" : "\"");
}

std::string internal::DurationText(Duration value) {
  if (value == Duration::zero()) return "0s";
  for (auto unit = kDurationUnits.rbegin(); unit != kDurationUnits.rend(); ++unit) {
    const auto scale = static_cast<int64_t>(unit->scale);
    if (value.count() % scale == 0)
      return std::to_string(value.count() / scale) + std::string(unit->name);
  }
  return std::to_string(value.count()) + "ns";
}

Result<Duration> ParseDuration(std::string_view text) {
  if (text == "0") return Duration::zero();
  if (const auto count = ParseWithUnit(text, kDurationUnits)) return Duration(*count);
  return Error{ErrorCode::kInvalidArgument,
               "expected a duration such as 500ms, 30s, 5m or 2h, got " + internal::Quoted(text)};
}

Result<int64_t> ParseBytes(std::string_view text) {
  if (const auto count = ParseWithUnit(text, kByteUnits)) return *count;
  return Error{
      ErrorCode::kInvalidArgument,
      "expected a size such as 512MiB, 4GiB or a number of bytes, got " + internal::Quoted(text)};
}

std::optional<std::string> NearestWord(std::string_view word,
                                       const std::vector<std::string>& candidates) {
  constexpr size_t kWordBytesMax = 64;  // The distance takes quadratic time.
  if (word.empty() || word.size() > kWordBytesMax) return std::nullopt;
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kWordBytesMax) continue;
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace troupe
