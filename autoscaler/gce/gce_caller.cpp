#include "autoscaler/gce/gce_caller.h"

#include <utility>

#include "autoscaler/internal/read_json.h"

namespace troupe::gce {

Error GceAnswer::Tell(const GceQuestion& question) const {
  if (refused) return TellGceError(*refused, question);
  return failed ? failed->WithContext(question.action)
                : Error{ErrorCode::kInternal, "Compute Engine has answered"};
}

GceAnswer GceCaller::Ask(const GceAsk& ask, Time until, const GceSession& session) {
  GceAnswer answer;
  HttpRequest request;
  request.method = ask.method;
  request.url = session.endpoint + "/compute/v1/projects/" + session.project + "/" + ask.path +
                (ask.query.empty() ? "" : "?" + ask.query);
  request.headers = {{"Authorization", "Bearer " + session.token}};
  if (ask.method == "POST") request.headers.emplace_back("Content-Type", "application/json");
  request.body = ask.body;
  request.limit = RequestLimit(limit_ + ask.longer, until - Now());
  request.bytes_max = kGceReplyMax;
  Result<HttpReply> sent = seams_.send(request);
  if (!sent.ok()) {
    answer.failed = sent.error().WithContext(session.endpoint);
  } else if (sent->status < 200 || sent->status > 299) {
    answer.refused = ReadGceError(*sent);
  } else if (!ParseJson(sent->body).is_object()) {
    answer.failed = Error{ErrorCode::kCorrupt, session.endpoint + ": its answer is no JSON object"};
  } else {
    answer.body = std::move(sent->body);
  }
  return answer;
}

GceAnswer GceCaller::Call(const GceAsk& ask, Time until) {
  int tries = 0;      // Of those that count.
  int throttles = 0;  // In a row.
  bool renewed = false;
  for (;;) {
    GceAnswer answer;
    const Result<GceSession> session = identity_->Session(seams_.send);
    if (!session.ok()) {
      answer.failed = session.error();
      if (session.error().code != ErrorCode::kUnavailable &&
          session.error().code != ErrorCode::kDeadlineExceeded)
        return answer;
    } else {
      answer = Ask(ask, until, *session);
    }
    if (answer.ok()) return answer;
    if (answer.Is(GceFailure::kUnauthorized) && !renewed) {
      renewed = true;
      identity_->Forget(session->token);
      continue;
    }
    const bool throttled = answer.Is(GceFailure::kThrottled);
    if (answer.refused && !throttled && !answer.Is(GceFailure::kServer)) return answer;
    if (answer.failed && (answer.failed->code == ErrorCode::kInvalidArgument ||
                          answer.failed->code == ErrorCode::kCancelled))
      return answer;
    throttles = throttled ? throttles + 1 : 0;
    tries += throttled ? 0 : 1;
    const Duration pause =
        RequestPause(throttled ? throttles : tries, kGcePauseMin, kGcePauseMax, seams_.random());
    if (tries >= kGceTriesMax || Now() + pause >= until) return answer;
    if (throttled && !seams_.wanted()) return answer;
    if (!seams_.pause(pause)) {
      answer = {};
      answer.failed = Error{ErrorCode::kCancelled, "cancelled"};
      return answer;
    }
  }
}

}  // namespace troupe::gce
