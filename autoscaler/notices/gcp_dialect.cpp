// The metadata server of Google Compute Engine. `preempted` is asked with a hanging GET: the server
// answers when the value changes, or after kHang.
// Source: Compute Engine documentation, "Detect if a VM is preempted", "Wait for change".
#include <algorithm>

#include "autoscaler/notices/internal/dialects.h"

namespace troupe::notices {
namespace {

constexpr int kHang_s = 10;
constexpr Duration kHangLimit = seconds(kHang_s + 2);
constexpr Duration kPreemptLead = seconds(30);
constexpr Duration kHostLead = seconds(60);
constexpr size_t kEtagMax = 128;
const std::string kGcpInstance = "/computeMetadata/v1/instance/";

enum GcpQuestion : size_t { kMaintenance, kPreempted, kGcpQuestions };

std::string GcpWord(const std::string& body) {
  return body.substr(0, body.find_last_not_of(" \r\n") + 1);
}

class GcpDialect final : public MetadataDialect {
 public:
  [[nodiscard]] std::string source() const override { return "gcp"; }
  [[nodiscard]] Duration interval() const override { return seconds(1); }
  [[nodiscard]] size_t questions() const override { return kGcpQuestions; }

  std::optional<HttpRequest> Ask(size_t question, Time /*now*/) override {
    HttpRequest request;
    request.headers = {{"Metadata-Flavor", "Google"}};
    request.url = kGcpInstance + (question == kMaintenance ? "maintenance-event" : "preempted");
    if (question == kPreempted && !etag_.empty()) {
      request.url +=
          "?wait_for_change=true&last_etag=" + etag_ + "&timeout_sec=" + std::to_string(kHang_s);
      request.limit = kHangLimit;
    }
    return request;
  }

  Reading Read(size_t question, const HttpReply& reply, Instant /*now*/) override {
    if (reply.status != 200) return Trouble(FailedStatus(reply.status));
    const auto flavor = reply.headers.find("metadata-flavor");
    if (flavor == reply.headers.end() || flavor->second != "Google")
      return Trouble(Failed("who answers is no metadata server of Google Cloud"));
    const std::string word = GcpWord(reply.body);
    return question == kMaintenance ? ReadMaintenance(word) : ReadPreempted(word, reply);
  }

 private:
  // Until it answers again it is not waited for long.
  Reading Trouble(Reading reading) {
    etag_.clear();
    return reading;
  }

  Reading ReadPreempted(const std::string& word, const HttpReply& reply) {
    if (word != "TRUE" && word != "FALSE")
      return Trouble(Failed("instance/preempted is " + PlainText(word)));
    const auto etag = reply.headers.find("etag");
    const bool usable =
        etag != reply.headers.end() && etag->second.size() <= kEtagMax &&
        std::ranges::all_of(etag->second, [](unsigned char c) {
          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        });
    etag_ = usable ? etag->second : "";
    if (word == "FALSE") return {};
    return {Reading::What::kRead,
            {{"preempted", NoticeKind::kPreempt, "preempted", word, kPreemptLead, kAtOnce}},
            ""};
  }

  static Reading ReadMaintenance(const std::string& word) {
    if (word == "NONE") return {};
    const bool ends = word == "TERMINATE_ON_HOST_MAINTENANCE";
    // A live migration is a pause of a second.
    if (!ends && word != "MIGRATE_ON_HOST_MAINTENANCE")
      return Failed("instance/maintenance-event is " + PlainText(word));
    return {Reading::What::kRead,
            {{"maintenance", NoticeKind::kMaintenance, word, word, kHostLead,
              ends ? kAtOnce : Duration::zero()}},
            ""};
  }

  std::string etag_;
};

}  // namespace

std::unique_ptr<MetadataDialect> MakeGcpDialect() { return std::make_unique<GcpDialect>(); }

}  // namespace troupe::notices
