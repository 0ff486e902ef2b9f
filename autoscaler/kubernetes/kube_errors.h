// What an error of the API means: what is to be done about it, and what a person can do.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/clock.h"
#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

enum class KubeFailure : uint8_t {
  kThrottled,     // Asked too often: the same later.
  kServer,        // It has failed itself: the same again.
  kUnauthorized,  // It does not know who asks.
  kForbidden,     // Who asks may not.
  kQuota,         // There is no room for it in the namespace.
  kDenied,        // A webhook or a policy does not want it.
  kInvalid,       // A field is wrong.
  kExists,        // Its name is taken.
  kConflict,      // Somebody else was faster; or it is another of the same name.
  kMissing,       // There is none.
  kGone,          // A watch or a list cannot go on from there.
  kOther,
};

struct KubeError {
  KubeFailure failure = KubeFailure::kOther;
  int status = 0;
  std::string reason;   // "AlreadyExists"; empty: none could be read.
  std::string message;  // In the API's words, and its causes with their fields.
  std::optional<Duration> retry_after = std::nullopt;
};

// What was asked when it came.
struct KubeQuestion {
  std::string verb;      // "create", as roles name it.
  std::string resource;  // "pods", "pods/log".
  std::string kube_namespace;
  std::string pool = {};  // Of the cluster file; empty: of none.
};

// Of a reply that is no success; also of one that is no JSON.
[[nodiscard]] KubeError ReadKubeError(const HttpReply& reply);
// Of a Status that came otherwise, such as in a watch.
[[nodiscard]] KubeError ReadKubeStatus(int status, std::string_view body);
// For people, with the right, the quota or the field that it is about.
[[nodiscard]] Error TellKubeError(const KubeError& error, const KubeQuestion& question);

}  // namespace troupe::kubernetes
