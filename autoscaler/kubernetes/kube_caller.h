// Asks the API one thing and waits for the answer, through throttling, hiccups and credentials that
// have changed.
//
// Whatever is asked here may be asked twice: what makes something has a name of its own.
// Thread: one at a time, which waits; the identity may be shared.
// Limits: each request has a time limit, all of them together another one.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "autoscaler/kubernetes/kube_errors.h"
#include "autoscaler/kubernetes/kube_identity.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::kubernetes {

inline constexpr int kKubeTriesMax = 5;  // Of what fails otherwise than by throttling.
inline constexpr Duration kKubePauseMin = milliseconds(250);
inline constexpr Duration kKubePauseMax = seconds(20);
inline constexpr size_t kKubeReplyMax = size_t{64} << 20;

struct KubeAsk {
  KubeQuestion question = {};
  std::string method = "GET";
  // Behind "/api/v1/": of the session's namespace, or of the cluster if `question` has none.
  std::string path = {};
  std::string query = {};  // "limit=500".
  std::string body = {};
};

struct KubeAnswer {
  std::string body = {};                            // If it is neither of these.
  std::optional<KubeError> refused = std::nullopt;  // The API's own word.
  std::optional<Error> failed = std::nullopt;       // There was no such answer.
  bool again = false;  // It was asked before, and what came of that is not known.

  [[nodiscard]] bool ok() const { return !refused && !failed; }
  [[nodiscard]] bool Is(KubeFailure failure) const {
    return refused && refused->failure == failure;
  }
  // Of one that is not ok.
  [[nodiscard]] Error Tell(const KubeQuestion& question) const;
};

// See RequestPause.
[[nodiscard]] Duration KubePause(int tries, double random);
[[nodiscard]] HttpRequest KubeRequest(const KubeSession& session, const KubeAsk& ask);
// As in a URL.
[[nodiscard]] std::string Escaped(const std::string& text);

class KubeCaller {
 public:
  KubeCaller(KubeIdentity* identity, RequestSeams seams, Duration limit)
      : identity_(identity), seams_(std::move(seams)), limit_(limit) {}

  // `limit`: of all requests together.
  KubeAnswer Call(const KubeAsk& ask, Time until);
  KubeAnswer Call(const KubeAsk& ask) { return Call(ask, Now() + limit_); }
  [[nodiscard]] Time Now() const { return seams_.clock->Now(); }
  [[nodiscard]] const RequestSeams& seams() const { return seams_; }
  [[nodiscard]] KubeIdentity& identity() const { return *identity_; }
  [[nodiscard]] Duration limit() const { return limit_; }

 private:
  KubeAnswer Ask(const KubeAsk& ask, Time until, const KubeSession& session);

  KubeIdentity* const identity_;
  const RequestSeams seams_;
  const Duration limit_;
};

}  // namespace troupe::kubernetes
