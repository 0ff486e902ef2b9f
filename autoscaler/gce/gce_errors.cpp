#include "autoscaler/gce/gce_errors.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "autoscaler/cloud_text.h"
#include "autoscaler/internal/read_json.h"

namespace troupe::gce {
namespace {

constexpr size_t kMessageMax = 400;

struct Meaning {
  std::string_view code;  // Or how it begins, up to a star.
  GceFailure failure;
};

// The first that fits. Reasons of replies and codes of operations.
constexpr std::array kMeanings = {
    Meaning{"rateLimitExceeded", GceFailure::kThrottled},
    Meaning{"userRateLimitExceeded", GceFailure::kThrottled},
    Meaning{"RATE_LIMIT_EXCEEDED", GceFailure::kThrottled},
    Meaning{"concurrentOperationQuotaExceeded", GceFailure::kThrottled},
    Meaning{"RESOURCE_OPERATION_RATE_EXCEEDED", GceFailure::kThrottled},
    Meaning{"resourceNotReady", GceFailure::kThrottled},
    Meaning{"RESOURCE_NOT_READY", GceFailure::kThrottled},
    Meaning{"ZONE_RESOURCE_POOL_EXHAUSTED*", GceFailure::kCapacity},
    Meaning{"REGION_RESOURCE_POOL_EXHAUSTED*", GceFailure::kCapacity},
    Meaning{"RESOURCE_POOL_EXHAUSTED*", GceFailure::kCapacity},
    Meaning{"VM_MIN_COUNT_NOT_REACHED", GceFailure::kCapacity},
    Meaning{"quotaExceeded", GceFailure::kCapacity},
    Meaning{"QUOTA_EXCEEDED", GceFailure::kCapacity},
    Meaning{"QUOTA_LIMIT_EXCEEDED", GceFailure::kCapacity},
    Meaning{"stockout", GceFailure::kCapacity},
    Meaning{"backendError", GceFailure::kServer},
    Meaning{"internalError", GceFailure::kServer},
    Meaning{"INTERNAL_ERROR", GceFailure::kServer},
    Meaning{"SERVICE_UNAVAILABLE", GceFailure::kServer},
    Meaning{"authError", GceFailure::kUnauthorized},
    Meaning{"required", GceFailure::kRefused},
    Meaning{"alreadyExists", GceFailure::kExists},
    Meaning{"RESOURCE_ALREADY_EXISTS", GceFailure::kExists},
    Meaning{"notFound", GceFailure::kMissing},
    Meaning{"RESOURCE_NOT_FOUND", GceFailure::kRefused},
    Meaning{"accessNotConfigured", GceFailure::kForbidden},
    Meaning{"forbidden", GceFailure::kForbidden},
    Meaning{"insufficientPermissions", GceFailure::kForbidden},
    Meaning{"PERMISSION*", GceFailure::kForbidden},
    Meaning{"billingNotEnabled", GceFailure::kForbidden},
    Meaning{"invalid*", GceFailure::kRefused},
    Meaning{"INVALID*", GceFailure::kRefused},
    Meaning{"UNSUPPORTED*", GceFailure::kRefused},
    Meaning{"badRequest", GceFailure::kRefused},
    Meaning{"conditionNotMet", GceFailure::kOther},
};

GceFailure GceFailureOf(std::string_view code, int status) {
  const auto* found = std::ranges::find_if(kMeanings, [&](const Meaning& meaning) {
    return meaning.code.ends_with('*')
               ? code.starts_with(meaning.code.substr(0, meaning.code.size() - 1))
               : code == meaning.code;
  });
  if (found != kMeanings.end()) return found->failure;
  if (status == 401) return GceFailure::kUnauthorized;
  if (status == 403) return GceFailure::kForbidden;
  if (status == 404) return GceFailure::kMissing;
  if (status == 409) return GceFailure::kExists;
  if (status == 429) return GceFailure::kThrottled;
  if (status == 400) return GceFailure::kRefused;
  return status >= 500 ? GceFailure::kServer : GceFailure::kOther;
}

// Which key of a cluster file Google's words are about.
std::string_view KeyInGce(std::string_view message) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kWords = {
      {{"machineType", "see pools[].instance_types and pools[].zones"},
       {"achine type", "see pools[].instance_types and pools[].zones"},
       {"/images/", "see gce.image"},
       {"sourceImage", "see gce.image"},
       {"nstanceTemplate", "see gce.instance_template"},
       {"ubnetwork", "see gce.subnetwork"},
       {"etwork", "see gce.network"},
       {"ervice account", "see gce.service_account"},
       {"serviceAccount", "see gce.service_account"},
       {"diskType", "see gce.disk_type"},
       {"abel", "see gce.labels"}}};
  for (const auto& [word, key] : kWords) {
    if (message.find(word) != std::string_view::npos) return key;
  }
  for (const std::string_view word : {"/zones/", "'zone'", "locationPolicy"}) {
    if (message.find(word) != std::string_view::npos) return "see pools[].zones";
  }
  if (message.find("projects/") != std::string_view::npos) return "see gce.project";
  return "see `gce` in the cluster file";
}

std::string GceAdviceOf(const GceError& error, const GceQuestion& question) {
  if (error.code == "accessNotConfigured")
    return "enable the Compute Engine API (compute.googleapis.com) of the project";
  if (error.failure == GceFailure::kForbidden)
    return "give whoever asks the permission " + question.permission + " (docs/fleets.md)";
  if (error.failure == GceFailure::kUnauthorized) return "are the credentials good?";
  if (error.code == "quotaExceeded" || error.code == "QUOTA_EXCEEDED")
    return "ask for more of that quota, or lower pools[].max_workers";
  if (error.failure == GceFailure::kRefused || error.failure == GceFailure::kMissing)
    return std::string(KeyInGce(error.message));
  return "";
}

}  // namespace

