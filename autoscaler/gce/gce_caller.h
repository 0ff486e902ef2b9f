// Asks Compute Engine until it answers, its patience is over, or nobody waits any more.
//
// Thread: one of RequestLanes.
// Limits: each request has a time limit, all of them together another one.
#pragma once

#include <optional>
#include <string>

#include "autoscaler/gce/gce_errors.h"
#include "autoscaler/gce/gce_identity.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::gce {

inline constexpr int kGceTriesMax = 4;  // Of what fails otherwise than by throttling.
inline constexpr Duration kGcePauseMin = milliseconds(500);
inline constexpr Duration kGcePauseMax = seconds(20);
inline constexpr size_t kGceReplyMax = size_t{32} << 20;

struct GceAsk {
  GceQuestion question;
  std::string method = "GET";
  std::string path;  // Behind "/compute/v1/projects/PROJECT/".
  std::string query = {};
  std::string body = {};
  Duration longer = {};  // Than other requests it may take: it waits for something.
};

struct GceAnswer {
  std::string body = {};                           // If it is neither of these.
  std::optional<GceError> refused = std::nullopt;  // Google's own word.
  std::optional<Error> failed = std::nullopt;      // There was no such answer.

  [[nodiscard]] bool ok() const { return !refused && !failed; }
  [[nodiscard]] bool Is(GceFailure failure) const { return refused && refused->failure == failure; }
  // Of one that is not ok.
  [[nodiscard]] Error Tell(const GceQuestion& question) const;
};

class GceCaller {
 public:
  GceCaller(GceIdentity* identity, RequestSeams seams, Duration limit)
      : identity_(identity), seams_(std::move(seams)), limit_(limit) {}

  // A repetition that was asked for before is the same to Google: `query` has its requestId.
  GceAnswer Call(const GceAsk& ask, Time until);
  [[nodiscard]] Time Now() const { return seams_.clock->Now(); }
  [[nodiscard]] Time Until() const { return Now() + limit_; }

 private:
  GceAnswer Ask(const GceAsk& ask, Time until, const GceSession& session);

  GceIdentity* const identity_;
  const RequestSeams seams_;
  const Duration limit_;
};

}  // namespace troupe::gce
