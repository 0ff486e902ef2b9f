#include "daemons/client/driver_client.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "daemons/protocol/run_events.h"
#include "runtime/process_place.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kDriverBeat = milliseconds(500);
constexpr Duration kLeaveLimit = seconds(1);
constexpr Duration kRequestLimit = seconds(20);
constexpr size_t kSmallRequestBytes = 64 << 10;  // Larger ones are repeated less and less often.
constexpr Duration kRepeatLarge = seconds(5);
constexpr size_t kTellBytes = kFeedBytesMax / 16;  // So many more, and the head hears of it.

size_t SizeOf(const RunEvent& event) { return event.json.size() + event.payload.size() + 128; }

}  // namespace

// A restarted head tells the current epoch and the results, since the head before it may have had
// no time to.
bool DriverClient::IsKnown(Feed& feed, const RunEvent& event) {
  if (const std::optional<std::string> worker = ResultOf(event))
    return !feed.results.insert(*worker).second;
  const std::optional<uint64_t> epoch = EpochOf(event);
  return epoch && epoch == std::exchange(feed.epoch, epoch);
}

DriverClient::DriverClient(DriverOptions options)
    : options_(std::move(options)), id_("driver-" + RandomId()), place_(ProcessPlace()) {}

Result<std::unique_ptr<DriverClient>> DriverClient::Connect(DriverOptions options) {
  trace::Start("driver");
  std::unique_ptr<DriverClient> client(new DriverClient(std::move(options)));
  if (Status s = client->Start(); !s.ok()) {
    client->Shutdown();
    return s.error();
  }
  return client;
}

DriverClient::~DriverClient() { Shutdown(); }

void DriverClient::Shutdown() {
  Leave();
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
  }
  changed_.notify_all();
  // Stopped, not destroyed: a request of another thread may be about to use it.
  if (transport_) transport_->Stop();
  if (lifeline_ >= 0) {
    ForgetOnFork(lifeline_);
    ::close(std::exchange(lifeline_, -1));
  }
  if (local_.pid() > 0) {
    if (!local_.WaitFor(seconds(8)).ok()) (void)local_.Terminate(seconds(1));
    local_ = ChildProcess();
  }
  if (!run_dir_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(std::exchange(run_dir_, ""), ignored);
  }
}

void DriverClient::OnFrame(const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return;
  if (*type == kFrameDriverReply) {
    Result<DriverReply> reply = wire::Decode<DriverReply>(*type, frame);
    if (!reply.ok()) return;
    std::lock_guard lock(mu_);
    if (const auto it = requests_.find(reply->request); it != requests_.end())
      it->second = std::move(*reply);
    changed_.notify_all();
  } else if (*type == kFrameRunEvents) {
    Result<RunEvents> batch = wire::Decode<RunEvents>(*type, frame);
    if (batch.ok()) OnEvents(std::move(*batch));
  } else if (!metrics_.OnFrame(*type, frame)) {
    std::function<void(const std::string&)> other;
    {
      std::lock_guard lock(mu_);
      other = other_;
    }
    if (other) other(frame);
  }
}

void DriverClient::OnEvents(RunEvents batch) {
  std::unique_lock lock(mu_);
  const auto it = feeds_.find(batch.run);
  if (it == feeds_.end()) return;
  Feed& feed = it->second;
  if (feed.log != batch.log) {  // A new head: its sequence starts afresh.
    feed.log = batch.log;
    feed.next = 0;
    feed.part.clear();
  }
  if (!Take(feed, batch)) {  // A gap: something was lost on the way.
    if (!std::exchange(feed.asked, true)) SendSubscribe(batch.run, feed, true);
    return;
  }
  feed.asked = false;
  // Until the head knows that its end has arrived it keeps the run.
  if (feed.untold >= kTellBytes || feed.done) SendSubscribe(batch.run, feed);
  changed_.notify_all();
  if (!sink_) return;
  std::deque<RunEvent> events;
  events.swap(feed.events);
  feed.bytes = 0;
  const auto sink = sink_;
  lock.unlock();
  for (const RunEvent& event : events) sink(batch.run, event);
}

// False: what comes before it is not here.
bool DriverClient::Take(Feed& feed, RunEvents& batch) {
  if (batch.first > feed.next) {
    if (batch.first != batch.oldest) return false;
    feed.next = batch.first;  // Those before are not to be had any more.
    feed.part.clear();
  }
  uint64_t sequence = batch.first;
  size_t offset = batch.offset;
  for (RunEvent& event : batch.events) {
    const size_t begin = std::exchange(offset, 0);
    if (sequence++ < feed.next) continue;
    if (begin > feed.part.size()) return false;
    const size_t known = feed.part.size() - begin;
    if (known > event.payload.size()) continue;
    feed.untold += event.payload.size() - known + event.json.size();
    feed.part.append(event.payload, known);
    if (event.rest > 0) continue;  // The last one of its frame.
    event.payload = std::exchange(feed.part, {});
    ++feed.next;
    if (feed.done || IsKnown(feed, event)) continue;
    feed.done = event.kind == "done";
    feed.bytes += SizeOf(event);
    feed.events.push_back(std::move(event));
  }
  return true;
}

