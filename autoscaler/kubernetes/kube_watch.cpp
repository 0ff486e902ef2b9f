#include "autoscaler/kubernetes/kube_watch.h"

#include <algorithm>

namespace troupe::kubernetes {
namespace {

constexpr Duration kQuick = seconds(1);  // A watch that is over so soon counts as a failure.
constexpr Duration kWatchOver = seconds(30);
constexpr size_t kEventMax = size_t{4} << 20;

}  // namespace

bool KubeFeed::Push(KubeNews news) {
  const std::lock_guard lock(mu_);
  if (news_.size() >= kKubeNewsMax) {
    news_.clear();
    lost_ = {KubeKind::kPods, KubeKind::kNodes};
  }
  if (news.pods || news.nodes) lost_.erase(news.kind);
  const bool good = !lost_.contains(news.kind);
  if (good || !news.trouble.ok()) news_.push_back(std::move(news));
  return good;
}

std::vector<KubeNews> KubeFeed::Take() {
  const std::lock_guard lock(mu_);
  return std::exchange(news_, {});
}

KubeQuestion KubeWatch::Question(const std::string& in, const char* verb) const {
  return kind_ == KubeKind::kPods ? KubeQuestion{verb, "pods", in}
                                  : KubeQuestion{verb, "nodes", ""};
}

// Which page is next; empty: it was the last.
Result<std::string> KubeWatch::ListPage(const std::string& in, const std::string& next,
                                        KubeNews& news) {
  KubeAsk ask;
  ask.question = Question(in, "list");
  ask.path = ask.question.resource;
  ask.query = "limit=" + std::to_string(kKubePage);
  if (kind_ == KubeKind::kPods) ask.query += "&" + PodSelector(options_->cluster);
  if (!next.empty()) ask.query += "&continue=" + Escaped(next);
  const KubeAnswer answer = caller_.Call(ask);
  if (answer.Is(KubeFailure::kGone)) return Error{ErrorCode::kNotFound, "its pages have expired"};
  if (!answer.ok()) return answer.Tell(ask.question);
  const auto take = [&](auto page, auto& all) -> Result<std::string> {
    if (!page.ok()) return page.error();
    if (!all) all.emplace();
    std::ranges::move(page->items, std::back_inserter(all->items));
    all->version = page->version;
    return page->next;
  };
  return kind_ == KubeKind::kPods ? take(ReadPodList(answer.body), news.pods)
                                  : take(ReadNodeList(answer.body), news.nodes);
}

Status KubeWatch::List() {
  const Result<KubeSession> session = caller_.identity().Session();
  if (!session.ok()) return session.error();
  KubeNews news;
  news.kind = kind_;
  std::string next;
  for (size_t page = 0; page < kKubePagesMax; ++page) {
    Result<std::string> after = ListPage(session->kube_namespace, next, news);
    if (!after.ok()) return after.error();
    next = std::move(*after);
    if (!next.empty()) continue;
    version_ = news.pods ? news.pods->version : news.nodes->version;
    if (!feed_->Push(std::move(news))) version_.clear();
    return Status::Ok();
  }
  return Error{ErrorCode::kCorrupt, "the pages of a list do not end"};
}

bool KubeWatch::Take(std::string_view line, Status& over) {
  if (line.empty()) return true;
  Result<KubeEvent> event = ReadEvent(kind_, line);
  if (!event.ok()) {
    over = event.error();
    return false;
  }
  if (event->kind == KubeEvent::Kind::kError) {
    if (event->error->failure == KubeFailure::kGone) version_.clear();
    over = event->error->failure == KubeFailure::kGone
               ? Status::Ok()
               : Status(TellKubeError(*event->error, Question("", "watch")));
    return false;
  }
  if (!event->version.empty()) version_ = event->version;
  KubeNews news;
  news.kind = kind_;
  if (event->kind != KubeEvent::Kind::kBookmark) news.event = std::move(*event);
  if (feed_->Push(std::move(news))) return true;
  version_.clear();
  return false;
}

Status KubeWatch::Refused(const KubeSession& session, const KubeError& error,
                          const std::string& in) {
  if (error.failure == KubeFailure::kUnauthorized) caller_.identity().Forget(session);
  if (error.failure == KubeFailure::kGone) {
    version_.clear();
    return Status::Ok();
  }
  retry_after_ = error.retry_after;
  return TellKubeError(error, Question(in, "watch"));
}

Status KubeWatch::Watch() {
  const Result<KubeSession> session = caller_.identity().Session();
  if (!session.ok()) return session.error();
  const auto lasts = Duration(static_cast<int64_t>(static_cast<double>(kWatchLasts.count()) *
                                                   (0.8 + 0.4 * caller_.seams().random())));
  KubeAsk ask;
  ask.question = Question(session->kube_namespace, "watch");
  ask.path = ask.question.resource;
  ask.query = "watch=1&allowWatchBookmarks=true&resourceVersion=" + Escaped(version_) +
              "&timeoutSeconds=" + std::to_string(static_cast<int64_t>(ToSeconds(lasts)));
  if (kind_ == KubeKind::kPods) ask.query += "&" + PodSelector(options_->cluster);
  HttpRequest request = KubeRequest(*session, ask);
  request.limit = lasts + kWatchOver;
  Status over = Status::Ok();
  HttpStream stream;
  stream.silence = options_->silence;
  stream.line_max = kEventMax;
  stream.line = [&](std::string_view line) { return Take(line, over); };
  // It may be long until something changes: that it goes on is news, too.
  stream.begun = [&] {
    KubeNews news;
    news.kind = kind_;
    if (!feed_->Push(std::move(news))) version_.clear();
  };
  const Result<HttpReply> reply = caller_.seams().stream(request, stream);
  // Whether anybody is there a list will say.
  if (!reply.ok() && reply.error().code == ErrorCode::kDeadlineExceeded) {
    version_.clear();
    return Status::Ok();
  }
  if (!reply.ok()) return reply.error().WithContext("watch " + ask.question.resource);
  if (reply->status != 200)
    return Refused(*session, ReadKubeError(*reply), session->kube_namespace);
  return over;
}

// False: it is cancelled.
bool KubeWatch::Pause(const Status& round, Time begun, int& failures) {
  const bool quick = caller_.Now() - begun < kQuick;
  if (round.ok() && !quick) failures = 0;
  if (!round.ok()) {
    KubeNews news;
    news.kind = kind_;
    news.trouble = round;
    (void)feed_->Push(std::move(news));
  }
  ++failures;
  Duration pause = KubePause(failures, caller_.seams().random());
  if (const auto after = std::exchange(retry_after_, std::nullopt)) pause += *after;
  if (!round.ok() && round.error().code == ErrorCode::kPermissionDenied &&
      kind_ == KubeKind::kNodes)
    pause = kForbiddenPause;
  return caller_.seams().pause(pause);
}

void KubeWatch::Follow() {
  int failures = 0;
  for (;;) {
    const Time begun = caller_.Now();
    const bool lists = version_.empty();
    const Status round = lists ? List() : Watch();
    if (!round.ok() && round.error().code == ErrorCode::kCancelled) return;
    if (lists && round.ok() && !version_.empty()) continue;  // To the watch at once.
    if (!Pause(round, begun, failures)) return;
  }
}

}  // namespace troupe::kubernetes