GceError ReadGceError(const HttpReply& reply) {
  GceError error;
  const LooseJson told = At(ParseJson(reply.body), "error");
  const auto& errors = ListAt(told, "errors");
  if (!errors.empty()) error.code = Printable(TextAt(errors.front(), "reason"), 80);
  // Newer services tell it only here.
  for (const LooseJson& detail : ListAt(told, "details")) {
    if (error.code.empty()) error.code = Printable(TextAt(detail, "reason"), 80);
  }
  if (error.code.empty()) error.code = Printable(TextAt(told, "status"), 80);
  error.message = Printable(TextAt(told, "message"), kMessageMax);
  if (error.message.empty()) error.message = "status " + std::to_string(reply.status);
  error.failure = GceFailureOf(error.code, reply.status);
  return error;
}

GceError ReadOperationError(const std::string& operation) {
  const LooseJson json = ParseJson(operation);
  const auto status = static_cast<int>(NumberAt(json, "httpErrorStatusCode"));
  GceError worst;
  for (const LooseJson& told : ListAt(At(json, "error"), "errors")) {
    GceError one;
    one.code = Printable(TextAt(told, "code"), 80);
    one.message = Printable(TextAt(told, "message"), kMessageMax);
    one.failure = GceFailureOf(one.code, status);
    // That too few were made follows from another one, which says why.
    const bool follows = one.code == "VM_MIN_COUNT_NOT_REACHED";
    if (worst.code.empty() || worst.code == "VM_MIN_COUNT_NOT_REACHED" ||
        (worst.failure == GceFailure::kCapacity && one.failure != GceFailure::kCapacity &&
         !follows))
      worst = one;
  }
  if (worst.code.empty() && status >= 400) {
    worst.code = "status " + std::to_string(status);
    worst.message = Printable(TextAt(json, "httpErrorMessage"), kMessageMax);
    worst.failure = GceFailureOf("", status);
  }
  return worst;
}

Error TellGceError(const GceError& error, const GceQuestion& question) {
  std::string what =
      question.action + ": " + (error.code.empty() ? "" : error.code + ": ") + error.message;
  while (what.ends_with('.') || what.ends_with(' ')) what.pop_back();
  if (const std::string advice = GceAdviceOf(error, question); !advice.empty())
    what += "; " + advice;
  switch (error.failure) {
    case GceFailure::kCapacity:
      return {ErrorCode::kResourceExhausted, "no capacity: " + what};
    case GceFailure::kUnauthorized:
    case GceFailure::kForbidden:
      return {ErrorCode::kPermissionDenied, what};
    case GceFailure::kMissing:
      return {ErrorCode::kNotFound, what};
    case GceFailure::kRefused:
      return {ErrorCode::kInvalidArgument, what};
    case GceFailure::kThrottled:
    case GceFailure::kServer:
    case GceFailure::kExists:
    case GceFailure::kOther:
      break;
  }
  return {ErrorCode::kUnavailable, what};
}

}  // namespace troupe::gce
