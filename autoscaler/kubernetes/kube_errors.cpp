#include "autoscaler/kubernetes/kube_errors.h"

#include <algorithm>
#include <charconv>

#include "autoscaler/cloud_text.h"
#include "autoscaler/internal/read_json.h"

namespace troupe::kubernetes {
namespace {

constexpr size_t kMessageShown = 600;
constexpr size_t kCausesShown = 5;
constexpr int64_t kRetryAfterMax_s = 600;

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

KubeFailure FailureOf(int status, std::string_view reason, std::string_view message) {
  switch (status) {
    case 400:
      return Has(message, "admission webhook") ? KubeFailure::kDenied : KubeFailure::kInvalid;
    case 401:
      return KubeFailure::kUnauthorized;
    case 403:
      if (Has(message, "exceeded quota")) return KubeFailure::kQuota;
      // Of whoever may not: 'User "a" cannot create resource "pods"'.
      return message.empty() || Has(message, "cannot ") ? KubeFailure::kForbidden
                                                        : KubeFailure::kDenied;
    case 404:
      return KubeFailure::kMissing;
    case 409:
      return reason == "AlreadyExists" ? KubeFailure::kExists : KubeFailure::kConflict;
    case 410:
      return KubeFailure::kGone;
    case 422:
      return KubeFailure::kInvalid;
    case 408:
      return KubeFailure::kServer;
    case 429:
      return KubeFailure::kThrottled;
    default:
      if (Has(message, "denied the request")) return KubeFailure::kDenied;
      return status >= 500 ? KubeFailure::kServer : KubeFailure::kOther;
  }
}

// "spec.containers[0].image: Required value; ...", of causes that the message does not tell.
std::string CausesOf(const LooseJson& status, const std::string& message) {
  std::string causes;
  size_t shown = 0;
  for (const LooseJson& cause : ListAt(At(status, "details"), "causes")) {
    const std::string field = TextAt(cause, "field");
    const std::string what = TextAt(cause, "message");
    if (Has(message, what) && Has(message, field)) continue;
    if (shown++ == kCausesShown) break;
    causes += "; " + (field.empty() ? "" : field + ": ") + what;
  }
  return causes;
}

std::string RightOf(const KubeQuestion& question) {
  const bool cluster = question.kube_namespace.empty();
  return "a " + std::string(cluster ? "ClusterRole" : "Role") + " with the verb \"" +
         question.verb + "\" on " + question.resource +
         (cluster ? "" : " in namespace " + question.kube_namespace) +
         " is needed (examples/kubernetes)";
}

ErrorCode CodeOf(KubeFailure failure) {
  switch (failure) {
    case KubeFailure::kQuota:
      return ErrorCode::kResourceExhausted;
    case KubeFailure::kUnauthorized:
    case KubeFailure::kForbidden:
    case KubeFailure::kDenied:
      return ErrorCode::kPermissionDenied;
    case KubeFailure::kInvalid:
      return ErrorCode::kInvalidArgument;
    case KubeFailure::kMissing:
      return ErrorCode::kNotFound;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

KubeError ReadKubeStatus(int status, std::string_view body) {
  const LooseJson json = ParseJson(body);
  KubeError error;
  error.status = status;
  if (TextAt(json, "kind") == "Status") {
    error.status = static_cast<int>(NumberAt(json, "code", status));
    error.reason = TextAt(json, "reason");
    const std::string message = TextAt(json, "message");
    error.message = Printable(message + CausesOf(json, message), kMessageShown);
    if (const int64_t after_s = NumberAt(At(json, "details"), "retryAfterSeconds"); after_s > 0)
      error.retry_after = seconds(std::min(after_s, kRetryAfterMax_s));
  } else {
    error.message = Printable(body, kMessageShown);
  }
  error.failure = FailureOf(error.status, error.reason, error.message);
  return error;
}

KubeError ReadKubeError(const HttpReply& reply) {
  KubeError error = ReadKubeStatus(reply.status, reply.body);
  const auto header = reply.headers.find("retry-after");
  if (header == reply.headers.end() || error.retry_after) return error;
  int64_t after_s = 0;
  const std::string& text = header->second;
  if (std::from_chars(text.data(), text.data() + text.size(), after_s).ec == std::errc() &&
      after_s > 0)
    error.retry_after = seconds(std::min(after_s, kRetryAfterMax_s));
  return error;
}

Error TellKubeError(const KubeError& error, const KubeQuestion& question) {
  const std::string asked =
      question.verb + " " + question.resource +
      (question.kube_namespace.empty() ? "" : " in namespace " + question.kube_namespace) +
      (question.pool.empty() ? "" : " for pool " + question.pool);
  const std::string said = error.message.empty() ? "" : ": " + error.message;
  std::string what;
  switch (error.failure) {
    case KubeFailure::kThrottled:
      what = "Kubernetes is asked too often: " + asked + said;
      break;
    case KubeFailure::kUnauthorized:
      what = "Kubernetes does not take these credentials (401): " + asked + said;
      break;
    case KubeFailure::kForbidden:
      what = "not allowed: " + asked + said + "; " + RightOf(question);
      break;
    case KubeFailure::kQuota:
      what = "a quota is used up: " + asked + said;
      break;
    case KubeFailure::kDenied:
      what = "the cluster's rules refuse it: " + asked + said;
      break;
    case KubeFailure::kInvalid:
      what = "Kubernetes does not take what is asked for: " + asked + said;
      break;
    case KubeFailure::kMissing:
      what = asked + ": there is none" + said;
      break;
    default:
      what = asked + ": status " + std::to_string(error.status) + said;
      break;
  }
  return {CodeOf(error.failure), what};
}

}  // namespace troupe::kubernetes
