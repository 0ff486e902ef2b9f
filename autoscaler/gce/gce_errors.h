// What an error of Compute Engine means: what is to be done about it, and what a person can do.
//
// Pure.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/http_client.h"
#include "runtime/result.h"

namespace troupe::gce {

enum class GceFailure : uint8_t {
  kCapacity,      // There is none of what was asked for, or a quota is used up.
  kThrottled,     // Asked too often: the same later.
  kServer,        // It has failed itself: the same again.
  kUnauthorized,  // The token is not good any more.
  kMissing,       // There is nothing of that name.
  kExists,        // It was made before.
  kForbidden,     // A permission is lacking, or the API is off.
  kRefused,       // A wrong setting: the same again is useless.
  kOther,
};

struct GceError {
  GceFailure failure = GceFailure::kOther;
  std::string code;     // "quotaExceeded", "ZONE_RESOURCE_POOL_EXHAUSTED"; empty: none was told.
  std::string message;  // In Google's words.
};

// What was asked when it came, for people: "bulkInsert of n1-standard-4 in us-central1".
struct GceQuestion {
  std::string action;
  std::string permission;  // That it needs.
};

// Of a reply that is no success; also of one that is no JSON.
[[nodiscard]] GceError ReadGceError(const HttpReply& reply);
// Of an operation that is done: the first of its errors, those of capacity last. `code` is empty if
// there is none. `operation`: JSON.
[[nodiscard]] GceError ReadOperationError(const std::string& operation);
// With the cluster file's key, the permission or the quota that it is about.
[[nodiscard]] Error TellGceError(const GceError& error, const GceQuestion& question);

}  // namespace troupe::gce
