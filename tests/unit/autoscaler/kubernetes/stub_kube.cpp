#include "tests/unit/autoscaler/kubernetes/stub_kube.h"

namespace troupe::kubernetes::tests {

void StubKube::Fail(const std::string& what, Fault fault) {
  const std::lock_guard lock(mu_);
  faults_[what].push_back(fault);
}

void StubKube::Update(const std::string& name, const StubJson& patch) {
  const std::lock_guard lock(mu_);
  if (!pods_.contains(name)) return;
  pods_[name].merge_patch(patch);
  Tell("MODIFIED", name);
}

void StubKube::Run(const std::string& name) {
  Update(name, {{"spec", {{"nodeName", "n"}}},
                {"status",
                 {{"phase", "Running"},
                  {"containerStatuses",
                   {{{"name", "troupe"}, {"state", {{"running", StubJson::object()}}}}}}}}});
}

void StubKube::Say(const std::string& line) {
  const std::lock_guard lock(mu_);
  lines_.push_back(line);
  changed_.notify_all();
}

void StubKube::Down(bool down) {
  const std::lock_guard lock(mu_);
  down_ = down;
  changed_.notify_all();
}

void StubKube::Remove(const std::string& name) {
  const std::lock_guard lock(mu_);
  Tell("DELETED", name);
  pods_.erase(name);
}

bool StubKube::Await(const std::string& what, size_t count) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, seconds(30), [&] { return CountOf(what) >= count; });
}

bool StubKube::AwaitHeard() {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, seconds(30),
                           [&] { return watching_ && !saying_ && lines_.empty(); });
}

size_t StubKube::Count(const std::string& what) {
  const std::lock_guard lock(mu_);
  return CountOf(what);
}

std::vector<HttpRequest> StubKube::asked() {
  const std::lock_guard lock(mu_);
  return asked_;
}

Result<HttpReply> StubKube::Answer(const HttpRequest& request) {
  const std::lock_guard lock(mu_);
  asked_.push_back(request);
  changed_.notify_all();
  if (down_) return Error{ErrorCode::kUnavailable, "nobody is there"};
  auto& faults = faults_[What(request)];
  if (faults.empty()) return Do(request);
  const Fault fault = faults.front();
  faults.pop_front();
  if (fault == Fault::kLost) (void)Do(request);
  switch (fault) {
    case Fault::kThrottle:
      return Reply(429, "Too many requests, please try again later.\n");
    case Fault::kServer:
      return Status(500, "InternalError", "broken");
    case Fault::kForbidden:
      return Status(403, "Forbidden", "User \"u\" cannot create resource");
    case Fault::kUnauthorized:
      return Status(401, "Unauthorized", "Unauthorized");
    default:
      return Error{ErrorCode::kPeerGone, "the connection broke"};
  }
}

Result<HttpReply> StubKube::Stream(const HttpRequest& request, const HttpStream& stream,
                                   const bool& cancelled) {
  std::unique_lock lock(mu_);
  asked_.push_back(request);
  changed_.notify_all();
  const bool pods = request.url.find("/pods?") != std::string::npos;
  if (!down_ && stream.begun) stream.begun();
  for (;;) {
    watching_ = watching_ || pods;
    changed_.notify_all();
    changed_.wait_for(lock, seconds(30),
                      [&] { return cancelled || down_ || (pods && !lines_.empty()); });
    if (cancelled) return Error{ErrorCode::kCancelled, "cancelled"};
    if (down_) return Error{ErrorCode::kUnavailable, "nobody is there"};
    if (!pods || lines_.empty()) return Error{ErrorCode::kCancelled, "cancelled"};
    const std::string line = std::exchange(lines_.front(), "");
    lines_.pop_front();
    if (line == "cut") return Error{ErrorCode::kPeerGone, "the connection broke"};
    saying_ = true;
    lock.unlock();
    const bool more = stream.line(line);
    lock.lock();
    saying_ = false;
    changed_.notify_all();
    if (!more) return Reply(200, "");
  }
}

void StubKube::Cancel(bool& cancelled) {
  const std::lock_guard lock(mu_);
  cancelled = true;
  changed_.notify_all();
}

std::string StubKube::What(const HttpRequest& request) {
  const std::string path = request.url.substr(0, request.url.find('?'));
  const size_t slash = path.rfind('/');
  const bool one = path.find("/pods/") != std::string::npos;
  return request.method + " " + (one ? "pod" : path.substr(slash + 1));
}

size_t StubKube::CountOf(const std::string& what) const {
  size_t count = 0;
  for (const HttpRequest& request : asked_) count += What(request) == what ? 1 : 0;
  return count;
}

HttpReply StubKube::Status(int code, const std::string& reason, const std::string& message) {
  return Reply(
      code, StubJson{{"kind", "Status"}, {"code", code}, {"reason", reason}, {"message", message}}
                .dump());
}

void StubKube::Tell(const std::string& type, const std::string& name) {
  pods_[name]["metadata"]["resourceVersion"] = std::to_string(++version_);
  lines_.push_back(StubJson{{"type", type}, {"object", pods_[name]}}.dump());
  changed_.notify_all();
}

HttpReply StubKube::Do(const HttpRequest& request) {
  const std::string what = What(request);
  const std::string path = request.url.substr(0, request.url.find('?'));
  const std::string name = path.substr(path.rfind('/') + 1);
  if (what == "POST pods") return Create(StubJson::parse(request.body));
  if (what == "POST secrets") return Reply(201, "{}");
  if (what == "GET pod") return Reply(200, name == "log" ? "no\ndisk\n" : pods_[name].dump());
  if (what == "DELETE pod") {
    if (!pods_.contains(name)) return Status(404, "NotFound", "not found");
    Tell("DELETED", name);
    pods_.erase(name);
    return Reply(200, "{}");
  }
  StubJson list{{"kind", what == "GET pods" ? "PodList" : "NodeList"},
                {"metadata", {{"resourceVersion", std::to_string(version_)}}},
                {"items", StubJson::array()}};
  if (what == "GET pods") {
    for (const auto& [one, pod] : pods_) list["items"].push_back(pod);
    lines_.clear();  // The list has all of it.
  }
  return Reply(200, list.dump());
}

HttpReply StubKube::Create(StubJson pod) {
  const std::string name = pod["metadata"]["name"];
  if (pods_.contains(name)) return Status(409, "AlreadyExists", "exists");
  pod["metadata"]["uid"] = "uid-" + std::to_string(++version_);
  pods_[name] = std::move(pod);
  Tell("ADDED", name);
  return Reply(201, pods_[name].dump());
}

}  // namespace troupe::kubernetes::tests
