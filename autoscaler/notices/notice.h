// Notice kinds, and what a metadata service says: the words that the parsers, the watch and the
// node share.
//
// Thread: value types. Times of day are of the service's own clock where it tells it (the header
// Date), so that a wrong clock of this machine moves no deadline.
// Limits: kNoticeTextMax of what a service says for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "runtime/http_client.h"

namespace troupe::notices {

enum class NoticeKind : uint8_t {
  kPreempt,      // The machine is taken back.
  kRebalance,    // It may be; nothing is certain.
  kMaintenance,  // Its host is restarted, moved or repaired.
  kWalltime,     // Its job ends.
};
// "preempt", "rebalance", "maintenance", "walltime".
[[nodiscard]] std::string_view KindName(NoticeKind kind);

struct Instant {
  Time now;
  int64_t wall_s = 0;  // Seconds since 1970, by this machine.
};

inline constexpr size_t kNoticeTextMax = 200;
inline constexpr Duration kAtOnce = Duration::max();    // Of FoundNotice::drain_before,
inline constexpr Duration kNotKnown = Duration::max();  // and of its `left`.

struct FoundNotice {
  std::string id;  // The same for the same event.
  NoticeKind kind = NoticeKind::kPreempt;
  std::string text;            // For people: "terminate at 2026-01-02T03:04:05Z".
  std::string when;            // Its time as the service writes it.
  Duration left = {};          // Until then, as of this reading; or kNotKnown.
  Duration drain_before = {};  // So long before its time the node drains; kAtOnce; zero: never.
};

// What came of one question.
struct Reading {
  enum class What : uint8_t { kRead, kAgain, kThrottled, kFailed };
  What what = What::kRead;
  std::vector<FoundNotice> notices = {};  // All there are now, of this question.
  std::string trouble = {};
};

// "2017-09-18T08:22:00Z", with or without a fraction.
[[nodiscard]] std::optional<int64_t> ParseIsoTime(std::string_view text);
// "Mon, 11 Apr 2022 22:26:58 GMT", "21 Jan 2019 09:00:43 GMT".
[[nodiscard]] std::optional<int64_t> ParseHttpTime(std::string_view text);
// From the reply's own time, else this machine's, to `at`: none if it is past or cannot be read,
// and never more than `most`.
[[nodiscard]] Duration LeftUntil(std::optional<int64_t> at, const HttpReply& reply, Instant now,
                                 Duration most);
// Without what terminals and logs take for more than text, and no longer than kNoticeTextMax.
[[nodiscard]] std::string PlainText(std::string_view text);
// How long a node whose machine is gone after `left` may drain: less a margin.
[[nodiscard]] Duration DrainLimit(Duration left);
// For SLURM_JOB_END_TIME: what is left of the job; nothing if that is not a time.
[[nodiscard]] std::optional<Duration> SlurmLeft(std::string_view end_time, int64_t wall_s);

// What a machine's firmware says of who made it, and whether it is in a job.
struct HostFacts {
  std::string system_vendor;
  std::string product_name;
  std::string bios_vendor;
  std::string chassis_asset_tag;
  bool slurm_job = false;
};
// Of "aws", "gcp", "azure", "slurm".
[[nodiscard]] std::vector<std::string> DetectSources(const HostFacts& facts);

}  // namespace troupe::notices