void DriverClient::SetOther(std::function<void(const std::string& frame)> handler) {
  std::lock_guard lock(mu_);
  other_ = std::move(handler);
}

void DriverClient::SetEventSink(std::function<void(const std::string&, const RunEvent&)> sink) {
  std::lock_guard lock(mu_);
  sink_ = std::move(sink);
}

void DriverClient::SendSubscribe(const std::string& run, Feed& feed, bool lost) {
  const size_t room = feed.bytes < kFeedBytesMax ? kFeedBytesMax - feed.bytes : 0;
  feed.full = room == 0;
  feed.untold = 0;
  const Subscribe subscribe{id_,  run,  feed.log,  feed.next, feed.part.size(),
                            room, lost, feed.watch};
  (void)transport_->Send(kHeadName, wire::Encode(kFrameSubscribe, subscribe));
}

// Else the head would wait for us as for one that is only silent.
void DriverClient::Leave() {
  {
    std::lock_guard lock(mu_);
    const bool has_any = std::ranges::any_of(feeds_, [](const auto& entry) {
      return entry.second.submitted && !entry.second.watch && !entry.second.done;
    });
    if (stopped_ || !transport_ || local_.pid() > 0 || !has_any) return;
  }
  (void)Request(
      kFrameRunCommand,
      [&](uint64_t r) {
        return wire::Encode(kFrameRunCommand, RunCommand{r, id_, RunVerb::kLeave, 0, "", 0});
      },
      kLeaveLimit);
}

void DriverClient::SayHello() {
  const DriverHello hello{id_, place_, options_.silence_s};
  (void)transport_->Send(kHeadName, wire::Encode(kFrameDriverHello, hello));
}

void DriverClient::Beat() {
  SayHello();
  {
    std::lock_guard lock(mu_);
    for (auto& [run, feed] : feeds_) {
      feed.asked = false;
      if (!feed.done && feed.submitted) SendSubscribe(run, feed);
    }
  }
  transport_->loop().CallAfter(kDriverBeat, [this] { Beat(); });
}

Result<std::string> DriverClient::Request(uint8_t,
                                          const std::function<std::string(uint64_t)>& encode,
                                          Duration limit, Duration repeat) {
  std::unique_lock lock(mu_);
  const uint64_t request = next_request_++;
  requests_[request];
  const std::string frame = encode(request);
  const Time deadline = SteadyClock().Now() + limit;
  while (!stopped_ && !requests_[request] && SteadyClock().Now() < deadline) {
    lock.unlock();
    const Status sent = transport_->Send(kHeadName, frame);
    lock.lock();
    if (!sent.ok() && sent.error().code == ErrorCode::kInvalidArgument) {
      requests_.erase(request);
      return sent.error();
    }
    changed_.wait_for(lock, repeat, [&] { return stopped_ || requests_[request].has_value(); });
    if (frame.size() > kSmallRequestBytes) repeat = std::min(2 * repeat, kRepeatLarge);
  }
  const std::optional<DriverReply> reply = std::move(requests_[request]);
  requests_.erase(request);
  if (stopped_) return Error{ErrorCode::kCancelled, "this driver was shut down"};
  if (!reply) return Error{ErrorCode::kDeadlineExceeded, "the head did not answer in time"};
  if (reply->code != 0) return Error{static_cast<ErrorCode>(reply->code), reply->message};
  return reply->json;
}

Result<std::string> DriverClient::Submit(RunSpec spec) {
  if (spec.payload.size() > kRunBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "the function and its arguments take " + std::to_string(spec.payload.size()) +
                     " bytes when pickled, of at most " + std::to_string(kRunBytesMax) +
                     "; let each worker load large data itself"};
  }
  spec.id = "run-" + RandomId();
  const std::string run = spec.id;
  {
    std::lock_guard lock(mu_);
    feeds_[run];
  }
  Result<std::string> reply = Request(
      kFrameSubmitRun,
      [&](uint64_t request) {
        return wire::Encode(kFrameSubmitRun, SubmitRun{request, id_, spec});
      },
      kRequestLimit);
  std::lock_guard lock(mu_);
  if (reply.ok()) {
    feeds_[run].submitted = true;  // Before, the head may not know it.
    return run;
  }
  feeds_.erase(run);
  return reply.error();
}

Status DriverClient::Attach(const std::string& run, bool watch) {
  const Result<std::string> known = RunJson(run);
  if (!known.ok()) return known.error();
  std::lock_guard lock(mu_);
  Feed& feed = feeds_[run];
  if (feed.submitted && !feed.done) {
    return Error{ErrorCode::kInvalidArgument,
                 "this process has a handle of run " + run + " already"};
  }
  feed = Feed{};  // One that has ended is told from its beginning again.
  feed.submitted = true;
  feed.watch = watch;
  SendSubscribe(run, feed);
  return Status::Ok();
}

