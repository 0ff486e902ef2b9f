// Errors of the runtime: a closed set of codes and a sentence for people.
//
// A code says who may retry; the message says what happened, to whom, and what to do next. Values
// cross process boundaries as (code, message), so codes are never renumbered.
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

enum class ErrorCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     // The caller gave something unusable; never retry unchanged.
  kNotFound = 2,            // No such thing; retry only if it may still appear.
  kAlreadyExists = 3,       // The name or key is taken.
  kDeadlineExceeded = 4,    // Not done in time; outcome unknown, retry only what is idempotent.
  kCancelled = 5,           // The caller withdrew the request.
  kUnavailable = 6,         // A peer or store is out of reach; retry with back-off.
  kBackpressure = 7,        // A bounded queue is full; retry later.
  kPeerGone = 8,            // The peer process is dead; retry with a new incarnation.
  kEpochChanged = 9,        // The group left this epoch; retry in the next one.
  kConflict = 10,           // A compare-and-set lost; re-read and decide again.
  kCorrupt = 11,            // Bytes that no correct peer sends; drop the connection.
  kPermissionDenied = 12,   // Not authenticated or not allowed.
  kResourceExhausted = 13,  // A limit, quota, disk or memory is used up.
  kUserError = 14,          // The user's code raised; the message carries its traceback.
  kDrained = 15,            // This member was asked to leave; end cleanly.
  kFenced = 16,             // This member was declared dead; its results are void.
  kInternal = 17,           // A broken assumption of our own; report it.
  kMismatch = 18,           // Ranks of a group call different collectives; a fault of the program.
};

// The stable lower-case name of a code, as it appears in logs and JSON: "deadline_exceeded".
std::string_view ErrorCodeName(ErrorCode code);

struct Error;

// What is known of an error that came out of somebody's code, perhaps in another process.
struct ErrorOrigin {
  std::string type;                    // Class of what was thrown: "std::invalid_argument".
  std::string actor;                   // In which actor: "Counter 5f0c#1".
  std::string node;                    // On which node.
  std::string traceback;               // Python's, as text.
  std::shared_ptr<const Error> cause;  // What that code had met itself; null: nothing.
};

struct Error {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  std::shared_ptr<const ErrorOrigin> origin = nullptr;  // Null for most.

  // With all its causes: "user_error: no total [Shop 1b2#1]; caused by user_error: ...".
  [[nodiscard]] std::string ToString() const;
  // The same error with a leading "context: ", for callers that know more about what was attempted.
  [[nodiscard]] Error WithContext(std::string_view context) const;
  // What it is due to; null if it is not known to be due to another.
  [[nodiscard]] const Error* cause() const;
};

// Of kInvalidArgument.
[[nodiscard]] Error InvalidArgument(std::string message);

}  // namespace troupe
