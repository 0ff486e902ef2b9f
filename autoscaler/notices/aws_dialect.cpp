// The instance metadata service of AWS, version 2: every question carries a token.
// Source: EC2 user guide, "Spot Instance interruption notices" and "Rebalance recommendations".
#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "autoscaler/notices/internal/dialects.h"

namespace troupe::notices {
namespace {

using AwsJson = nlohmann::json;

constexpr int64_t kTokenTtl_s = 3600;
constexpr int64_t kTokenTtlMax_s = 21600;
constexpr Duration kTokenMargin = seconds(15);
constexpr size_t kTokenMax = 4096;
constexpr Duration kSpotLead = seconds(120);      // A notice of EC2 is no longer than that.
constexpr Duration kLifecycleLead = seconds(60);  // Of a group without lifecycle hooks, about.
constexpr Duration kMaintenanceLead = seconds(300);
const char* const kTtlHeader = "x-aws-ec2-metadata-token-ttl-seconds";

enum AwsQuestion : size_t { kAction, kTime, kLifecycle, kRebalance, kScheduled, kAwsQuestions };
constexpr std::array<const char*, kAwsQuestions> kAwsPaths = {
    "/latest/meta-data/spot/instance-action",
    "/latest/meta-data/spot/termination-time",
    "/latest/meta-data/autoscaling/target-lifecycle-state",
    "/latest/meta-data/events/recommendations/rebalance",
    "/latest/meta-data/events/maintenance/scheduled",
};

FoundNotice Taken(const std::string& action, const std::string& when, const HttpReply& reply,
                  Instant now) {
  return {"spot",
          NoticeKind::kPreempt,
          action + " at " + PlainText(when),
          when,
          LeftUntil(ParseIsoTime(when), reply, now, kSpotLead),
          kAtOnce};
}

Reading ReadAction(const HttpReply& reply, Instant now) {
  const AwsJson json = AwsJson::parse(reply.body, nullptr, false);
  const std::string action = TextAt(json, "action");
  if (action != "terminate" && action != "stop" && action != "hibernate")
    return Failed("spot/instance-action is not what it should be: " + PlainText(reply.body));
  return {Reading::What::kRead, {Taken(action, TextAt(json, "time"), reply, now)}, ""};
}

// The old form. Nothing but a time is a notice.
Reading ReadTime(const HttpReply& reply, Instant now) {
  const std::string when = reply.body.substr(0, reply.body.find_last_not_of(" \r\n") + 1);
  if (!ParseIsoTime(when)) return {};
  return {Reading::What::kRead, {Taken("terminate", when, reply, now)}, ""};
}

Reading ReadRebalance(const HttpReply& reply) {
  const std::string when = TextAt(AwsJson::parse(reply.body, nullptr, false), "noticeTime");
  if (when.empty())
    return Failed("events/recommendations/rebalance is not what it should be: " +
                  PlainText(reply.body));
  return {Reading::What::kRead,
          {{"rebalance", NoticeKind::kRebalance, "rebalance recommended at " + PlainText(when),
            when, kNotKnown, Duration::zero()}},
          ""};
}

Reading ReadScheduled(const HttpReply& reply, Instant now) {
  const AwsJson json = AwsJson::parse(reply.body, nullptr, false);
  if (!json.is_array()) return Failed("events/maintenance/scheduled is no list");
  Reading reading;
  for (const AwsJson& event : json) {
    const std::string id = TextAt(event, "EventId");
    const std::string when = TextAt(event, "NotBefore");
    const std::optional<int64_t> at = ParseHttpTime(when);
    if (TextAt(event, "State") != "active" || id.empty() || !at) continue;
    if (reading.notices.size() >= kEventsMax) break;
    reading.notices.push_back({"event " + PlainText(id), NoticeKind::kMaintenance,
                               PlainText(TextAt(event, "Code")) + " at " + PlainText(when), when,
                               LeftUntil(at, reply, now, kFarthest), kMaintenanceLead});
  }
  return reading;
}

class AwsDialect final : public MetadataDialect {
 public:
  [[nodiscard]] std::string source() const override { return "aws"; }
  [[nodiscard]] Duration interval() const override { return seconds(5); }
  [[nodiscard]] size_t questions() const override { return kAwsQuestions; }

  std::optional<HttpRequest> Ask(size_t question, Time now) override {
    if (question == kTime && action_there_) return std::nullopt;
    asked_token_ = token_.empty() || now >= renew_at_;
    HttpRequest request;
    if (asked_token_) {
      request.method = "PUT";
      request.url = "/latest/api/token";
      request.headers = {{kTtlHeader, std::to_string(kTokenTtl_s)}};
    } else {
      request.url = kAwsPaths.at(question);
      request.headers = {{"X-aws-ec2-metadata-token", token_}};
    }
    return request;
  }

  Reading Read(size_t question, const HttpReply& reply, Instant now) override {
    if (asked_token_) return ReadToken(reply, now.now);
    if (reply.status == 401) {  // It has forgotten the token.
      token_.clear();
      return {Reading::What::kAgain};
    }
    if (question == kAction && (reply.status == 200 || reply.status == 404))
      action_there_ = reply.status == 200;
    if (reply.status == 404) return {};
    if (reply.status != 200) return FailedStatus(reply.status);
    switch (question) {
      case kAction:
        return ReadAction(reply, now);
      case kTime:
        return ReadTime(reply, now);
      case kRebalance:
        return ReadRebalance(reply);
      case kScheduled:
        return ReadScheduled(reply, now);
      default:
        return ReadLifecycle(reply);
    }
  }

 private:
  Reading ReadToken(const HttpReply& reply, Time now) {
    token_.clear();
    if (reply.status != 200) {
      Reading reading = FailedStatus(reply.status);
      reading.trouble = "it gives no token: " + reading.trouble;
      return reading;
    }
    const bool plain = std::ranges::all_of(reply.body, [](char c) { return c > ' ' && c <= '~'; });
    if (reply.body.empty() || reply.body.size() > kTokenMax || !plain)
      return Failed("its token is none");
    token_ = reply.body;
    int64_t ttl_s = kTokenTtl_s;
    if (const auto told = reply.headers.find(kTtlHeader); told != reply.headers.end()) {
      const std::string& text = told->second;
      (void)std::from_chars(text.data(), text.data() + text.size(), ttl_s);
    }
    const Duration ttl = seconds(std::clamp<int64_t>(ttl_s, 1, kTokenTtlMax_s));
    renew_at_ = now + std::max(ttl - kTokenMargin, ttl / 2);
    return {Reading::What::kAgain};
  }

  static Reading ReadLifecycle(const HttpReply& reply) {
    if (!reply.body.starts_with("Terminated")) return {};
    return {Reading::What::kRead,
            {{"lifecycle", NoticeKind::kPreempt, "its auto scaling group terminates it",
              "Terminated", kLifecycleLead, kAtOnce}},
            ""};
  }

  std::string token_;
  Time renew_at_{};
  bool asked_token_ = false;
  bool action_there_ = false;
};

}  // namespace

std::unique_ptr<MetadataDialect> MakeAwsDialect() { return std::make_unique<AwsDialect>(); }

}  // namespace troupe::notices
