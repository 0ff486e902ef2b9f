#include "daemons/node/node_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <fstream>
#include <mutex>

#include "daemons/node/incarnation.h"
#include "daemons/node/log_tail.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/curve_key_files.h"
#include "runtime/link_probe.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kHelloInterval = milliseconds(500);
constexpr Duration kFirstHellos = milliseconds(10);  // While the head or the link to it comes up.
constexpr Duration kFirstLinkTime = seconds(5);
constexpr Duration kExplainAfter = seconds(5);
constexpr Duration kProbeLimit = seconds(2);
constexpr Duration kEndLimit = seconds(10);  // For the workers of an incarnation given up.
constexpr size_t kReadBytes = 64 << 10;
constexpr Duration kPause = milliseconds(10);  // At least, before a worker's output is read again.

uint64_t TimeOfDay_ns() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

}  // namespace

NodeService::NodeService(Transport* transport, NodeOptions options)
    : transport_(transport),
      options_(std::move(options)),
      incarnation_(NextIncarnation(options_.run_dir, options_.node, TimeOfDay_ns())),
      head_(options_.fence),
      spares_(&transport_->loop(), options_.bin_dir, {.limit = options_.spares}) {}

Status NodeService::Start() {
  Result<std::unique_ptr<DeathWatch>> watch =
      DeathWatch::Create(options_.run_dir + "/lives-" + options_.node);
  if (!watch.ok()) return watch.error();
  watch_ = std::move(*watch);
  oom_kills_ = OomKills();
  transport_->SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  if (Status s = transport_->Connect(options_.head); !s.ok()) return s;
  scope_.Post([this] {
    begun_ = transport_->loop().Now();
    head_.Begin(begun_);
    Hello();
  });
  return Status::Ok();
}

// On the lane: the folder may be on a file system that hangs.
void NodeService::ReadNotice() {
  if (!notice_.empty() || options_.notice_file.empty() || reading_notice_) return;
  reading_notice_ = files_.Post(
      0, [this, back = scope_.back(), path = options_.notice_file, left = options_.notice] {
        std::ifstream file(path);
        std::string text;
        Duration after = left;
        const bool found = file.good();
        if (found) {
          std::getline(file, text);
          double left_s = 0;
          if (file >> left_s && left_s >= 0 && left_s < 1e6)
            after = Duration(static_cast<int64_t>(left_s * 1e9));
        }
        back.Post([this, found, text, after] {
          reading_notice_ = false;
          if (!found || !notice_.empty()) return;
          notice_ = text.empty() ? "preemption notice" : text;
          notice_until_ = transport_->loop().Now() + after;
          metrics::Add(metrics::Id::kPreemptionNotices);
          SayHello();
        });
      });
}

void NodeService::Hello() {
  ReadNotice();
  EndLeftBehind();
  FenceIfAlone();
  if (!leaving_) spares_.Tick();
  metrics::Set(metrics::Id::kSpares, static_cast<double>(spares_.size()));
  ExplainSilence();
  relay_.Tell(transport_->loop().Now());
  SendOutput();
  SayHello();
  const bool first = heard_.head.empty() && transport_->loop().Now() < begun_ + kFirstLinkTime;
  scope_.CallAfter(first ? kFirstHellos : kHelloInterval, [this] { Hello(); });
}

void NodeService::SayHello() {
  NodeHello hello;
  hello.node = options_.node;
  hello.incarnation = incarnation_;
  hello.host = HostName();
  hello.data_address = options_.data_address;
  hello.pid = ::getpid();
  hello.resources = options_.resources;
  hello.labels = options_.labels;
  hello.leaving = leaving_;
  hello.heard = heard_;
  hello.notice = notice_;
  if (!notice_.empty()) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(notice_until_ - transport_->loop().Now()).count();
    hello.notice_ms = static_cast<uint64_t>(std::max<int64_t>(0, left));
  }
  for (auto& [name, worker] : workers_) {
    if (worker.incarnation != incarnation_) continue;
    const ProcessUsage usage = UsageOf(worker.child.pid());
    hello.workers.push_back({name, worker.child.pid(), worker.lease, worker.death_reported,
                             worker.room, usage.cpu_ms, usage.rss_bytes});
  }
  hello.output = relay_.on_the_way();
  for (const auto& [when, process] : ended_) hello.ended.push_back(process);
  hello.all_ended = all_ended_;
  if (Alone()) Tell(kFrameNodeHello, wire::Encode(kFrameNodeHello, hello));
}

// Else a life that was given up would still answer calls, and hold what the next one is given. One
// that cannot be killed does not keep the host out for ever.
bool NodeService::Alone() {
  const bool alone = std::ranges::all_of(
      workers_, [&](const auto& entry) { return entry.second.incarnation == incarnation_; });
  return (alone && !spares_.ending()) || transport_->loop().Now() > join_by_;
}

void NodeService::Tell(uint8_t, const std::string& frame) {
  (void)transport_->Send(options_.head.peer, frame);
}