Result<std::optional<RunEvent>> DriverClient::NextEvent(const std::string& run, Duration limit) {
  std::unique_lock lock(mu_);
  const auto it = feeds_.find(run);
  if (it == feeds_.end())
    return Error{ErrorCode::kNotFound,
                 "run " + run + " was neither submitted nor attached to here"};
  changed_.wait_for(lock, limit, [&] { return stopped_ || !it->second.events.empty(); });
  if (!it->second.events.empty()) {
    Feed& feed = it->second;
    RunEvent event = std::move(feed.events.front());
    feed.events.pop_front();
    feed.bytes -= SizeOf(event);
    if (feed.full && !feed.done && feed.bytes <= kFeedBytesMax / 2) SendSubscribe(run, feed);
    return std::optional<RunEvent>(std::move(event));
  }
  if (stopped_) return Error{ErrorCode::kCancelled, "this driver was shut down"};
  return std::optional<RunEvent>();
}

namespace {
Status ToStatus(const Result<std::string>& reply) {
  return reply.ok() ? Status::Ok() : Status(reply.error());
}
}  // namespace

Status DriverClient::Resize(const std::string& run, uint32_t workers) {
  return ToStatus(Request(
      kFrameRunCommand,
      [&](uint64_t r) {
        return wire::Encode(kFrameRunCommand, RunCommand{r, run, RunVerb::kResize, workers, "", 0});
      },
      kRequestLimit));
}

Status DriverClient::Drain(const std::string& run, const std::string& member, Duration limit) {
  // Up to a whole millisecond, so that a short limit is not taken for none.
  const auto ms = static_cast<uint64_t>(std::chrono::ceil<milliseconds>(limit).count());
  return ToStatus(Request(
      kFrameRunCommand,
      [&](uint64_t r) {
        return wire::Encode(kFrameRunCommand, RunCommand{r, run, RunVerb::kDrain, 0, member, ms});
      },
      kRequestLimit));
}

Status DriverClient::DrainNode(const std::string& node, Duration limit, const std::string& reason) {
  const auto ms = static_cast<uint64_t>(std::chrono::ceil<milliseconds>(limit).count());
  return ToStatus(Request(
      kFrameRunCommand,
      [&](uint64_t r) {
        return wire::Encode(kFrameRunCommand,
                            RunCommand{r, "", RunVerb::kDrainNode, 0, node, ms, reason});
      },
      kRequestLimit));
}

Status DriverClient::Cancel(const std::string& run) {
  return ToStatus(Request(
      kFrameRunCommand,
      [&](uint64_t r) {
        return wire::Encode(kFrameRunCommand, RunCommand{r, run, RunVerb::kCancel, 0, "", 0});
      },
      kRequestLimit));
}

Result<std::string> DriverClient::RunJson(const std::string& run) {
  return Request(
      kFrameQuery,
      [&](uint64_t r) {
        return wire::Encode(kFrameQuery, Query{r, QueryVerb::kRun, run, "", 0});
      },
      kRequestLimit);
}

Result<JoinOffer> DriverClient::OfferJoin(const std::string& node, Duration valid) {
  const Result<CurveKeys> guest = GenerateCurveKeys();
  if (!guest.ok()) return guest.error();
  const auto ms = static_cast<uint64_t>(std::chrono::ceil<milliseconds>(valid).count());
  const Result<std::string> admitted = Request(
      kFrameAdmitGuest,
      [&](uint64_t r) {
        return wire::Encode(kFrameAdmitGuest, AdmitGuest{r, guest->public_key, node, ms});
      },
      kRequestLimit);
  if (!admitted.ok()) return admitted.error();
  const Result<JoinPlace> place = ParseJoinPlace(*admitted);
  if (!place.ok()) return place.error();
  return JoinOffer{JoinTokenText({*guest, place->head_key}), place->listens};
}

Result<std::string> DriverClient::StateJson(Duration limit) {
  return Request(
      kFrameQuery,
      [&](uint64_t r) {
        return wire::Encode(kFrameQuery, Query{r, QueryVerb::kState, "", "", 0});
      },
      limit);
}

Result<std::string> DriverClient::LogJson(const std::string& what, const std::string& node,
                                          uint32_t lines, Duration limit) {
  return Request(
      kFrameQuery,
      [&](uint64_t r) {
        return wire::Encode(kFrameQuery, Query{r, QueryVerb::kLog, what, node, lines});
      },
      limit);
}

Status DriverClient::TakeDown() {
  return ToStatus(Request(
      kFrameQuery,
      [&](uint64_t r) {
        return wire::Encode(kFrameQuery, Query{r, QueryVerb::kDown, "", "", 0});
      },
      kRequestLimit));
}

Result<std::string> DriverClient::ClusterJson(Duration limit) {
  return Request(
      kFrameQuery,
      [&](uint64_t r) {
        return wire::Encode(kFrameQuery, Query{r, QueryVerb::kCluster, "", "", 0});
      },
      limit);
}

}  // namespace troupe::daemons
