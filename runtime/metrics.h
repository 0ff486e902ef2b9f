// Metrics: what a process counts, for Prometheus. One catalogue for all processes, documented in
// docs/metrics.md; a test keeps the two equal.
//
// A call names a metric and, if it has one, the value of its label. Pure cores never call this:
// they return what their shell counts. Nothing is kept before Enable or Serve; a call then costs
// one relaxed load.
// Thread: any.
// Limits: kSeriesMax values of a label; the rest is counted as "other".
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::metrics {

inline constexpr size_t kSeriesMax = 64;

enum class Kind : uint8_t { kCounter, kGauge, kHistogram };

enum class Id : uint8_t {
  kGroupEpochs,
  kGroupPause,
  kGroupRecovery,
  kGroupMembers,
  kGroupsParked,
  kGroupStalls,
  kStateTransfers,
  kStateBytes,
  kStepsReplayed,
  kStepsRecomputed,
  kSamplesReturned,
  kSamplesTrained,
  kWorkerEvents,
  kSpares,
  kRuns,
  kRunsRecovered,
  kNodes,
  kResourceCapacity,
  kResourceUsed,
  kActorCalls,
  kMailboxDepth,
  kMailboxRejects,
  kSentFrames,
  kSentBytes,
  kReceivedFrames,
  kReceivedBytes,
  kDroppedFrames,
  kRefusedKeys,
  kStoreCalls,
  kStoreErrors,
  kNodeWorkers,
  kNodeWorkerExits,
  kNodeDroppedLines,
  kPreemptionNotices,
  kAutoscalerActions,
  kAutoscalerLaunchFailures,
  kAutoscalerWorkersWanted,
  kAutoscalerNodes,
  kFleetWorkerSeconds,
  kFleetDollars,
  kCount,
};

struct Definition {
  Id id;
  Kind kind;
  const char* name;
  const char* label;  // Empty: none; or several, as their values are given: "source,kind".
  const char* help;
};
[[nodiscard]] std::span<const Definition> Catalogue();

namespace internal {
extern std::atomic<bool> on;
}
[[nodiscard]] inline bool On() { return internal::on.load(std::memory_order_relaxed); }
void Enable();

// Counters and gauges. A counter takes no negative `by`.
void Add(Id id, double by = 1, std::string_view label = "");
// Gauges.
void Set(Id id, double value, std::string_view label = "");
// Histograms, in seconds.
void Observe(Id id, Duration value, std::string_view label = "");
// Forgets one value of the label, when what it names is gone.
void Remove(Id id, std::string_view label);
// Of a metric without label; 0 before Enable.
[[nodiscard]] double Value(Id id);

// Metrics that are no part of the catalogue: names and labels come from users.
struct Sample {
  std::map<std::string, std::string> labels;
  // One value; of a histogram how many fell into each bucket and above the last, and their sum.
  std::vector<double> values;
};
struct Family {
  std::string name;
  std::string help;
  Kind kind = Kind::kCounter;
  std::vector<double> bounds;  // Of a histogram: upper ends of its buckets.
  std::vector<Sample> samples;
};
// Shows these beside the catalogue's, in place of those before. Nothing before Enable.
void Publish(std::vector<Family> families);

// The exposition text.
[[nodiscard]] std::string Text();

struct Endpoint {
  std::string address;  // "HOST:PORT"; empty: metrics are off. Port 0: any.
  std::string token_file;
};
// Enables, and serves http://HOST:PORT/metrics, which is returned. An address beyond the loopback interface
// needs a token, which is the password of the user "troupe". kInvalidArgument, or kAlreadyExists if
// the port cannot be had.
[[nodiscard]] Result<std::string> Serve(const Endpoint& endpoint);

}  // namespace troupe::metrics