void NodeService::Notice(const std::string& reason, Duration left) {
  scope_.Post([this, reason, left] {
    if (!notice_.empty()) return;
    notice_ = reason;
    metrics::Add(metrics::Id::kPreemptionNotices);
    notice_until_ = transport_->loop().Now() + left;
  });
}

void NodeService::OnFrame(const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return;
  head_.Heard(transport_->loop().Now());
  if (*type == kFrameStartWorker) {
    Result<StartWorker> start = wire::Decode<StartWorker>(*type, frame);
    if (!start.ok()) return;
    // What a head that has ended has sent may be read after the word of the next one, which has
    // given its actors up or to others.
    if (start->head == heard_.head) return OnStart(*start);
    LogWarning("an order to start ", start->lease,
               " is passed over: it is of a head that has ended");
  } else if (*type == kFrameKillWorker) {
    Result<KillWorker> kill = wire::Decode<KillWorker>(*type, frame);
    if (!kill.ok()) return;
    if (const auto it = workers_.find(kill->process); it != workers_.end())
      it->second.child.Kill(kill->signal);
  } else if (*type == kFrameKeepSpares) {
    Result<KeepSpares> keep = wire::Decode<KeepSpares>(*type, frame);
    if (keep.ok()) OnKeepSpares(*keep);
  } else if (*type == kFrameReadLog) {
    Result<ReadLog> read = wire::Decode<ReadLog>(*type, frame);
    if (read.ok()) OnReadLog(*read);
  } else if (*type == kFrameOutputTaken) {
    Result<OutputTaken> taken = wire::Decode<OutputTaken>(*type, frame);
    if (!taken.ok()) return;
    relay_.Taken(taken->number);
    SendOutput();
  } else if (*type == kFrameNodeLeave) {
    down_.store(true);
  } else if (*type == kFrameNodeAnswer) {
    Result<NodeAnswer> answer = wire::Decode<NodeAnswer>(*type, frame);
    if (!answer.ok()) return;
    if (answer->head != heard_.head) heard_since_ = transport_->loop().Now();
    heard_ = *answer;
    ForgetEnds();
  } else if (*type == kFrameNodeFenced) {
    Result<NodeFenced> aside = wire::Decode<NodeFenced>(*type, frame);
    if (!aside.ok() || aside->incarnation != incarnation_) return;
    if (!aside->replaced) return StartOver(aside->newest, aside->reason);
    LogError(aside->reason, "; this one ends. Each node needs a --name of its own");
    replaced_.store(true);
  }
}

void NodeService::OnReadLog(const ReadLog& read) {
  const auto answer = [](const ReadLog& asked, const Result<std::string>& path,
                         Result<std::string> text) {
    LogTail tail;
    tail.number = asked.number;
    if (text.ok()) {
      tail.file = *path;
      tail.text = std::move(*text);
    } else {
      tail.code = static_cast<uint8_t>(text.error().code);
      tail.message = text.error().message;
    }
    return wire::Encode(kFrameLogTail, tail);
  };
  const Result<std::string> path = LogPath(options_.log_dir, read.log);
  if (!path.ok()) return Tell(kFrameLogTail, answer(read, path, path));
  const auto task = [this, back = scope_.back(), read, path, answer] {
    back.Post([this, frame = answer(read, path, ReadTail(*path, read.lines))] {
      Tell(kFrameLogTail, frame);
    });
  };
  if (files_.Post(0, task)) return;
  Tell(kFrameLogTail,
       answer(read, path,
              Error{ErrorCode::kUnavailable, "the file system of " + *path + " does not answer"}));
}

// An actor is what may live twice: its callers on this side of a cut would go on with the old life.
// Workers of runs are fenced by their groups, and go on where only the head is away.
void NodeService::FenceIfAlone() {
  if (!head_.Expired(transport_->loop().Now())) return;
  size_t actors = 0;
  for (auto& [name, worker] : workers_) {
    const std::string actor = ParseLeaseId(worker.lease).first;
    if (actor.empty() || IsRunActor(actor)) continue;
    worker.child.Kill(SIGKILL);
    ++actors;
  }
  if (actors > 0) {
    LogWarning("the head was not heard for ", static_cast<int64_t>(ToSeconds(options_.fence)),
               " s and may have given up what runs here: ", actors, " actors were ended");
  }
}

// Of a head that was never heard: most often the key file is another cluster's. On the lane, which
// may wait.
void NodeService::ExplainSilence() {
  if (explained_ || !heard_.head.empty() || transport_->loop().Now() < begun_ + kExplainAfter)
    return;
  explained_ = files_.Post(0, [head = options_.head, key_file = options_.key_file] {
    const Result<ClientKeys> keys =
        key_file.empty() ? Result<ClientKeys>(ClientKeys{}) : LoadClientKeys(key_file);
    LogWarning("no head answers at ", head.endpoint, ": ",
               keys.ok() ? ExplainLink(ProbeLink(keys->own, head, kProbeLimit), key_file)
                         : keys.error().message);
  });
}

