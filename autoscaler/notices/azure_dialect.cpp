// Scheduled events of Azure. They are told to every machine of a placement group: only those that
// name this one count, and only events of this machine alone are acknowledged when it has drained.
// Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "autoscaler/notices/internal/dialects.h"

namespace troupe::notices {
namespace {

using AzureJson = nlohmann::json;

constexpr Duration kFirstAnswer = seconds(150);  // The first question turns the service on.
constexpr Duration kPreemptMost = seconds(900);
constexpr Duration kRestartLead = seconds(300);
const std::string kEventsPath = "/metadata/scheduledevents?api-version=2020-07-01";
const std::string kComputePath = "/metadata/instance/compute?api-version=2021-02-01";

enum AzureQuestion : size_t { kName, kEvents, kStart, kAzureQuestions };

bool SameName(const std::string& a, const std::string& b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

class AzureDialect final : public MetadataDialect {
 public:
  [[nodiscard]] std::string source() const override { return "azure"; }
  [[nodiscard]] Duration interval() const override { return seconds(1); }
  [[nodiscard]] Duration patience() const override { return kFirstAnswer; }
  [[nodiscard]] size_t questions() const override { return kAzureQuestions; }
  void Drained() override { drained_ = true; }

  std::optional<HttpRequest> Ask(size_t question, Time /*now*/) override {
    HttpRequest request;
    request.headers = {{"Metadata", "true"}};
    request.url = question == kName ? kComputePath : kEventsPath;
    if (question == kName && !name_.empty()) return std::nullopt;
    if (question != kName && name_.empty()) return std::nullopt;
    if (question != kStart) return request;
    if (!drained_ || to_start_.empty()) return std::nullopt;
    AzureJson list = AzureJson::array();
    for (const std::string& id : to_start_) list.push_back({{"EventId", id}});
    request.method = "POST";
    request.headers.emplace_back("Content-Type", "application/json");
    request.body = AzureJson{{"StartRequests", list}}.dump();
    return request;
  }

  Reading Read(size_t question, const HttpReply& reply, Instant now) override {
    if (question == kStart) {
      // What it refuses is not asked again.
      if (reply.status == 200 || reply.status == 400) {
        started_.insert(to_start_.begin(), to_start_.end());
        to_start_.clear();
      }
      return reply.status == 200 ? Reading{} : FailedStatus(reply.status);
    }
    if (reply.status != 200) return FailedStatus(reply.status);
    const AzureJson json = AzureJson::parse(reply.body, nullptr, false);
    if (question == kEvents) return ReadEvents(json, reply, now);
    name_ = TextAt(json, "name");
    return name_.empty() ? Failed("it does not tell this machine's name") : Reading{};
  }

 private:
  Reading ReadEvents(const AzureJson& json, const HttpReply& reply, Instant now) {
    if (!json.is_object() || !json.contains("DocumentIncarnation") ||
        !json["DocumentIncarnation"].is_number_integer() || !json.contains("Events") ||
        !json["Events"].is_array())
      return Failed("its scheduled events are not what they should be: " + PlainText(reply.body));
    const auto incarnation = json["DocumentIncarnation"].get<int64_t>();
    if (incarnation == incarnation_) return {Reading::What::kRead, notices_, ""};
    incarnation_ = incarnation;
    notices_.clear();
    to_start_.clear();
    for (const AzureJson& event : json["Events"]) {
      if (notices_.size() < kEventsMax) TakeEvent(event, reply, now);
    }
    return {Reading::What::kRead, notices_, ""};
  }

  void TakeEvent(const AzureJson& event, const HttpReply& reply, Instant now) {
    const std::string id = TextAt(event, "EventId");
    const std::string type = TextAt(event, "EventType");
    if (id.empty() || id.size() > kNoticeTextMax || PlainText(id) != id) return;
    if (TextAt(event, "ResourceType") != "VirtualMachine" || !event.contains("Resources") ||
        !event["Resources"].is_array())
      return;
    const AzureJson& named = event["Resources"];
    if (!std::ranges::any_of(named, [&](const AzureJson& name) {
          return name.is_string() && SameName(name.get<std::string>(), name_);
        }))
      return;
    const bool taken = type == "Preempt" || type == "Terminate";
    const bool restarted = type == "Reboot" || type == "Redeploy";
    if (!taken && !restarted && type != "Freeze") return;
    // Empty once it has begun.
    const std::string when = TextAt(event, "NotBefore");
    const bool begun = TextAt(event, "EventStatus") == "Started";
    const Duration left = LeftUntil(begun ? std::nullopt : ParseHttpTime(when), reply, now,
                                    taken ? kPreemptMost : kFarthest);
    const std::string text = type + (begun ? " has begun" : " not before " + PlainText(when));
    notices_.push_back({id, taken ? NoticeKind::kPreempt : NoticeKind::kMaintenance, text,
                        begun ? "now" : when, left,
                        taken       ? kAtOnce
                        : restarted ? kRestartLead
                                    : Duration::zero()});
    if (named.size() == 1 && (taken || restarted) && !begun && !started_.contains(id))
      to_start_.insert(id);
  }

  std::string name_;
  int64_t incarnation_ = -1;
  std::vector<FoundNotice> notices_;
  bool drained_ = false;
  std::set<std::string> to_start_;
  std::set<std::string> started_;
};

}  // namespace

std::unique_ptr<MetadataDialect> MakeAzureDialect() { return std::make_unique<AzureDialect>(); }

}  // namespace troupe::notices
