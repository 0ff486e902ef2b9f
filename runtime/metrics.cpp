// Adapter of prometheus-cpp: the only file that includes it.
#include "runtime/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/assert.h"

namespace troupe::metrics {

std::atomic<bool> internal::on{false};

namespace {

using enum Kind;

constexpr std::array<Definition, static_cast<size_t>(Id::kCount)> kCatalogue{{
    {Id::kGroupEpochs, kCounter, "troupe_group_epochs_total", "cause", "Epochs that became active"},
    {Id::kGroupPause, kHistogram, "troupe_group_epoch_pause_seconds", "planned",
     "How long the longest-waiting member stood still for an epoch"},
    {Id::kGroupRecovery, kHistogram, "troupe_group_change_seconds", "cause",
     "From the moment the head saw the cause of an epoch to its activation"},
    {Id::kGroupMembers, kGauge, "troupe_group_members", "group", "Members of the active epoch"},
    {Id::kGroupsParked, kGauge, "troupe_groups_parked", "",
     "Groups that wait for their minimum of members"},
    {Id::kGroupStalls, kCounter, "troupe_group_stalls_total", "removed",
     "Times that members were told to keep the others waiting in a collective"},
    {Id::kStateTransfers, kCounter, "troupe_state_transfers_total", "",
     "States sent by a member to one that lacked it"},
    {Id::kStateBytes, kCounter, "troupe_state_sent_bytes_total", "", "Bytes of those"},
    {Id::kStepsReplayed, kCounter, "troupe_steps_replayed_total", "",
     "Steps that a death broke and the others finished from the gradients they kept"},
    {Id::kStepsRecomputed, kCounter, "troupe_steps_recomputed_total", "",
     "Steps that a group computed again after it went back to a commit"},
    {Id::kSamplesReturned, kCounter, "troupe_samples_returned_total", "",
     "Samples of dead members that went back to a sampler"},
    {Id::kSamplesTrained, kCounter, "troupe_samples_trained_total", "",
     "Samples of committed steps"},
    {Id::kWorkerEvents, kCounter, "troupe_worker_events_total", "event",
     "Workers that started, died, drained, finished or failed"},
    {Id::kSpares, kGauge, "troupe_spare_workers", "", "Warm processes without work"},
    {Id::kRuns, kGauge, "troupe_runs", "state", "Runs that the head knows"},
    {Id::kRunsRecovered, kCounter, "troupe_runs_recovered_total", "",
     "Runs taken over from a head that had ended"},
    {Id::kNodes, kGauge, "troupe_nodes", "state", "Nodes that the head knows"},
    {Id::kResourceCapacity, kGauge, "troupe_resource_capacity", "resource",
     "Offered by the nodes that are alive"},
    {Id::kResourceUsed, kGauge, "troupe_resource_used", "resource", "Held by workers"},
    {Id::kActorCalls, kCounter, "troupe_actor_calls_total", "", "Calls that actors have taken"},
    {Id::kMailboxDepth, kGauge, "troupe_actor_mailbox_depth", "", "Calls that wait in mailboxes"},
    {Id::kMailboxRejects, kCounter, "troupe_actor_mailbox_rejects_total", "",
     "Calls refused because the mailbox was full or the actor stopped"},
    {Id::kSentFrames, kCounter, "troupe_transport_sent_frames_total", "",
     "Frames handed to the network by this process"},
    {Id::kSentBytes, kCounter, "troupe_transport_sent_bytes_total", "", "Bytes of those"},
    {Id::kReceivedFrames, kCounter, "troupe_transport_received_frames_total", "",
     "Frames received by this process"},
    {Id::kReceivedBytes, kCounter, "troupe_transport_received_bytes_total", "", "Bytes of those"},
    {Id::kDroppedFrames, kCounter, "troupe_transport_dropped_frames_total", "",
     "Frames for an unknown peer or a full queue"},
    {Id::kRefusedKeys, kCounter, "troupe_transport_refused_keys_total", "",
     "Connections whose key is not on the list"},
    {Id::kStoreCalls, kHistogram, "troupe_store_call_seconds", "", "Calls of Redis"},
    {Id::kStoreErrors, kCounter, "troupe_store_errors_total", "code", "Calls of Redis that failed"},
    {Id::kNodeWorkers, kGauge, "troupe_node_workers", "", "Worker processes of this node"},
    {Id::kNodeWorkerExits, kCounter, "troupe_node_worker_exits_total", "how",
     "Worker processes of this node that ended"},
    {Id::kNodeDroppedLines, kCounter, "troupe_node_dropped_lines_total", "",
     "Lines that workers printed faster than they could be sent"},
    {Id::kPreemptionNotices, kCounter, "troupe_preemption_notices_total", "source,kind",
     "Notices that a node will be taken back, or may be"},
    {Id::kAutoscalerActions, kCounter, "troupe_autoscaler_actions_total", "action",
     "Decisions carried out"},
    {Id::kAutoscalerLaunchFailures, kCounter, "troupe_autoscaler_launch_failures_total", "pool",
     "Launches that the provider refused"},
    {Id::kAutoscalerWorkersWanted, kGauge, "troupe_autoscaler_workers_wanted", "",
     "Workers that the runs could use"},
    {Id::kAutoscalerNodes, kGauge, "troupe_autoscaler_nodes", "phase",
     "Nodes that the provider lists"},
    {Id::kFleetWorkerSeconds, kCounter, "troupe_fleet_worker_seconds_total", "use",
     "Worker-seconds that were paid, by what they went to"},
    {Id::kFleetDollars, kCounter, "troupe_fleet_dollars_total", "use",
     "Dollars that were paid, by what they went to"},
}};

// From a fast recovery to a slow start.
prometheus::Histogram::BucketBoundaries Seconds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    300};
}

