#include "autoscaler/notices/notice_watch.h"

#include <algorithm>
#include <set>

namespace troupe::notices {
namespace {

constexpr int kAgainMax = 4;  // A new token, and the question once more; twice.

}  // namespace

NoticeWatch::NoticeWatch(std::unique_ptr<MetadataDialect> dialect, uint64_t seed)
    : dialect_(std::move(dialect)), random_(seed) {}

std::optional<HttpRequest> NoticeWatch::Next(Time now) {
  if (!first_) first_ = now;
  Harden(now);
  while (now >= due_) {
    if (auto request = dialect_->Ask(question_, now)) return request;
    if (++question_ == dialect_->questions()) EndRound(now);
  }
  return std::nullopt;
}

void NoticeWatch::OnReply(Instant now, const Result<HttpReply>& reply) {
  Reading reading;
  if (reply.ok()) {
    reading = dialect_->Read(question_, *reply, now);
  } else {
    reading = {Reading::What::kFailed, {}, reply.error().message};
  }
  if (reading.what == Reading::What::kAgain) {
    if (++again_ < kAgainMax) return;
    reading = {Reading::What::kFailed, {}, "it refuses the tokens that it gives"};
  }
  again_ = 0;
  if (reading.what == Reading::What::kRead) {
    Take(now.now, reading.notices);
  } else {
    failed_ = true;
    throttled_ = throttled_ || reading.what == Reading::What::kThrottled;
    trouble_ = reading.trouble;
  }
  // One that does not answer at all is not asked more.
  if (++question_ == dialect_->questions() || !reply.ok()) EndRound(now.now);
  Harden(now.now);
}

void NoticeWatch::EndRound(Time now) {
  using What = NoticeChange::What;
  question_ = 0;
  Duration pause = dialect_->interval();
  if (std::exchange(failed_, false)) {
    failures_ = std::min(failures_ + 1, 1000);
    const int doubled = std::exchange(throttled_, false) ? failures_ : failures_ - kTroubleFrom;
    for (int i = 0; i < doubled && pause < kBackOffMax; ++i) pause *= 2;
    pause = std::min(pause, std::max(kBackOffMax, dialect_->interval()));
    const bool expected = first_ && now < *first_ + dialect_->patience();
    if (failures_ >= kTroubleFrom && !troubled_ && !expected) {
      troubled_ = true;
      changes_.push_back({What::kTrouble, {}, trouble_});
    }
  } else {
    failures_ = 0;
    if (std::exchange(troubled_, false)) changes_.push_back({What::kTroubleOver});
  }
  due_ = now + Jittered(pause);
}

Duration NoticeWatch::Jittered(Duration pause) {
  const int64_t tenth = pause.count() / 10;
  std::uniform_int_distribution<int64_t> spread(-tenth, tenth);
  return pause + Duration(spread(random_));
}

void NoticeWatch::Tell(NoticeChange::What what, const Known& known) {
  changes_.push_back({what, known.notice.kind, known.notice.text, known.deadline, known.hard});
}

// What the question's answer has, and what it has no longer.
void NoticeWatch::Take(Time now, const std::vector<FoundNotice>& notices) {
  std::set<std::string> seen;
  for (const FoundNotice& notice : notices) {
    if (known_.size() >= kNoticesMax && !known_.contains(notice.id)) continue;
    seen.insert(notice.id);
    const Time deadline = notice.left == kNotKnown ? Time::Never() : now + notice.left;
    const auto [it, fresh] = known_.try_emplace(notice.id, Known{notice, question_, deadline});
    Known& known = it->second;
    if (fresh && DrainAt(known) > now) Tell(NoticeChange::What::kSoft, known);
    if (fresh || known.notice.when == notice.when) continue;  // A clock may have moved, not it.
    const Time before = known.deadline;
    known.notice = notice;
    known.deadline = known.hard ? std::min(before, deadline) : deadline;
    if (known.hard && known.deadline < before) Tell(NoticeChange::What::kHard, known);
  }
  for (auto it = known_.begin(); it != known_.end();) {
    if (it->second.question != question_ || seen.contains(it->first)) {
      ++it;
      continue;
    }
    Tell(NoticeChange::What::kWithdrawn, it->second);
    it = known_.erase(it);
  }
}

Time NoticeWatch::DrainAt(const Known& known) {
  const Duration before = known.notice.drain_before;
  if (before == kAtOnce) return Time{};
  if (before == Duration::zero() || known.deadline == Time::Never()) return Time::Never();
  return known.deadline - before;
}

void NoticeWatch::Harden(Time now) {
  for (auto& [id, known] : known_) {
    if (known.hard || DrainAt(known) > now) continue;
    known.hard = true;
    Tell(NoticeChange::What::kHard, known);
  }
}

Time NoticeWatch::next_wake() const {
  Time wake = due_;
  for (const auto& [id, known] : known_) {
    if (!known.hard) wake = std::min(wake, DrainAt(known));
  }
  return wake;
}

}  // namespace troupe::notices
