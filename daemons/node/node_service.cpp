#include "daemons/node/node_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <mutex>

#include "daemons/node/incarnation.h"
#include "daemons/node/log_tail.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/curve_key_files.h"
#include "runtime/link_probe.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/shared_folder.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kExplainAfter = seconds(5);
constexpr Duration kProbeLimit = seconds(2);
constexpr Duration kSweepInterval = seconds(30);
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
      core_({options_.node, HostName(), options_.data_address, ::getpid(), options_.resources,
             options_.labels, options_.fence, options_.lease},
            NextIncarnation(options_.run_dir, options_.node, TimeOfDay_ns()), SteadyClock().Now()),
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
    Hello();
    WatchNotices();
  });
  return Status::Ok();
}

void NodeService::Hello() {
  ReadNotice();
  EndLeftBehind();
  Sweep();
  core_.Tick(transport_->loop().Now());
  Act();
  NoteDrained();
  if (!core_.leaving()) spares_.Tick();
  metrics::Set(metrics::Id::kSpares, static_cast<double>(spares_.size()));
  ExplainSilence();
  relay_.Tell(transport_->loop().Now());
  SendOutput();
  SayHello();
  scope_.CallAfter(core_.UntilHello(transport_->loop().Now()), [this] { Hello(); });
}

// Who was killed has left the shared buffers that were its own; a driver is no worker of ours.
void NodeService::Sweep() {
  const Time now = transport_->loop().Now();
  if (sweeping_ || (!ended_ && now < swept_ + kSweepInterval)) return;
  sweeping_ = files_.Post(0, [this, back = scope_.back()] {
    SharedFolder::RemoveEnded();
    back.Post([this] { sweeping_ = false; });
  });
  if (!sweeping_) return;
  ended_ = false;
  swept_ = now;
}

void NodeService::SayHello() {
  NodeSight sight;
  sight.spares_end = spares_.ending();
  sight.output = relay_.on_the_way();
  for (auto& [name, worker] : workers_) {
    const ProcessUsage usage = UsageOf(worker.child.pid());
    sight.processes[name] = {worker.child.pid(), usage.cpu_ms, usage.rss_bytes};
  }
  core_.Hello(sight, transport_->loop().Now());
  Act();
}

// What comes of an effect may be decided at once: it is carried out in its turn.
void NodeService::Act() {
  for (auto effects = core_.TakeEffects(); !effects.empty(); effects = core_.TakeEffects())
    for (const NodeEffect& effect : effects)
      std::visit([this](const auto& it) { Act(it); }, effect);
}

void NodeService::Act(const TellHead& tell) { Tell(tell.frame); }

void NodeService::Act(const SignalProcess& signal) {
  if (const auto it = workers_.find(signal.process); it != workers_.end())
    it->second.child.Kill(signal.signal);
}

void NodeService::Act(const GiveUpSpares&) { spares_.GiveUp(); }

void NodeService::Act(const BeginIncarnation& begin) {
  core_.OnIncarnation(
      NextIncarnation(options_.run_dir, options_.node, TimeOfDay_ns(), begin.newest + 1));
}

void NodeService::Act(const EndNode& end) {
  LogError(end.reason);
  replaced_.store(true);
}

void NodeService::Act(const Warn& warn) { LogWarning(warn.text); }

void NodeService::Tell(const std::string& frame) {
  (void)transport_->Send(options_.head.peer, frame);
}

void NodeService::OnFrame(const std::string& frame) {
  const bool is_ours = core_.OnFrame(frame, transport_->loop().Now());
  Act();
  if (!is_ours) return;
  const uint8_t type = *wire::PeekType(frame);
  if (type == kFrameKeepSpares) {
    if (const auto keep = wire::Decode<KeepSpares>(type, frame); keep.ok()) OnKeepSpares(*keep);
  } else if (type == kFrameReadLog) {
    if (const auto read = wire::Decode<ReadLog>(type, frame); read.ok()) OnReadLog(*read);
  } else if (type == kFrameOutputTaken) {
    const Result<OutputTaken> taken = wire::Decode<OutputTaken>(type, frame);
    if (!taken.ok()) return;
    relay_.Taken(taken->number);
    SendOutput();
  } else if (type == kFrameNodeLeave) {
    down_.store(true);
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
  if (!path.ok()) return Tell(answer(read, path, path));
  const auto task = [this, back = scope_.back(), read, path, answer] {
    back.Post([this, frame = answer(read, path, ReadTail(*path, read.lines))] { Tell(frame); });
  };
  if (files_.Post(0, task)) return;
  Tell(answer(read, path,
              Error{ErrorCode::kUnavailable, "the file system of " + *path + " does not answer"}));
}

// Of a head that was never heard: most often the key file is another cluster's. On the lane, which
// may wait.
void NodeService::ExplainSilence() {
  if (explained_ || !core_.heard().head.empty() ||
      transport_->loop().Now() < begun_ + kExplainAfter)
    return;
  explained_ = files_.Post(0, [head = options_.head, key_file = options_.key_file] {
    const Result<ClientKeys> keys =
        key_file.empty() ? Result<ClientKeys>(ClientKeys{}) : LoadClientKeys(key_file);
    LogWarning("no head answers at ", head.endpoint, ": ",
               keys.ok() ? ExplainLink(ProbeLink(keys->own, head, kProbeLimit), key_file)
                         : keys.error().message);
  });
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
    if (core_.leaving()) return;
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
    Tell(wire::Encode(kFrameWorkerOutput, *output));
}

void NodeService::Stop(Duration grace) {
  std::unique_ptr<NoticeSources> asking;  // Its threads are not to end on the loop.
  std::mutex mu;
  std::condition_variable done;
  bool stopped = false;
  transport_->loop().Post([&] {
    core_.Leave();
    asking = std::move(sources_);
    spares_.EndAll();
    for (auto& [name, worker] : workers_) {
      EventLoop& loop = transport_->loop();
      loop.UnwatchFd(worker.child.end_fd());
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
  asking.reset();
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
