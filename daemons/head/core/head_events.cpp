// What HeadCore tells about its runs: events to their drivers, records to the store, status.
#include <algorithm>
#include <utility>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kPublish = seconds(1);

}  // namespace

void HeadCore::EmitEpoch(Run& run, Duration pause) {
  run.epoch_pending = false;
  if (!run.planned && run.old_size > 0)
    run.stood_s += ToSeconds(pause) * static_cast<double>(run.view.members.size());
  run.epochs.push_back({run.view, run.old_size, pause, run.planned, StatusMap(run)});
  EmitEpochs(run);
}

// A restarted head may hear members before it hears their nodes. An epoch is told only when it is
// known where its members run.
void HeadCore::EmitEpochs(Run& run) {
  if (run.confirming && !run.done()) return;
  for (const Run::Told& told : std::exchange(run.epochs, {})) {
    std::map<std::string, WorkerStatus> members = StatusMap(run);
    members.insert(told.members.begin(), told.members.end());
    Emit(run, EpochEvent(run.spec.id, Now(), told.view, told.old_size, told.pause, told.planned,
                         members));
    EmitNoted(run, told.view.epoch);
  }
}

void HeadCore::EmitSettledEpoch(Run& run) {
  if (run.epoch_pending && run.epoch_settled) EmitEpoch(run, run.took);
}

// What comes after an epoch is told after it.
void HeadCore::EmitInOrder(Run& run, RunEvent event) {
  if (run.epochs.empty()) return Emit(run, std::move(event));
  run.noted.push_back({run.epochs.back().view.epoch, std::move(event), nullptr});
}

void HeadCore::EmitNoted(Run& run, groups::Epoch newest) {
  for (Run::Noted& noted : std::exchange(run.noted, {})) {
    if (noted.epoch > newest) {
      run.noted.push_back(std::move(noted));
    } else {
      Emit(run, std::move(noted.event), std::move(noted.file));
    }
  }
}

// What happens to a member of an epoch comes after that epoch, whose pause may not be known yet.
void HeadCore::EmitEpochOf(Run& run, const RunWorker& worker) {
  if (run.epoch_pending && groups::RankOf(run.view, worker.member()) >= 0) EmitEpoch(run, run.took);
}

void HeadCore::EmitWorker(Run& run, const RunWorker& worker, const WorkerStatus& status,
                          const std::string& state, const std::string& detail) {
  queue_.Put(step::Count{metrics::Id::kWorkerEvents, 1, state});
  EmitEpochOf(run, worker);
  EmitInOrder(run, WorkerEvent(run.spec.id, Now(), status, state, detail));
}

void HeadCore::Emit(Run& run, RunEvent event, std::shared_ptr<const SpoolFile> file) {
  run.events.Add(std::move(event), std::move(file));
  SendEvents(run);
}

// Output that the driver was too slow for.
void HeadCore::EmitDropped(Run& run) {
  if (const uint64_t lines = run.events.TakeDropped(); lines > 0)
    run.events.AddOutput(DroppedEvent(run.spec.id, Now(), lines), lines);
}

void HeadCore::SendEvents(Run& run) {
  const auto send = [&](const std::string& driver, const auto& next) {
    const auto peer = driver_peers_.find(driver);
    if (peer == driver_peers_.end()) return;
    while (std::optional<RunEvents> batch = next()) {
      batch->run = run.spec.id;
      batch->log = log_id_;
      Send(peer->second, wire::Encode(kFrameRunEvents, *batch));
    }
  };
  send(run.record.driver, [&] { return run.events.Next(); });
  for (const std::string& watcher : run.events.Watchers(Now()))
    send(watcher, [&] { return run.events.NextOf(watcher); });
}

// Of one that is over nothing is kept: see Forget.
void HeadCore::Save(const Run& run) {
  if (run.done()) return;
  Keep("job/" + run.spec.id + "/state", wire::Encode(kFrameRunCommand, run.record));
}

void HeadCore::SaveSpec(const Run& run) {
  Keep("job/" + run.spec.id + "/spec", wire::Encode(kFrameSubmitRun, run.spec));
}

// A large one stays with its worker until the run is over.
void HeadCore::SaveResult(const Run& run, const std::string& member) {
  const auto result = run.results.find(member);
  if (result == run.results.end() || result->second.file) return;
  if (result->second.bytes.size() > kKeptResultBytes) return;
  Keep("job/" + run.spec.id + kResult + member, result->second.bytes);
}

