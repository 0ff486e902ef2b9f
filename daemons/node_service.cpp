#include "daemons/node_service.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <mutex>

#include "actors/cluster_protocol.h"
#include "daemons/log_tail.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"
#include "runtime/wire.h"
#include "scheduler/devices.h"

namespace troupe::daemons {
namespace {

constexpr Duration kHelloInterval = milliseconds(500);
constexpr Duration kFirstHellos = milliseconds(10);  // While the head or the link to it comes up.
constexpr Duration kFirstLinkTime = seconds(5);
constexpr Duration kEndLimit = seconds(10);  // For the workers of an incarnation given up.
constexpr size_t kReadBytes = 64 << 10;

// Greater than that of any process that ran here before under the same name, unless the clock was
// set back; then the head says so.
uint64_t FirstIncarnation() {
  return static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

}  // namespace

NodeService::NodeService(Transport* transport, NodeOptions options)
    : transport_(transport), options_(std::move(options)), incarnation_(FirstIncarnation()) {}

NodeService::~NodeService() { *alive_ = false; }

Status NodeService::Start() {
  Result<std::unique_ptr<DeathWatch>> watch =
      DeathWatch::Create(options_.run_dir + "/lives-" + options_.node);
  if (!watch.ok()) return watch.error();
  watch_ = std::move(*watch);
  transport_->SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  if (Status s = transport_->Connect(options_.head); !s.ok()) return s;
  transport_->loop().Post([this, alive = alive_] {
    if (!*alive) return;
    begun_ = transport_->loop().Now();
    Hello();
  });
  return Status::Ok();
}

void NodeService::Hello() {
  if (notice_.empty() && !options_.notice_file.empty()) {
    std::ifstream file(options_.notice_file);
    if (file) {
      std::string text;
      std::getline(file, text);
      notice_ = text.empty() ? "preemption notice" : text;
      Duration left = options_.notice;
      double left_s = 0;
      if (file >> left_s && left_s >= 0 && left_s < 1e6)
        left = Duration(static_cast<int64_t>(left_s * 1e9));
      notice_until_ = transport_->loop().Now() + left;
      metrics::Add(metrics::Id::kPreemptionNotices);
    }
  }
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
  for (const auto& [name, worker] : workers_) {
    if (worker.incarnation != incarnation_) continue;
    const ProcessUsage usage = UsageOf(worker.child.pid());
    hello.workers.push_back({name, worker.child.pid(), worker.job, worker.death_reported,
                             worker.room, usage.cpu_ms, usage.rss_bytes});
  }
  if (Alone()) Tell(kFrameNodeHello, wire::Encode(kFrameNodeHello, hello));
  const bool first = heard_.head.empty() && transport_->loop().Now() < begun_ + kFirstLinkTime;
  transport_->loop().CallAfter(first ? kFirstHellos : kHelloInterval, [this, alive = alive_] {
    if (*alive) Hello();
  });
}

// Else a life that was given up would still answer calls, and hold what the next one is given. One
// that cannot be killed does not keep the host out for ever.
bool NodeService::Alone() {
  const bool alone = std::ranges::all_of(
      workers_, [&](const auto& entry) { return entry.second.incarnation == incarnation_; });
  return alone || transport_->loop().Now() > join_by_;
}

void NodeService::Tell(uint8_t, const std::string& frame) {
  (void)transport_->Send(options_.head.peer, frame);
}

void NodeService::Notice(const std::string& reason, Duration left) {
  transport_->loop().Post([this, alive = alive_, reason, left] {
    if (!*alive || !notice_.empty()) return;
    notice_ = reason;
    metrics::Add(metrics::Id::kPreemptionNotices);
    notice_until_ = transport_->loop().Now() + left;
  });
}

void NodeService::OnFrame(const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return;
  if (*type == kFrameStartWorker) {
    Result<StartWorker> start = wire::Decode<StartWorker>(*type, frame);
    if (start.ok()) OnStart(*start);
  } else if (*type == kFrameKillWorker) {
    Result<KillWorker> kill = wire::Decode<KillWorker>(*type, frame);
    if (!kill.ok()) return;
    if (const auto it = workers_.find(kill->process); it != workers_.end())
      it->second.child.Kill(kill->signal);
  } else if (*type == kFrameReadLog) {
    Result<ReadLog> read = wire::Decode<ReadLog>(*type, frame);
    if (read.ok()) OnReadLog(*read);
  } else if (*type == kFrameNodeLeave) {
    down_.store(true);
  } else if (*type == kFrameNodeAnswer) {
    Result<NodeAnswer> answer = wire::Decode<NodeAnswer>(*type, frame);
    if (answer.ok()) heard_ = *answer;
  } else if (*type == kFrameNodePutAside) {
    Result<NodePutAside> aside = wire::Decode<NodePutAside>(*type, frame);
    if (!aside.ok() || aside->incarnation != incarnation_) return;
    if (!aside->replaced) return StartOver(aside->newest, aside->reason);
    LogError(aside->reason, "; this one ends. Each node needs a --name of its own");
    replaced_.store(true);
  }
}

void NodeService::OnReadLog(const ReadLog& read) {
  LogTail tail;
  tail.number = read.number;
  const Result<std::string> path = LogPath(options_.log_dir, read.log);
  Result<std::string> text = path.ok() ? ReadTail(*path, read.lines) : path;
  if (text.ok()) {
    tail.file = *path;
    tail.text = std::move(*text);
  } else {
    tail.code = static_cast<uint8_t>(text.error().code);
    tail.message = text.error().message;
  }
  Tell(kFrameLogTail, wire::Encode(kFrameLogTail, tail));
}

// The head has given this incarnation up, and placed its work elsewhere.
void NodeService::StartOver(uint64_t newest, const std::string& reason) {
  LogWarning("put aside by the head: ", reason, "; joining again when the ", workers_.size(),
             " workers of before have ended");
  for (auto& [name, worker] : workers_) worker.child.Kill(SIGKILL);
  incarnation_ = std::max(newest + 1, FirstIncarnation());
  join_by_ = transport_->loop().Now() + kEndLimit;
}

uint32_t NodeService::FreeSlot() const {
  std::vector<bool> used(kDeathWatchSlots, false);
  for (const auto& [name, worker] : workers_) used[worker.slot] = true;
  return static_cast<uint32_t>(std::find(used.begin(), used.end(), false) - used.begin());
}

void NodeService::OnStart(const StartWorker& start) {
  if (workers_.contains(start.process) || leaving_) return;
  const trace::Span span("start worker");
  const uint32_t slot = FreeSlot();
  const auto refuse = [&](const std::string& why) {
    WorkerExited exited{start.process, true, "could not be started: " + why, -1, {why}};
    Tell(kFrameWorkerExited, wire::Encode(kFrameWorkerExited, exited));
  };
  if (slot >= kDeathWatchSlots)
    return refuse("this node already runs " + std::to_string(kDeathWatchSlots) + " workers");
  watch_->Reset(slot);
  SpawnOptions spawn;
  spawn.argv = start.argv;
  if (!start.argv.empty() && start.argv.front() == actors::kPluginHost) {
    const Result<std::string> host = FindProgram(actors::kPluginHost, options_.bin_dir);
    if (!host.ok())
      return refuse(host.error().message + " nor in " + options_.bin_dir +
                    "; plugins need it: install the programs of this release of Troupe together");
    spawn.argv.front() = *host;
  }
  spawn.env = start.env;
  if (start.hide_devices && !spawn.env.contains(kVisibleDevices))
    spawn.env[kVisibleDevices] = VisibleDevices(start.room.devices, Env(kVisibleDevices));
  spawn.env["TROUPE_WORKER_PROCESS"] = start.process;
  spawn.env["TROUPE_WORKER_NODE"] = options_.node;
  spawn.env["TROUPE_WORKER_HEAD"] = options_.head.endpoint;
  spawn.env["TROUPE_WORKER_HEAD_KEY"] = options_.head.public_key;
  spawn.env["TROUPE_WORKER_KEY_FILE"] = options_.key_file;
  spawn.env["TROUPE_WORKER_LIVES"] = options_.run_dir + "/lives-" + options_.node;
  spawn.env["TROUPE_WORKER_SLOT"] = std::to_string(slot);
  spawn.env["TROUPE_WORKER_DATA_ADDRESS"] = options_.data_address;
  spawn.env["TROUPE_WORKER_RUN_DIR"] = options_.run_dir;
  spawn.env["PYTHONUNBUFFERED"] = "1";
  spawn.capture_output = true;
  Result<ChildProcess> child = Spawn(spawn);
  if (!child.ok()) return refuse(child.error().message);
  Worker& worker = workers_[start.process];
  metrics::Set(metrics::Id::kNodeWorkers, static_cast<double>(workers_.size()));
  worker.child = std::move(*child);
  worker.job = start.job;
  worker.room = start.room;
  worker.incarnation = incarnation_;
  worker.slot = slot;
  worker.out = {worker.child.stdout_fd(), false, ""};
  worker.err = {worker.child.stderr_fd(), true, ""};
  if (!options_.log_dir.empty()) {
    const std::string path = options_.log_dir + "/worker-" + start.process + ".log";
    worker.log_fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (worker.log_fd < 0) LogWarning("cannot write ", path, ": ", std::strerror(errno));
  }
  EventLoop& loop = transport_->loop();
  const std::string name = start.process;
  watch_->Watch(slot, [this, name, alive = alive_] {
    transport_->loop().Post([this, name, alive] {
      if (*alive) OnLifeLost(name);
    });
  });
  loop.WatchFd(worker.child.pidfd(), [this, name] { OnExit(name); });
  loop.WatchFd(worker.out.fd, [this, name] { ReadOutput(name, workers_.at(name).out, false); });
  loop.WatchFd(worker.err.fd, [this, name] { ReadOutput(name, workers_.at(name).err, false); });
}

void NodeService::OnLifeLost(const std::string& process) {
  const auto it = workers_.find(process);
  if (it == workers_.end() || it->second.death_reported) return;
  it->second.death_reported = true;
  if (trace::On()) trace::Instant("life lost", {{"process", process}});
  WorkerExited exited{process, false, "its process ended", 0, {}};
  Tell(kFrameWorkerExited, wire::Encode(kFrameWorkerExited, exited));
}

void NodeService::OnExit(const std::string& process) {
  const auto it = workers_.find(process);
  if (it == workers_.end()) return;
  Worker& worker = it->second;
  const std::optional<ExitInfo> info = worker.child.TryReap();
  if (!info) return;
  if (trace::On()) trace::Instant("reaped", {{"process", process}, {"how", info->ToString()}});
  EventLoop& loop = transport_->loop();
  loop.UnwatchFd(worker.child.pidfd());
  ReadOutput(process, worker.out, true);
  ReadOutput(process, worker.err, true);
  watch_->Unwatch(worker.slot);
  if (worker.log_fd >= 0) ::close(worker.log_fd);
  WorkerExited exited{process,
                      true,
                      info->ToString(),
                      info->code,
                      {worker.last_lines.begin(), worker.last_lines.end()}};
  workers_.erase(it);
  metrics::Set(metrics::Id::kNodeWorkers, static_cast<double>(workers_.size()));
  metrics::Add(metrics::Id::kNodeWorkerExits, 1,
               info->signal != 0 ? "signal"
               : info->code == 0 ? "ok"
                                 : "error");
  Tell(kFrameWorkerExited, wire::Encode(kFrameWorkerExited, exited));
}

void NodeService::ReadOutput(const std::string& process, Stream& stream, bool to_the_end) {
  if (stream.fd < 0) return;
  std::vector<std::string> lines;
  uint64_t dropped = 0;
  char buffer[kReadBytes];
  bool ended = false;
  do {
    const ssize_t got = ::read(stream.fd, buffer, sizeof buffer);
    if (got <= 0) {
      ended = got == 0 || (errno != EAGAIN && errno != EINTR);
      break;
    }
    Worker& worker = workers_.at(process);
    if (worker.log_fd >= 0 && ::write(worker.log_fd, buffer, static_cast<size_t>(got)) < 0) {
      LogWarning("worker output cannot be written to its file: ", std::strerror(errno));
      ::close(std::exchange(worker.log_fd, -1));
    }
    for (const char c : std::string_view(buffer, static_cast<size_t>(got))) {
      if (c != '\n' && stream.partial.size() < kOutputLineBytesMax) {
        stream.partial.push_back(c);
        continue;
      }
      if (lines.size() < kOutputLinesPerTurn) {
        lines.push_back(std::move(stream.partial));
      } else {
        ++dropped;
      }
      stream.partial.clear();
      if (c != '\n') stream.partial.push_back(c);
    }
  } while (to_the_end);
  if ((ended || to_the_end) && !stream.partial.empty()) lines.push_back(std::move(stream.partial));
  if (ended || to_the_end) {
    transport_->loop().UnwatchFd(stream.fd);
    stream.fd = -1;
  }
  SendOutput(process, stream, std::move(lines), dropped);
}

void NodeService::SendOutput(const std::string& process, Stream& stream,
                             std::vector<std::string> lines, uint64_t dropped) {
  if (lines.empty() && dropped == 0) return;
  metrics::Add(metrics::Id::kNodeDroppedLines, static_cast<double>(dropped));
  if (stream.is_stderr) {
    Worker& worker = workers_.at(process);
    for (const std::string& line : lines) {
      worker.last_lines.push_back(line);
      if (worker.last_lines.size() > kLastLinesKept) worker.last_lines.pop_front();
    }
  }
  WorkerOutput output{process, stream.is_stderr, std::move(lines), dropped};
  Tell(kFrameWorkerOutput, wire::Encode(kFrameWorkerOutput, output));
}

void NodeService::Stop(Duration grace) {
  std::mutex mu;
  std::condition_variable done;
  bool stopped = false;
  transport_->loop().Post([&] {
    leaving_ = true;
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
    if (worker.log_fd >= 0) ::close(worker.log_fd);
  }
  transport_->SetHandler(nullptr);
  watch_.reset();
  ::unlink((options_.run_dir + "/lives-" + options_.node).c_str());
}

}  // namespace troupe::daemons
