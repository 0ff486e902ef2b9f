#include "autoscaler/kubernetes/kube_caller.h"

#include <algorithm>

namespace troupe::kubernetes {
Duration KubePause(int tries, double random) {
  return RequestPause(tries, kKubePauseMin, kKubePauseMax, random);
}

std::string Escaped(const std::string& text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      escaped += c;
    } else {
      escaped += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return escaped;
}

HttpRequest KubeRequest(const KubeSession& session, const KubeAsk& ask) {
  HttpRequest request;
  request.method = ask.method;
  const std::string& in = ask.question.kube_namespace;
  request.url = session.server + "/api/v1/" + (in.empty() ? "" : "namespaces/" + in + "/") +
                ask.path + (ask.query.empty() ? "" : "?" + ask.query);
  request.body = ask.body;
  request.headers = {{"Accept", "application/json"}};
  if (!ask.body.empty()) request.headers.emplace_back("Content-Type", "application/json");
  if (!session.token.empty())
    request.headers.emplace_back("Authorization", "Bearer " + session.token);
  if (!session.impersonate.empty())
    request.headers.emplace_back("Impersonate-User", session.impersonate);
  request.tls = session.tls;
  request.proxy = session.proxy;
  request.bytes_max = kKubeReplyMax;
  return request;
}

Error KubeAnswer::Tell(const KubeQuestion& question) const {
  if (refused) return TellKubeError(*refused, question);
  if (!failed) return {ErrorCode::kInternal, "Kubernetes has answered"};
  return failed->WithContext(question.verb + " " + question.resource);
}

KubeAnswer KubeCaller::Ask(const KubeAsk& ask, Time until, const KubeSession& session) {
  KubeAnswer answer;
  HttpRequest request = KubeRequest(session, ask);
  request.limit = RequestLimit(limit_, until - Now());
  Result<HttpReply> sent = seams_.send(request);
  if (!sent.ok()) {
    answer.failed = sent.error().WithContext(session.server);
  } else if (sent->status < 200 || sent->status > 299) {
    answer.refused = ReadKubeError(*sent);
  } else {
    answer.body = std::move(sent->body);
  }
  return answer;
}

KubeAnswer KubeCaller::Call(const KubeAsk& ask, Time until) {
  int tries = 0;      // Of those that count.
  int throttles = 0;  // In a row.
  bool renewed = false;
  bool again = false;
  for (;;) {
    KubeAnswer answer;
    const Result<KubeSession> session = identity_->Session();
    if (!session.ok()) {
      answer.failed = session.error();
      return answer;
    }
    answer = Ask(ask, until, *session);
    answer.again = again;
    if (answer.ok()) return answer;
    if (answer.Is(KubeFailure::kUnauthorized) && !renewed) {
      renewed = true;
      identity_->Forget(*session);
      continue;
    }
    const bool throttled = answer.Is(KubeFailure::kThrottled);
    // One that says when is only busy.
    const bool busy = throttled || (answer.refused && answer.refused->retry_after);
    if (answer.refused && !busy && !answer.Is(KubeFailure::kServer)) return answer;
    if (answer.failed && (answer.failed->code == ErrorCode::kInvalidArgument ||
                          answer.failed->code == ErrorCode::kCancelled))
      return answer;
    again = again || !throttled;
    throttles = busy ? throttles + 1 : 0;
    tries += busy ? 0 : 1;
    Duration pause = KubePause(busy ? throttles : tries, seams_.random());
    if (answer.refused && answer.refused->retry_after)
      pause = *answer.refused->retry_after + KubePause(1, seams_.random());
    if (tries >= kKubeTriesMax || Now() + pause >= until) return answer;
    if (busy && !seams_.wanted()) return answer;
    if (!seams_.pause(pause)) {
      answer = {};
      answer.failed = Error{ErrorCode::kCancelled, "cancelled"};
      return answer;
    }
  }
}

}  // namespace troupe::kubernetes
