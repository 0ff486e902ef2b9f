#include "autoscaler/request_lanes.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "runtime/assert.h"
#include "runtime/thread.h"

namespace troupe {
namespace {

constexpr int kTriesInLimit = 2;
constexpr Duration kAskMin = milliseconds(100);
constexpr Duration kCommandLook = milliseconds(100);
constexpr size_t kCommandLogShown = 300;

class CurlLink final : public HttpLink {
 public:
  explicit CurlLink(std::string ca_file) : ca_file_(std::move(ca_file)) {}
  Result<HttpReply> Send(const HttpRequest& request) override {
    HttpRequest whole = request;
    if (whole.ca_file.empty()) whole.ca_file = ca_file_;
    return client_.Send(whole);
  }
  Result<HttpReply> Stream(const HttpRequest& request, const HttpStream& stream) override {
    HttpRequest whole = request;
    if (whole.ca_file.empty()) whole.ca_file = ca_file_;
    return client_.Stream(whole, stream);
  }
  void Cancel() override { client_.Cancel(); }

 private:
  const std::string ca_file_;
  HttpClient client_;
};

// Its end, on one line.
std::string LogOf(const std::string& log) {
  std::string shown =
      log.size() > kCommandLogShown ? log.substr(log.size() - kCommandLogShown) : log;
  for (char& c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = ' ';
  }
  const size_t end = shown.find_last_not_of(' ');
  return end == std::string::npos ? "" : ": " + shown.substr(0, end + 1);
}

}  // namespace

Duration RequestPause(int tries, Duration least, Duration most, double random) {
  const int doublings = std::clamp(tries - 1, 0, 16);
  const Duration whole = std::min(least * (int64_t{1} << doublings), most);
  const double part = 0.5 + 0.5 * std::clamp(random, 0.0, 1.0);
  return Duration(static_cast<int64_t>(static_cast<double>(whole.count()) * part));
}

Duration RequestLimit(Duration limit, Duration left) {
  return std::clamp(limit / kTriesInLimit, kAskMin, std::max(kAskMin, left));
}

HttpLinkMaker CurlLinks(std::string ca_file) {
  return [ca_file = std::move(ca_file)] { return std::make_unique<CurlLink>(ca_file); };
}

Result<HttpReply> HttpLink::Stream(const HttpRequest&, const HttpStream&) {
  return Error{ErrorCode::kInvalidArgument, "this link tells no lines"};
}

RequestLanes::RequestLanes(RequestLaneOptions options, HttpLinkMaker link, const Clock* clock)
    : options_(std::move(options)), link_(std::move(link)), clock_(clock) {
  for (const size_t threads : options_.threads) lanes_.emplace_back().threads_max = threads;
}

RequestLanes::~RequestLanes() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
    for (HttpLink* link : links_) link->Cancel();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status RequestLanes::Post(size_t to, Task task, std::shared_ptr<const std::atomic<bool>> wanted) {
  {
    const std::lock_guard lock(mu_);
    TROUPE_ASSERT(to < lanes_.size(), "there is such a lane");
    Lane& lane = lanes_[to];
    if (lane.waiting.size() >= options_.waiting_max)
      return Error{ErrorCode::kBackpressure,
                   "too many requests wait for " + options_.name + " to answer"};
    lane.waiting.push_back({std::move(task), std::move(wanted)});
    if (lane.waiting.size() > lane.idle && lane.threads < lane.threads_max) {
      ++lane.threads;
      threads_.emplace_back([this, &lane] { Run(lane); });
    }
  }
  wake_.notify_all();
  return Status::Ok();
}

bool RequestLanes::Step() {
  if (!has_finished_.load()) return false;
  std::vector<Finish> finished;
  {
    const std::lock_guard lock(mu_);
    finished.swap(finished_);
    has_finished_.store(false);
  }
  for (const Finish& finish : finished) finish();  // It may post more.
  return !finished.empty();
}

void RequestLanes::Run(Lane& lane) {
  NameThisThread(options_.name);
  const std::unique_ptr<HttpLink> link = link_();
  std::minstd_rand random(std::random_device{}());
  RequestSeams seams;
  seams.send = [&link](const HttpRequest& request) { return link->Send(request); };
  seams.stream = [&link](const HttpRequest& request, const HttpStream& stream) {
    return link->Stream(request, stream);
  };
  Posted current;
  seams.pause = [&](Duration span) { return Pause(span, current); };
  seams.wanted = [&] { return current.IsWanted(); };
  seams.clock = clock_;
  seams.random = [&random] { return std::uniform_real_distribution<double>(0, 1)(random); };
  std::unique_lock lock(mu_);
  links_.insert(link.get());
  while (!stopping_) {
    if (lane.waiting.empty()) {
      ++lane.idle;
      wake_.wait(lock, [&] { return stopping_ || !lane.waiting.empty(); });
      --lane.idle;
      continue;
    }
    current = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    lock.unlock();
    Finish finish = current.task(seams);
    lock.lock();
    finished_.push_back(std::move(finish));
    has_finished_.store(true);
  }
  links_.erase(link.get());
}

bool RequestLanes::Pause(Duration span, const Posted& of) {
  std::unique_lock lock(mu_);
  const bool wanted = of.IsWanted();
  wake_.wait_for(lock, span, [&] { return stopping_ || of.IsWanted() != wanted; });
  return !stopping_;
}

void RequestLanes::Wake() {
  { const std::lock_guard lock(mu_); }  // Who is about to wait has looked, or will see it.
  wake_.notify_all();
}

Result<std::string> RequestLanes::RunCommand(const ExecCommand& command) {
  Result<RunningCommand> running = RunningCommand::Start(command, "");
  if (!running.ok()) return running.error();
  for (;;) {
    running->Await(kCommandLook);
    if (auto answer = running->Step(SteadyClock().Now())) {
      if (!answer->ok() && answer->error().code == ErrorCode::kDeadlineExceeded)
        return Error{ErrorCode::kDeadlineExceeded,
                     "it did not end within " +
                         std::to_string(static_cast<int64_t>(ToSeconds(command.limit))) + " s"};
      if (!answer->ok()) return Error{answer->error().code, "it cannot be run"};
      if ((*answer)->code != 0)
        return Error{
            ErrorCode::kPermissionDenied,
            "it ended with status " + std::to_string((*answer)->code) + LogOf((*answer)->log)};
      return std::move((*answer)->out);
    }
    const std::lock_guard lock(mu_);
    if (!stopping_) continue;
    running->Kill();
    return Error{ErrorCode::kCancelled, "cancelled"};
  }
}

}  // namespace troupe
