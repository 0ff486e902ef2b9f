#include "autoscaler/ec2/ec2_caller.h"

#include <algorithm>
#include <cstdlib>

#include "autoscaler/cloud_text.h"
#include "autoscaler/notices/notice.h"

namespace troupe::ec2 {
namespace {

constexpr int64_t kClockOff_s = 60;

std::optional<int64_t> TimeOf(const HttpReply& reply) {
  const auto date = reply.headers.find("date");
  return date == reply.headers.end() ? std::nullopt : notices::ParseHttpTime(date->second);
}

bool IsOfCredentials(const Ec2Error& error) {
  return error.code == "AuthFailure" || error.code == "InvalidClientTokenId" ||
         error.code == "UnrecognizedClientException";
}

}  // namespace

Duration Ec2Pause(int tries, double random) {
  return RequestPause(tries, kEc2PauseMin, kEc2PauseMax, random);
}

Error Ec2Answer::Tell(const Ec2Question& question) const {
  if (refused) return TellEc2Error(*refused, question);
  return failed ? failed->WithContext(question.action)
                : Error{ErrorCode::kInternal, "EC2 has answered"};
}

Ec2Patience Ec2Caller::Patience(Duration throttled) const {
  const Time now = Now();
  return {now + limit_, now + std::max(limit_, throttled)};
}

Ec2Answer Ec2Caller::Ask(const AwsParameters& parameters, Time until,
                         const AwsCredentials& credentials) {
  Ec2Answer answer;
  const Result<std::string> region = identity_->Region(seams_.send);
  if (!region.ok()) {
    answer.failed = region.error();
    return answer;
  }
  const std::string url = identity_->Endpoint(*region);
  HttpRequest request = SignedPost(url, "ec2", *region, credentials, parameters);
  request.limit = RequestLimit(limit_, until - Now());
  request.bytes_max = kEc2ReplyMax;
  const Result<HttpReply> sent = seams_.send(request);
  if (!sent.ok()) {
    answer.failed = sent.error().WithContext(url);
    return answer;
  }
  const HttpReply& reply = *sent;
  if (reply.status != 200) {
    answer.refused = ReadEc2Error(reply);
    // A signature is good for five minutes around its time, which is this host's.
    const int64_t off_s = TimeOf(reply).value_or(identity_->Wall_s()) - identity_->Wall_s();
    if (std::abs(off_s) > kClockOff_s && answer.refused->failure == Ec2Failure::kStale)
      answer.refused->message += " (this host's clock is " + std::to_string(std::abs(off_s)) +
                                 " s " + (off_s > 0 ? "behind" : "ahead of") + " EC2's)";
    return answer;
  }
  Result<XmlElement> xml = ParseXml(reply.body);
  const std::string wanted = parameters.front().second + "Response";
  if (!xml.ok()) {
    answer.failed = xml.error().WithContext(url);
  } else if (xml->name != wanted) {
    answer.failed = Error{ErrorCode::kCorrupt, url + ": its answer is no " + wanted + ", but \"" +
                                                   Printable(xml->name, 60) + "\""};
  } else {
    answer.xml = std::move(xml).value();
    answer.wall_s = TimeOf(reply).value_or(identity_->Wall_s());
  }
  return answer;
}

Ec2Answer Ec2Caller::Call(const AwsParameters& parameters, const Ec2Patience& patience) {
  int tries = 0;      // Of those that count.
  int throttles = 0;  // In a row.
  bool renewed = false;
  for (;;) {
    Ec2Answer answer;
    const Result<AwsCredentials> credentials = identity_->Credentials(seams_.send);
    if (!credentials.ok()) {
      answer.failed = credentials.error();
      return answer;
    }
    const Time until = throttles > 0 ? patience.throttled_until : patience.until;
    answer = Ask(parameters, until, *credentials);
    if (answer.ok()) return answer;
    const bool throttled = answer.refused && answer.refused->failure == Ec2Failure::kThrottled;
    if (answer.refused && !throttled) {
      const bool stale = answer.refused->failure == Ec2Failure::kStale ||
                         (IsOfCredentials(*answer.refused) && credentials->expires_s);
      if (stale && !renewed) {
        renewed = true;
        identity_->Forget(*credentials);
        continue;
      }
      if (answer.refused->failure != Ec2Failure::kServer) return answer;
    }
    if (answer.failed && (answer.failed->code == ErrorCode::kInvalidArgument ||
                          answer.failed->code == ErrorCode::kCancelled))
      return answer;
    throttles = throttled ? throttles + 1 : 0;
    tries += throttled ? 0 : 1;
    const Duration pause = Ec2Pause(throttled ? throttles : tries, seams_.random());
    const Time last = throttled ? patience.throttled_until : patience.until;
    if (tries >= kEc2TriesMax || Now() + pause >= last) return answer;
    if (throttled && !seams_.wanted()) return answer;
    if (!seams_.pause(pause)) {
      answer = {};
      answer.failed = Error{ErrorCode::kCancelled, "cancelled"};
      return answer;
    }
  }
}

}  // namespace troupe::ec2
