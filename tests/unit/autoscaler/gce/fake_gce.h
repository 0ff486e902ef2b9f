// A Google that answers what a test has it answer, and the seams of who asks it.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/gce/gce_identity.h"
#include "autoscaler/request_lanes.h"
#include "runtime/clock.h"

namespace troupe::gce::tests {

class FakeGce {
 public:
  // The next answers to requests whose URL holds `part`, in turn; the last one stays.
  void Answers(const std::string& part, std::deque<Result<HttpReply>> replies) {
    replies_.emplace_back(part, std::move(replies));
  }
  Result<HttpReply> operator()(const HttpRequest& request) {
    requests.push_back(request);
    for (auto& [part, replies] : replies_) {
      if (request.url.find(part) == std::string::npos) continue;
      const Result<HttpReply> reply = replies.front();
      if (replies.size() > 1) replies.pop_front();
      return reply;
    }
    return Error{ErrorCode::kUnavailable, "nobody is there"};
  }
  GceSend Send() {
    return [this](const HttpRequest& request) { return (*this)(request); };
  }
  // With a clock that only pauses move.
  RequestSeams Seams() {
    RequestSeams seams;
    seams.send = Send();
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
  [[nodiscard]] size_t Count(const std::string& part) const {
    size_t count = 0;
    for (const HttpRequest& one : requests)
      count += one.url.find(part) != std::string::npos ? 1 : 0;
    return count;
  }
  [[nodiscard]] std::string Bearer(size_t i) const {
    for (const auto& [name, value] : requests.at(i).headers) {
      if (name == "Authorization") return value;
    }
    return "";
  }

  FakeClock clock;
  bool cancelled = false;
  bool wanted = true;
  std::vector<HttpRequest> requests;
  std::vector<Duration> pauses;

 private:
  std::vector<std::pair<std::string, std::deque<Result<HttpReply>>>> replies_;
};

inline HttpReply Says(const std::string& body, int status = 200) {
  return {status, {{"metadata-flavor", "Google"}}, body};
}
inline HttpReply Refuses(int status, const std::string& reason, const std::string& message = "no") {
  return Says(R"({"error": {"code": )" + std::to_string(status) + R"(, "message": ")" + message +
                  R"(", "errors": [{"message": ")" + message + R"(", "reason": ")" + reason +
                  R"("}]}})",
              status);
}

// Variables and files of a world; its clock is at 1000 s.
struct FakeWorld {
  std::map<std::string, std::string> variables, files;
  int64_t wall_s = 1000;

  GceWorld World() {
    GceWorld world;
    const auto look = [](const std::map<std::string, std::string>& in,
                         const std::string& name) -> std::optional<std::string> {
      const auto found = in.find(name);
      return found == in.end() ? std::nullopt : std::optional(found->second);
    };
    world.variable = [this, look](const std::string& name) { return look(variables, name); };
    world.read = [this, look](const std::string& path) { return look(files, path); };
    world.wall_s = [this] { return wall_s; };
    return world;
  }
};
inline constexpr const char* kUser =
    R"({"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r",
        "token_uri": "https://o/token", "quota_project_id": "p1"})";

}  // namespace troupe::gce::tests
