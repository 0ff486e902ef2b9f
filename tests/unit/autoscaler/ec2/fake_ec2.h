// An EC2 that answers what a test has it answer, and the seams of who asks it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autoscaler/ec2/aws_identity.h"
#include "autoscaler/ec2/ec2_caller.h"

namespace troupe::ec2::tests {

inline HttpReply Refusal(int status, const std::string& code, const std::string& message = "no") {
  return {status,
          {{"date", "Fri, 02 Jan 2026 03:04:05 GMT"}},
          "<Response><Errors><Error><Code>" + code + "</Code><Message>" + message +
              "</Message></Error></Errors><RequestID>r</RequestID></Response>"};
}

inline HttpReply Success(const std::string& action, const std::string& inside = "") {
  return {200, {}, "<" + action + "Response>" + inside + "</" + action + "Response>"};
}

inline AwsWorld WorldWithKeys() {
  AwsWorld world;
  world.variable = [](const std::string& name) -> std::optional<std::string> {
    if (name == "AWS_ACCESS_KEY_ID") return "AK";
    if (name == "AWS_SECRET_ACCESS_KEY") return "SK";
    if (name == "AWS_REGION") return "us-east-1";
    return std::nullopt;
  };
  world.read = [](const std::string&) { return std::nullopt; };
  world.run = [](const std::string&) -> Result<std::string> {
    return Error{ErrorCode::kInternal, "nothing is run here"};
  };
  world.wall_s = [] { return int64_t{1'767'323'045}; };
  return world;
}

class FakeEc2 {
 public:
  // The next answers to an action, in turn; the last one stays. Without any: success, with nothing.
  void Answers(const std::string& action, std::deque<Result<HttpReply>> replies) {
    replies_[action] = std::move(replies);
  }

  Result<HttpReply> operator()(const HttpRequest& request) {
    requests.push_back(request);
    const size_t from = std::string("Action=").size();
    const std::string action = request.body.substr(from, request.body.find('&') - from);
    actions.push_back(action);
    auto& replies = replies_[action];
    if (replies.empty()) return Success(action);
    const Result<HttpReply> reply = replies.front();
    if (replies.size() > 1) replies.pop_front();
    return reply;
  }

  // With a clock that only pauses move.
  Ec2Seams Seams() {
    Ec2Seams seams;
    seams.send = [this](const HttpRequest& request) { return (*this)(request); };
    seams.pause = [this](Duration span) {
      pauses.push_back(span);
      clock.Advance(span);
      return !cancelled;
    };
    seams.wanted = [this] { return wanted; };
    seams.clock = &clock;
    seams.random = [] { return 1.0; };
    return seams;
  }

  FakeClock clock;
  bool cancelled = false;
  bool wanted = true;
  std::vector<HttpRequest> requests;
  std::vector<std::string> actions;
  std::vector<Duration> pauses;

 private:
  std::map<std::string, std::deque<Result<HttpReply>>> replies_;
};

}  // namespace troupe::ec2::tests