// Not with each word of a process: of thousands there are many.
void HeadCore::PublishUserMetrics() {
  user_metrics_.OnTick(Now());
  if (Now() < publish_at_ || !user_metrics_.TakeChanged()) return;
  publish_at_ = Now() + kPublish;
  queue_.Put(step::Publish{user_metrics_.Families()});
}

// What the head holds, as of now.
void HeadCore::Measure() {
  if (!options_.metrics) return;
  const auto set = [&](metrics::Id id, double value, std::string_view label) {
    queue_.Put(step::Gauge{id, value, std::string(label)});
  };
  std::map<std::string, double> runs;
  for (size_t i = 0; i < kRunStates; ++i) runs[RunStateName(static_cast<RunState>(i))] = 0;
  for (const auto& [name, run] : runs_) ++runs[RunStateName(run.state)];
  for (const auto& [state, count] : runs) set(metrics::Id::kRuns, count, state);
  std::map<NodeState, double> nodes{{NodeState::kAlive, 0},
                                    {NodeState::kSuspect, 0},
                                    {NodeState::kDead, 0},
                                    {NodeState::kLeft, 0}};
  for (const auto& [id, record] : nodes_.nodes()) ++nodes[record.state];
  for (const auto& [state, count] : nodes) set(metrics::Id::kNodes, count, NodeStateName(state));
  std::map<std::string, double> capacity;
  std::map<std::string, double> used;
  for (const sched::NodeStatus& node : scheduler_.Nodes()) {
    if (!node.alive) continue;
    for (const auto& [name, amount] : node.total.ToMap()) capacity[name] += amount;
    for (const auto& [name, amount] : node.used.ToMap()) used[name] += amount;
  }
  for (const auto& [name, amount] : capacity) {
    set(metrics::Id::kResourceCapacity, amount, name);
    set(metrics::Id::kResourceUsed, used[name], name);
  }
}

// Four times in the lifetime of a key.
void HeadCore::RefreshKeys() {
  if (Now() < refresh_at_) return;
  refresh_at_ = Now() + options_.key_ttl / 4;
  WriteAll();
  queue_.Put(step::MarkRecords{});
}

void HeadCore::WriteAll() {
  queue_.Put(step::RefreshEpochs{});
  for (const auto& [name, run] : runs_) {
    if (run.end_kept) SaveEnd(run);
    if (run.done()) continue;
    SaveSpec(run);
    Save(run);
    for (const auto& [member, result] : run.results) SaveResult(run, member);
  }
  actors_.RefreshKeys();
  placement_groups_.RefreshKeys();
  collective_groups_.RefreshKeys();
  actor_groups_.RefreshKeys();
  join_tokens_.RefreshKeys();
}

WorkerStatus HeadCore::StatusOf(const Run& run, const RunWorker& worker) const {
  WorkerStatus status;
  status.id = worker.member().ToString();
  status.rank = worker.rank;
  status.node = worker.node;
  status.process = worker.process;
  status.state = WorkerStateName(worker.state);
  status.pid = worker.pid;
  status.host = worker.host;
  if (const HeadProcess* process = processes_.Find(worker.process); process != nullptr) {
    status.pid = process->pid;
    status.host = process->host;
  }
  if (const groups::Coordinator* group = coordinators_->Find(run.spec.id); group != nullptr) {
    for (const groups::Report& r : group->members()) {
      if (r.id != worker.member()) continue;
      status.version = r.version;
      if (worker.state == WorkerState::kRunning && r.state != groups::MemberState::kActive)
        status.state = "ready";
    }
  }
  return status;
}

std::map<std::string, WorkerStatus> HeadCore::StatusMap(const Run& run) const {
  std::map<std::string, WorkerStatus> map;
  for (const RunWorker& worker : run.record.workers)
    map[worker.member().ToString()] = StatusOf(run, worker);
  return map;
}

RunStatus HeadCore::StatusOf(const Run& run) const {
  RunStatus status{run.spec.id,          run.spec.name,        RunStateName(run.state),
                   run.reason,           run.view.epoch,       run.record.target,
                   run.spec.min_workers, run.spec.max_workers, {},
                   run.spec.detached,    Attended(run),        ToSeconds(Now() - run.submitted),
                   run.view.reason,      run.stood_s,          run.redone_s,
                   run.steps_replayed,   run.steps_recomputed, run.samples_returned,
                   run.samples,          run.samples_per_epoch};
  for (const RunWorker& worker : run.record.workers)
    status.workers.push_back(StatusOf(run, worker));
  if (const groups::Coordinator* group = coordinators_->Find(run.spec.id);
      group != nullptr && status.reason.empty()) {
    status.reason = group->waiting_for();
  }
  return status;
}

}  // namespace troupe::daemons
