// What NodeService does for each of its workers: starts it, notices its end.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>

#include "actors/core/actor_group_protocol.h"
#include "actors/core/cluster_protocol.h"
#include "daemons/node/node_service.h"
#include "runtime/descendants.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/trace.h"
#include "runtime/wire.h"
#include "scheduler/devices.h"

namespace troupe::daemons {
namespace {

// One that was given up before it was forked may be forked yet, and ends then.
constexpr Duration kForkedLate = seconds(5);

// For people: "signal SIGSEGV (Segmentation fault)", "exit code 3".
std::string Cause(const ExitInfo& info, bool oom) {
  if (oom) return "out of memory: the kernel ended it (signal SIGKILL)";
  if (info.signal == 0) return "exit code " + std::to_string(info.code);
  const char* name = ::sigabbrev_np(info.signal);
  return "signal " + (name != nullptr ? "SIG" + std::string(name) : std::to_string(info.signal)) +
         " (" + ::strsignal(info.signal) + ")";
}

}  // namespace

uint64_t NodeService::OomKills() {
  uint64_t kills = 0;
  for (const char* path : {"/sys/fs/cgroup/memory.events", "/proc/vmstat"}) {
    std::ifstream file(path);
    uint64_t count = 0;
    for (std::string name; file >> name >> count;) {
      if (name == "oom_kill") kills += count;
    }
  }
  return kills;
}

// What is its own of the worker's environment: all that a process that was started ahead lacks.
std::map<std::string, std::string> NodeService::OwnVariables(const StartWorker& start,
                                                             uint32_t slot, uint64_t turn) const {
  std::map<std::string, std::string> own;
  const auto group = start.env.find(actors::kActorGroupVariable);
  // Of a cluster that a member of a group has started: its actors are none of that group.
  own[actors::kActorGroupVariable] = group == start.env.end() ? "" : group->second;
  if (start.hide_devices && !start.env.contains(kVisibleDevices))
    own[kVisibleDevices] = VisibleDevices(start.room.devices, Env(kVisibleDevices));
  own["TROUPE_WORKER_PROCESS"] = start.process;
  own["TROUPE_WORKER_NODE"] = options_.node;
  own["TROUPE_WORKER_HEAD"] = options_.head.endpoint;
  own["TROUPE_WORKER_HEAD_KEY"] = options_.head.public_key;
  own["TROUPE_WORKER_KEY_FILE"] = options_.key_file;
  own["TROUPE_WORKER_LIVES"] = options_.run_dir + "/lives-" + options_.node;
  own["TROUPE_WORKER_SLOT"] = std::to_string(slot);
  own["TROUPE_WORKER_TURN"] = std::to_string(turn);
  own["TROUPE_WORKER_DATA_ADDRESS"] = options_.data_address;
  own["TROUPE_WORKER_RUN_DIR"] = options_.run_dir;
  return own;
}

// Of spares that this process could be one of.
SpareKind NodeService::KindOf(const StartWorker& start) const {
  SpareKind kind{start.spare_argv, start.env};
  kind.env["PYTHONUNBUFFERED"] = "1";
  for (const auto& [name, value] : OwnVariables(start, 0, 0)) kind.env.erase(name);
  return kind;
}

void NodeService::OnKeepSpares(const KeepSpares& keep) {
  if (core_.leaving() || keep.spare_argv.empty()) return;
  StartWorker start;
  start.spare_argv = keep.spare_argv;
  start.env = keep.env;
  spares_.Keep(KindOf(start), keep.count);
}

// One that was started ahead, if there is one.
Result<std::pair<GuardedProcess, bool>> NodeService::Launch(const StartWorker& start, uint32_t slot,
                                                            uint64_t turn) {
  SpawnOptions spawn;
  spawn.argv = start.argv;
  spawn.env = start.env;
  spawn.env["PYTHONUNBUFFERED"] = "1";
  const std::map<std::string, std::string> own = OwnVariables(start, slot, turn);
  if (!start.spare_argv.empty()) {
    const SpareKind kind = KindOf(start);
    if (std::optional<GuardedProcess> spare = spares_.Take(kind, own, start.more_ahead))
      return std::pair(std::move(*spare), true);
  }
  for (const auto& [name, value] : own) spawn.env[name] = value;
  const std::string missing =
      " nor in " + options_.bin_dir + "; install the programs of this release of Troupe together";
  if (!start.argv.empty() && start.argv.front() == actors::kPluginHost) {
    const Result<std::string> host = FindProgram(actors::kPluginHost, options_.bin_dir);
    if (!host.ok()) return Error{host.error().code, host.error().message + missing};
    spawn.argv.front() = *host;
  }
  const Result<std::string> guard = FindProgram("troupe-guard", options_.bin_dir);
  if (!guard.ok()) return Error{guard.error().code, guard.error().message + missing};
  spawn.capture_output = true;
  Result<GuardedProcess> started = GuardedProcess::Start(*guard, std::move(spawn));
  if (!started.ok()) return started.error();
  return std::pair(std::move(*started), false);
}

void NodeService::Act(const StartProcess& order) {
  const trace::Span span("start worker");
  const StartWorker& start = order.order;
  auto started = Launch(start, order.slot, watch_->Reset(order.slot));
  if (!started.ok()) {
    return core_.OnNotStarted(start.process, started.error().message, transport_->loop().Now());
  }
  core_.OnStarted(start.process, started->second);
  Worker& worker = workers_[start.process];
  metrics::Set(metrics::Id::kNodeWorkers, static_cast<double>(workers_.size()));
  worker.child = std::move(started->first);
  worker.slot = order.slot;
  worker.out = {worker.child.stdout_fd(), false, false};
  worker.err = {worker.child.stderr_fd(), true, false};
  if (!options_.log_dir.empty()) {
    worker.log.emplace(&files_, options_.log_dir + "/worker-" + start.process + ".log",
                       options_.logs.worker_bytes);
    (void)files_.Post(
        0, [dir = options_.log_dir, limits = options_.logs] { ExpireWorkerLogs(dir, limits); });
  }
  relay_.Begin(start.process, worker.log ? worker.log->path() : "");
  const std::string name = start.process;
  watch_->Watch(order.slot, [this, name, back = scope_.back()] {
    back.Post([this, name] {
      if (trace::On()) trace::Instant("life lost", {{"process", name}});
      core_.OnLifeLost(name);
      Act();
    });
  });
  WatchEnd(name);
  WatchOutput(name, worker.out);
  WatchOutput(name, worker.err);
}

void NodeService::WatchEnd(const std::string& process) {
  transport_->loop().WatchFd(workers_.at(process).child.end_fd(),
                             [this, process] { OnExit(process); });
}

// By value: what it was called by may end meanwhile.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void NodeService::OnExit(std::string process) {
  const auto it = workers_.find(process);
  if (it == workers_.end()) return;
  Worker& worker = it->second;
  const int watched = worker.child.end_fd();
  const std::optional<ExitInfo> info = worker.child.TryReap();
  if (!info && worker.child.end_fd() == watched) return;
  transport_->loop().UnwatchFd(watched);
  if (!info) return WatchEnd(process);
  if (trace::On()) trace::Instant("reaped", {{"process", process}, {"how", info->ToString()}});
  EventLoop& loop = transport_->loop();
  ReadRest(process, worker.out);
  ReadRest(process, worker.err);
  watch_->Unwatch(worker.slot);
  auto [output, last_lines] = relay_.End(loop.Now(), process);
  for (const WorkerOutput& one : output) Tell(wire::Encode(kFrameWorkerOutput, one));
  const uint64_t oom_kills = OomKills();
  const bool oom = oom_kills > std::exchange(oom_kills_, oom_kills) && info->signal == SIGKILL &&
                   !worker.child.killed();
  ProcessEnd end{Cause(*info, oom), info->code, watch_->WasHeld(worker.slot),
                 std::move(last_lines)};
  const bool began = worker.child.began();
  workers_.erase(it);
  ended_ = true;
  if (core_.OnExited(process, std::move(end), loop.Now())) {
    metrics::Add(metrics::Id::kNodeWorkerExits, 1,
                 info->signal != 0 ? "signal"
                 : info->code == 0 ? "ok"
                                   : "error");
  }
  Act();
  if (info->signal == SIGKILL) left_behind_ = true;
  if (left_behind_ && !began) unforked_until_ = loop.Now() + kForkedLate;
  EndLeftBehind();
  metrics::Set(metrics::Id::kNodeWorkers, static_cast<double>(workers_.size()));
}

// A guard that was killed itself has left us what its worker started.
void NodeService::EndLeftBehind() {
  // Those that are to be forked yet are children that nobody knows.
  if (!left_behind_ || spares_.forming()) return;
  std::set<int> known = spares_.pids();
  for (const auto& [name, worker] : workers_) {
    if (!worker.child.began()) return;
    known.insert(worker.child.guard_pid());
  }
  left_behind_ = !EndStrays(known) || transport_->loop().Now() < unforked_until_;
}

}  // namespace troupe::daemons
