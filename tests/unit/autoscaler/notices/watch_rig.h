// A rig: a NoticeWatch whose questions a test answers, with a clock that it moves.
//
// Thread: one. Limits: none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autoscaler/notices/notice_watch.h"

namespace troupe::notices::testing {

// 2026-01-01T00:00:00Z.
inline constexpr int64_t kYear2026 = 1767225600;

class WatchRig {
 public:
  using Answer = std::function<Result<HttpReply>(const HttpRequest&)>;

  explicit WatchRig(const std::string& cloud) : watch_(MakeDialect(cloud), 7) {}

  [[nodiscard]] Instant now() const { return {now_, wall_s_}; }
  void Pass(Duration d) {
    now_ = now_ + d;
    wall_s_ += d / seconds(1);
  }
  void MoveWallClock(int64_t by_s) { wall_s_ += by_s; }
  // Asks and answers what is due; how many questions that were.
  int Settle() {
    int asked = 0;
    for (auto request = watch_.Next(now_); request && asked < 100; request = watch_.Next(now_)) {
      asked_.push_back(*request);
      ++asked;
      watch_.OnReply(now(), answer_(*request));
    }
    for (NoticeChange& change : watch_.TakeChanges()) changes_.push_back(std::move(change));
    return asked;
  }
  // As a node does it: sleeps until the watch has something to do.
  void Run(Duration span) {
    const Time end = now_ + span;
    Settle();
    while (watch_.next_wake() <= end) {
      Pass(std::max<Duration>(watch_.next_wake() - now_, milliseconds(1)));
      Settle();
    }
    Pass(end - now_);
  }
  [[nodiscard]] std::vector<NoticeChange> Of(NoticeChange::What what) const {
    std::vector<NoticeChange> found;
    for (const NoticeChange& change : changes_) {
      if (change.what == what) found.push_back(change);
    }
    return found;
  }

  Answer answer_;
  std::vector<HttpRequest> asked_;
  std::vector<NoticeChange> changes_;
  NoticeWatch watch_;

 private:
  Time now_{1'000'000'000'000};
  int64_t wall_s_ = kYear2026;
};

// What a service has at which path; 404 for the rest. Answers tokens as AWS does.
struct Site {
  std::map<std::string, HttpReply> at;
  Result<HttpReply> operator()(const HttpRequest& request) const {
    if (request.method == "PUT")
      return HttpReply{200, {{"x-aws-ec2-metadata-token-ttl-seconds", "3600"}}, "token"};
    const auto found = at.find(request.url.substr(0, request.url.find('?')));
    return found == at.end() ? HttpReply{404} : found->second;
  }
};

}  // namespace troupe::notices::testing
