#include "autoscaler/notices/notice.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>

namespace troupe::notices {
namespace {

constexpr Duration kMargin = seconds(5);
constexpr Duration kLeastDrain = seconds(2);
constexpr int64_t kLongestJob_s = int64_t{10} * 366 * 24 * 3600;
constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

// All of `text` is digits, and they are a number.
std::optional<int64_t> NumberOf(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (text.empty() || !digits || error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

// "08:22:00".
std::optional<int64_t> SecondsOfDay(std::string_view text) {
  if (text.size() != 8 || text[2] != ':' || text[5] != ':') return std::nullopt;
  const auto hour = NumberOf(text.substr(0, 2));
  const auto minute = NumberOf(text.substr(3, 2));
  const auto second = NumberOf(text.substr(6, 2));
  if (!hour || !minute || !second || *hour > 23 || *minute > 59 || *second > 60)
    return std::nullopt;
  return *hour * 3600 + *minute * 60 + *second;
}

std::optional<int64_t> SecondsOf(int64_t year, int64_t month, int64_t day, std::string_view time) {
  namespace chrono = std::chrono;
  const std::optional<int64_t> within = SecondsOfDay(time);
  if (!within || year < 1970 || year > 9999) return std::nullopt;
  const chrono::year_month_day date{chrono::year(static_cast<int>(year)),
                                    chrono::month(static_cast<unsigned>(month)),
                                    chrono::day(static_cast<unsigned>(day))};
  if (!date.ok()) return std::nullopt;
  return int64_t{chrono::sys_days(date).time_since_epoch().count()} * 86400 + *within;
}

}  // namespace

std::string_view KindName(NoticeKind kind) {
  constexpr std::array<std::string_view, 4> kNames = {"preempt", "rebalance", "maintenance",
                                                      "walltime"};
  return kNames.at(static_cast<size_t>(kind));
}

std::optional<int64_t> ParseIsoTime(std::string_view text) {
  if (text.size() < 20 || text.size() > 32 || text[4] != '-' || text[7] != '-' || text[10] != 'T' ||
      text.back() != 'Z')
    return std::nullopt;
  std::string_view rest = text.substr(19, text.size() - 20);
  if (!rest.empty() && (rest.front() != '.' || !NumberOf(rest.substr(1)))) return std::nullopt;
  const auto year = NumberOf(text.substr(0, 4));
  const auto month = NumberOf(text.substr(5, 2));
  const auto day = NumberOf(text.substr(8, 2));
  if (!year || !month || !day) return std::nullopt;
  return SecondsOf(*year, *month, *day, text.substr(11, 8));
}

std::optional<int64_t> ParseHttpTime(std::string_view text) {
  if (const size_t comma = text.find(", "); comma != std::string_view::npos)
    text.remove_prefix(comma + 2);
  // "11 Apr 2022 22:26:58 GMT"; the day may have one digit.
  const size_t first = text.find(' ');
  if (first == std::string_view::npos || text.size() != first + 22 || !text.ends_with(" GMT"))
    return std::nullopt;
  const auto month = std::ranges::find(kMonths, text.substr(first + 1, 3));
  const auto day = NumberOf(text.substr(0, first));
  const auto year = NumberOf(text.substr(first + 5, 4));
  if (month == kMonths.end() || !day || !year || *day > 31) return std::nullopt;
  return SecondsOf(*year, month - kMonths.begin() + 1, *day, text.substr(first + 10, 8));
}

Duration LeftUntil(std::optional<int64_t> at, const HttpReply& reply, Instant now, Duration most) {
  if (!at) return Duration::zero();
  const auto date = reply.headers.find("date");
  const std::optional<int64_t> told =
      date == reply.headers.end() ? std::nullopt : ParseHttpTime(date->second);
  const int64_t left_s = *at - told.value_or(now.wall_s);
  return seconds(std::clamp<int64_t>(left_s, 0, most / seconds(1)));
}

std::string PlainText(std::string_view text) {
  std::string plain(text.substr(0, kNoticeTextMax));
  std::ranges::replace_if(
      plain, [](char c) { return c < ' ' || c > '~'; }, '?');
  return plain;
}

Duration DrainLimit(Duration left) {
  return std::max<Duration>(kLeastDrain, left - std::min<Duration>(kMargin, left / 4));
}

std::optional<Duration> SlurmLeft(std::string_view end_time, int64_t wall_s) {
  const std::optional<int64_t> end = NumberOf(end_time);
  if (!end || *end - wall_s > kLongestJob_s) return std::nullopt;
  return seconds(std::max<int64_t>(0, *end - wall_s));
}

std::vector<std::string> DetectSources(const HostFacts& facts) {
  std::vector<std::string> sources;
  if (facts.system_vendor == "Amazon EC2" || facts.bios_vendor == "Amazon EC2")
    sources.emplace_back("aws");
  if (facts.product_name == "Google Compute Engine") sources.emplace_back("gcp");
  // That every virtual machine of Azure has.
  if (facts.chassis_asset_tag == "7783-7084-3265-9085-8269-3286-77") sources.emplace_back("azure");
  if (facts.slurm_job) sources.emplace_back("slurm");
  return sources;
}

}  // namespace troupe::notices