prometheus::ClientMetric ToMetric(const Family& family, const Sample& sample) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  if (family.kind == kCounter) {
    metric.counter.value = sample.values.at(0);
  } else if (family.kind == kGauge) {
    metric.gauge.value = sample.values.at(0);
  } else {
    uint64_t count = 0;
    for (size_t i = 0; i <= family.bounds.size(); ++i) {
      count += static_cast<uint64_t>(sample.values.at(i));
      const double bound =
          i < family.bounds.size() ? family.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({count, bound});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = sample.values.back();
  }
  return metric;
}

// What users count; replaced as a whole.
class Published final : public prometheus::Collectable {
 public:
  void Set(std::vector<Family> families) {
    auto next = std::make_shared<const std::vector<Family>>(std::move(families));
    std::lock_guard lock(mu_);
    families_.swap(next);
  }

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::shared_ptr<const std::vector<Family>> families;
    {
      std::lock_guard lock(mu_);
      families = families_;
    }
    std::vector<prometheus::MetricFamily> collected;
    for (const Family& family : *families) {
      prometheus::MetricFamily& into = collected.emplace_back();
      into.name = family.name;
      into.help = family.help;
      into.type = family.kind == kCounter ? prometheus::MetricType::Counter
                  : family.kind == kGauge ? prometheus::MetricType::Gauge
                                          : prometheus::MetricType::Histogram;
      for (const Sample& sample : family.samples) into.metric.push_back(ToMetric(family, sample));
    }
    return collected;
  }

 private:
  mutable std::mutex mu_;
  std::shared_ptr<const std::vector<Family>> families_ =
      std::make_shared<const std::vector<Family>>();
};

// "source,kind" and "aws,preempt" are two labels. What has no value of its own is "other".
std::map<std::string, std::string> Labels(std::string_view names, std::string_view values) {
  std::map<std::string, std::string> labels;
  const auto next = [](std::string_view& list) {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    return std::string(word);
  };
  const bool several = names.find(',') != std::string_view::npos;
  while (!names.empty()) {
    const std::string name = next(names);
    const bool last = names.empty();
    labels[name] = several && values.empty() ? "other" : last ? std::string(values) : next(values);
  }
  return labels;
}

struct Series {
  prometheus::Counter* counter = nullptr;
  prometheus::Gauge* gauge = nullptr;
  prometheus::Histogram* histogram = nullptr;
};

class Metrics {
 public:
  Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
    for (const Definition& d : kCatalogue) {
      TROUPE_ASSERT(&d == &kCatalogue[static_cast<size_t>(d.id)], "the catalogue is out of order");
      Metric& metric = metrics_[static_cast<size_t>(d.id)];
      if (d.kind == kCounter) {
        metric.counters =
            &prometheus::BuildCounter().Name(d.name).Help(d.help).Register(*registry_);
      } else if (d.kind == kGauge) {
        metric.gauges = &prometheus::BuildGauge().Name(d.name).Help(d.help).Register(*registry_);
      } else {
        metric.histograms =
            &prometheus::BuildHistogram().Name(d.name).Help(d.help).Register(*registry_);
      }
      if (*d.label == '\0') metric.only = Make(metric, {});  // Shown at zero from the start.
    }
  }

  Series Find(Id id, std::string_view label) {
    Metric& metric = metrics_[static_cast<size_t>(id)];
    const char* name = kCatalogue[static_cast<size_t>(id)].label;
    if (*name == '\0') return metric.only;
    std::lock_guard lock(mu_);
    const auto known = metric.series.find(label);
    if (known != metric.series.end()) return known->second;
    const std::string value(metric.series.size() < kSeriesMax ? label : "other");
    return metric.series.try_emplace(value, Make(metric, Labels(name, value))).first->second;
  }

  void Remove(Id id, std::string_view label) {
    std::lock_guard lock(mu_);
    Metric& metric = metrics_[static_cast<size_t>(id)];
    const auto known = metric.series.find(label);
    if (known == metric.series.end()) return;
    if (metric.counters != nullptr) metric.counters->Remove(known->second.counter);
    if (metric.gauges != nullptr) metric.gauges->Remove(known->second.gauge);
    if (metric.histograms != nullptr) metric.histograms->Remove(known->second.histogram);
    metric.series.erase(known);
  }

  [[nodiscard]] const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }
  [[nodiscard]] const std::shared_ptr<Published>& published() const { return published_; }
  std::unique_ptr<prometheus::Exposer> exposer;

 private:
  struct Metric {
    prometheus::Family<prometheus::Counter>* counters = nullptr;
    prometheus::Family<prometheus::Gauge>* gauges = nullptr;
    prometheus::Family<prometheus::Histogram>* histograms = nullptr;
    Series only;
    std::map<std::string, Series, std::less<>> series;
  };

  static Series Make(Metric& metric, const std::map<std::string, std::string>& labels) {
    Series series;
    if (metric.counters != nullptr) series.counter = &metric.counters->Add(labels);
    if (metric.gauges != nullptr) series.gauge = &metric.gauges->Add(labels);
    if (metric.histograms != nullptr) series.histogram = &metric.histograms->Add(labels, Seconds());
    return series;
  }

  const std::shared_ptr<prometheus::Registry> registry_;
  const std::shared_ptr<Published> published_ = std::make_shared<Published>();
  std::array<Metric, kCatalogue.size()> metrics_;
  std::mutex mu_;
};