// What this incarnation runs was given up, and is or will be placed elsewhere.
void NodeService::StartOver(uint64_t newest, const std::string& reason) {
  LogWarning(reason, "; joining again when the ", workers_.size(), " workers of before have ended");
  for (auto& [name, worker] : workers_) worker.child.Kill(SIGKILL);
  spares_.GiveUp();
  incarnation_ = NextIncarnation(options_.run_dir, options_.node, TimeOfDay_ns(), newest + 1);
  join_by_ = transport_->loop().Now() + kEndLimit;
}

void NodeService::WatchOutput(const std::string& process, Stream& stream) {
  transport_->loop().WatchFd(
      stream.fd, [this, process, is_stderr = stream.is_stderr] { ReadOutput(process, is_stderr); });
}

void NodeService::ReadOutput(const std::string& process, bool is_stderr) {
  Worker& worker = workers_.at(process);
  Stream& stream = is_stderr ? worker.err : worker.out;
  if (Pause(process, worker, stream)) return;
  char buffer[kReadBytes];
  const ssize_t got = ::read(stream.fd, buffer, sizeof buffer);
  if (got > 0) {
    TakeOutput(process, worker, is_stderr, {buffer, static_cast<size_t>(got)});
    SendOutput();
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    transport_->loop().UnwatchFd(stream.fd);
    stream.fd = -1;
  }
}

// Back-pressure: what is not read fills the pipe, and who prints waits.
bool NodeService::Pause(const std::string& process, Worker& worker, Stream& stream) {
  EventLoop& loop = transport_->loop();
  const bool no_room = worker.log && !worker.log->failed() && files_.HalfFull();
  const Duration wait = worker.reading.Until(loop.Now(), kReadBytes);
  if (!no_room && wait == Duration::zero()) return false;
  loop.UnwatchFd(stream.fd);
  stream.paused = true;
  scope_.CallAfter(std::max(wait, kPause), [this, process, is_stderr = stream.is_stderr] {
    if (leaving_) return;
    const auto it = workers_.find(process);
    if (it == workers_.end()) return;
    Stream& paused = is_stderr ? it->second.err : it->second.out;
    if (paused.fd >= 0 && std::exchange(paused.paused, false)) WatchOutput(process, paused);
  });
  return true;
}

// What the ended worker has left in its pipe. A child of it may go on printing there: no more than
// the pipe held is read.
void NodeService::ReadRest(const std::string& process, Stream& stream) {
  if (stream.fd < 0) return;
  Worker& worker = workers_.at(process);
  const int capacity = ::fcntl(stream.fd, F_GETPIPE_SZ);
  size_t left = capacity > 0 ? static_cast<size_t>(capacity) : kReadBytes;
  char buffer[kReadBytes];
  while (left > 0) {
    const ssize_t got = ::read(stream.fd, buffer, std::min(left, sizeof buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    TakeOutput(process, worker, stream.is_stderr, {buffer, static_cast<size_t>(got)});
    left -= static_cast<size_t>(got);
  }
  transport_->loop().UnwatchFd(stream.fd);
  stream.fd = -1;
}

void NodeService::TakeOutput(const std::string& process, Worker& worker, bool is_stderr,
                             std::string_view bytes) {
  worker.reading.Take(transport_->loop().Now(), bytes.size());
  if (worker.log && (worker.log->failed() || !worker.log->Append(bytes))) {
    relay_.NotInFile(process);
  }
  relay_.Add(transport_->loop().Now(), process, is_stderr, bytes);
}

void NodeService::SendOutput() {
  const uint64_t dropped = relay_.dropped();
  metrics::Add(metrics::Id::kNodeDroppedLines,
               static_cast<double>(dropped - std::exchange(dropped_lines_, dropped)));
  while (const std::optional<WorkerOutput> output = relay_.Next())
    Tell(kFrameWorkerOutput, wire::Encode(kFrameWorkerOutput, *output));
}

void NodeService::Stop(Duration grace) {
  std::mutex mu;
  std::condition_variable done;
  bool stopped = false;
  transport_->loop().Post([&] {
    leaving_ = true;
    spares_.EndAll();
    for (auto& [name, worker] : workers_) {
      EventLoop& loop = transport_->loop();
      loop.UnwatchFd(worker.child.pidfd());
      if (worker.out.fd >= 0) loop.UnwatchFd(worker.out.fd);
      if (worker.err.fd >= 0) loop.UnwatchFd(worker.err.fd);
      worker.child.Kill(SIGTERM);
    }
    std::lock_guard lock(mu);
    stopped = true;
    done.notify_one();
  });
  {
    std::unique_lock lock(mu);
    done.wait(lock, [&] { return stopped; });
  }
  const Time deadline = SteadyClock().Now() + grace;
  for (auto& [name, worker] : workers_) {
    const Duration left = std::max<Duration>(Duration::zero(), deadline - SteadyClock().Now());
    (void)worker.child.Terminate(left);
  }
  transport_->SetHandler(nullptr);
  watch_.reset();
  ::unlink((options_.run_dir + "/lives-" + options_.node).c_str());
}

}  // namespace troupe::daemons
