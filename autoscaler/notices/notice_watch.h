// NoticeWatch: watches the metadata service of one cloud. Given its answers and the time, says what
// to ask next, and which notices there are.
//
//   round: question 0, 1, ... (a dialect's) --> pause --> round ...
//   notice: seen --> soft --(its time is near)--> hard;  no longer seen --> withdrawn
//
// Pure; never blocks. Thread: one. A reply that is missing, late or unreadable changes no notice:
// only a readable answer makes one, or withdraws it.
// Invariants: NW-1 no notice without a readable answer that says so. NW-2 the deadline of a hard
// notice only comes nearer. NW-3 trouble is told once, when kTroubleFrom rounds in a row have
// failed, and once that it is over.
// Limits: kNoticesMax notices at once; a pause of kBackOffMax at most.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/notices/notice.h"
#include "runtime/clock.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::notices {

inline constexpr int kTroubleFrom = 3;
inline constexpr size_t kNoticesMax = 64;
inline constexpr Duration kBackOffMax = seconds(20);

// What one cloud's service is asked, and what its answers mean. Paths in place of URLs.
class MetadataDialect {
 public:
  virtual ~MetadataDialect() = default;
  [[nodiscard]] virtual std::string source() const = 0;  // "aws".
  [[nodiscard]] virtual Duration interval() const = 0;   // Between two rounds.
  // For so long from its first question on, trouble is expected.
  [[nodiscard]] virtual Duration patience() const { return Duration::zero(); }
  [[nodiscard]] virtual size_t questions() const = 0;
  // Nothing: the question does not arise in this round.
  virtual std::optional<HttpRequest> Ask(size_t question, Time now) = 0;
  virtual Reading Read(size_t question, const HttpReply& reply, Instant now) = 0;
  virtual void Drained() {}  // The node has nothing to lose any more.
};
// "aws", "gcp" or "azure"; else null.
[[nodiscard]] std::unique_ptr<MetadataDialect> MakeDialect(const std::string& source);

struct NoticeChange {
  enum class What : uint8_t { kSoft, kHard, kWithdrawn, kTrouble, kTroubleOver };
  What what = What::kSoft;
  NoticeKind kind = NoticeKind::kPreempt;
  std::string text = {};
  Time deadline = Time::Never();  // The machine is gone then; Never: not known.
  bool hard = false;              // Of one that was withdrawn.
};

class NoticeWatch {
 public:
  NoticeWatch(std::unique_ptr<MetadataDialect> dialect, uint64_t seed);

  // What to ask now. Each is to be answered by OnReply before the next one.
  std::optional<HttpRequest> Next(Time now);
  void OnReply(Instant now, const Result<HttpReply>& reply);
  // When Next may have something new.
  [[nodiscard]] Time next_wake() const;
  [[nodiscard]] std::vector<NoticeChange> TakeChanges() { return std::exchange(changes_, {}); }
  void Drained() { dialect_->Drained(); }
  [[nodiscard]] std::string source() const { return dialect_->source(); }

 private:
  struct Known {
    FoundNotice notice;
    size_t question = 0;
    Time deadline = Time::Never();
    bool hard = false;
  };

  void Take(Time now, const std::vector<FoundNotice>& notices);
  void Harden(Time now);
  void EndRound(Time now);
  [[nodiscard]] static Time DrainAt(const Known& known);
  [[nodiscard]] Duration Jittered(Duration pause);
  void Tell(NoticeChange::What what, const Known& known);

  const std::unique_ptr<MetadataDialect> dialect_;
  std::mt19937_64 random_;
  size_t question_ = 0;
  int again_ = 0;  // Times that the question was to be asked again.
  Time due_{};
  std::optional<Time> first_;
  bool failed_ = false;  // This round,
  bool throttled_ = false;
  int failures_ = 0;  // and those before it in a row.
  bool troubled_ = false;
  std::string trouble_;
  std::map<std::string, Known> known_;  // By id.
  std::vector<NoticeChange> changes_;
};

}  // namespace troupe::notices
