// UserMetrics: what user code counts in all processes of the cluster, added up for Prometheus.
//
// Counters and histograms are sums over all processes, also over those that have ended; a gauge is
// told for each process that is there, with the label "troupe_process".
// Invariants: UM-1 what a process has counted is added once, whatever is lost, repeated or late.
// UM-2 a sum never shrinks. UM-3 no gauge outlives its process, or kSilence without a word of it.
// Thread: the head's loop.
// Limits: below; a series beyond them is refused, and its process told why. Of processes that have
// ended kEndedMax are remembered; one of earlier that comes back would be counted twice.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemons/protocol/user_metrics.h"
#include "runtime/clock.h"
#include "runtime/metrics.h"
#include "runtime/result.h"

namespace troupe::daemons {

class UserMetricSums {
 public:
  static constexpr size_t kSeriesMax = 10'000;      // Of all processes together.
  static constexpr size_t kValuesMax = 1'000'000;   // Of each process in each series.
  static constexpr size_t kTextBytesMax = 8 << 20;  // Names, helps and tags of series.
  static constexpr size_t kSeriesBytesMax = 4096;   // The same of one series.
  static constexpr size_t kBoundsMax = 200;
  static constexpr size_t kEndedMax = 10'000;
  static constexpr Duration kSilence = seconds(10);
  static constexpr const char* kProcessLabel = "troupe_process";

  // `log`: of this head. `wanted`: somebody can read them; else nothing is kept.
  UserMetricSums(std::string log, bool wanted) : log_(std::move(log)), wanted_(wanted) {}

  [[nodiscard]] UserMetricsTaken OnMetrics(Time now, const std::string& process,
                                           const UserMetrics& told);
  void OnEnded(const std::string& process);
  void OnTick(Time now);
  // What nobody could tell while the head was stopped does not count as silence.
  void OnStopped(Duration stopped);
  // Whether there is something new since the last time.
  [[nodiscard]] bool TakeChanged() { return std::exchange(changed_, false); }
  [[nodiscard]] std::vector<metrics::Family> Families() const;

 private:
  using Index = uint32_t;  // Of series_.
  struct Family {
    UserMetricKind kind = UserMetricKind::kCounter;
    std::string help;
    std::vector<double> bounds;
    std::map<std::map<std::string, std::string>, Index> series;
  };
  struct Series {
    std::string name;
    std::map<std::string, std::string> tags;
    std::vector<double> sum;              // Of a counter or a histogram.
    std::map<std::string, double> gauge;  // By process.
  };
  struct Process {
    uint64_t life = 0;
    uint64_t number = 0;
    Time heard{};
    uint64_t refused = 0;
    std::string reason;
    std::map<Index, std::vector<double>> told;
  };

  void Take(const std::string& name, Process& process, const UserSeries& series);
  [[nodiscard]] Result<Index> Find(const UserSeries& series);
  [[nodiscard]] Index Add(const UserSeries& series);
  // Of a gauge that no process has any more.
  void Remove(Index index);
  [[nodiscard]] static Status Check(const UserSeries& series);

  const std::string log_;
  const bool wanted_;
  std::map<std::string, Family> families_;
  std::vector<Series> series_;
  std::vector<Index> free_;
  std::map<std::string, Process> processes_;
  // By process: its life and the last number that was taken of it.
  std::map<std::string, std::pair<uint64_t, uint64_t>> ended_;
  std::deque<std::string> ended_order_;
  size_t text_bytes_ = 0;
  size_t values_ = 0;
  bool changed_ = false;
};

}  // namespace troupe::daemons