// Made by the first Enable and never destroyed: threads may count until the end of the process.
Metrics& All() {
  static auto* all = new Metrics();
  return *all;
}

bool IsLoopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "[::1]";
}

}  // namespace

std::span<const Definition> Catalogue() { return kCatalogue; }

void Enable() {
  (void)All();
  internal::on.store(true);
}

void Add(Id id, double by, std::string_view label) {
  if (!On()) return;
  const Series series = All().Find(id, label);
  if (series.counter != nullptr) series.counter->Increment(by);
  if (series.gauge != nullptr) series.gauge->Increment(by);
}

void Set(Id id, double value, std::string_view label) {
  if (!On()) return;
  if (const Series series = All().Find(id, label); series.gauge != nullptr)
    series.gauge->Set(value);
}

void Observe(Id id, Duration value, std::string_view label) {
  if (!On()) return;
  if (const Series series = All().Find(id, label); series.histogram != nullptr)
    series.histogram->Observe(ToSeconds(value));
}

void Remove(Id id, std::string_view label) {
  if (On()) All().Remove(id, label);
}

double Value(Id id) {
  if (!On()) return 0;
  const Series series = All().Find(id, "");
  if (series.counter != nullptr) return series.counter->Value();
  return series.gauge != nullptr ? series.gauge->Value() : 0;
}

void Publish(std::vector<Family> families) {
  if (On()) All().published()->Set(std::move(families));
}

std::string Text() {
  std::vector<prometheus::MetricFamily> families = All().registry()->Collect();
  for (prometheus::MetricFamily& family : All().published()->Collect())
    families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

Result<std::string> Serve(const Endpoint& endpoint) {
  const std::string& address = endpoint.address;
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  int port = -1;
  const char* end = address.data() + address.size();
  const char* digits = colon == std::string::npos ? end : address.data() + colon + 1;
  const auto [rest, problem] = std::from_chars(digits, end, port);
  if (host.empty() || problem != std::errc() || rest != end || port < 0 || port > 65535) {
    return Error{ErrorCode::kInvalidArgument,
                 "a metrics address is HOST:PORT, such as 127.0.0.1:9400, not '" + address + "'"};
  }
  std::string token;
  if (!endpoint.token_file.empty()) std::getline(std::ifstream(endpoint.token_file), token);
  if (token.empty() && (!IsLoopback(host) || !endpoint.token_file.empty())) {
    return Error{ErrorCode::kInvalidArgument,
                 endpoint.token_file.empty()
                     ? "metrics at " + address +
                           " could be read by anybody; give --metrics-token-file, or listen on "
                           "127.0.0.1"
                     : "no token in " + endpoint.token_file};
  }
  Enable();
  try {
    const std::string at = host == "localhost" ? "127.0.0.1:" + std::to_string(port) : address;
    auto exposer = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", at, "num_threads", "2"});
    if (!token.empty()) {
      exposer->RegisterAuth([token](const std::string& user, const std::string& password) {
        return user == "troupe" && password == token;
      });
    }
    exposer->RegisterCollectable(All().registry());
    exposer->RegisterCollectable(All().published());
    All().exposer = std::move(exposer);
    const int bound = All().exposer->GetListeningPorts().at(0);
    return "http://" + host + ":" + std::to_string(bound) + "/metrics";
  } catch (const std::exception& e) {
    return Error{ErrorCode::kAlreadyExists,
                 "cannot serve metrics at " + address + " (" + e.what() +
                     "): the port is in use, or the address is not one of this host; choose "
                     "another --metrics-address"};
  }
}

}  // namespace troupe::metrics
