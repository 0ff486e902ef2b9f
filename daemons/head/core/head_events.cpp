// What HeadCore tells about its jobs: events to their drivers, records to the store, status.
#include <algorithm>
#include <utility>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"
#include "runtime/wire.h"

namespace troupe::daemons {

void HeadCore::EmitEpoch(Job& job, Duration pause) {
  job.epoch_pending = false;
  job.epochs.push_back({job.view, job.old_size, pause, job.planned});
  EmitEpochs(job);
}

// A restarted head may hear members before it hears their nodes. An epoch is told only when it is
// known where its members run.
void HeadCore::EmitEpochs(Job& job) {
  if (job.confirming && !job.done()) return;
  for (const Job::Told& told : std::exchange(job.epochs, {})) {
    Emit(job, EpochEvent(job.spec.job, Now(), told.view, told.old_size, told.pause, told.planned,
                         StatusMap(job)));
    EmitNoted(job, told.view.epoch);
  }
}

void HeadCore::EmitSettledEpoch(Job& job) {
  if (job.epoch_pending && job.epoch_settled) EmitEpoch(job, job.took);
}

// What comes after an epoch is told after it.
void HeadCore::EmitInOrder(Job& job, JobEvent event) {
  if (job.epochs.empty()) return Emit(job, std::move(event));
  job.noted.push_back({job.epochs.back().view.epoch, std::move(event), nullptr});
}

void HeadCore::EmitNoted(Job& job, groups::Epoch newest) {
  for (Job::Noted& noted : std::exchange(job.noted, {})) {
    if (noted.epoch > newest) {
      job.noted.push_back(std::move(noted));
    } else {
      Emit(job, std::move(noted.event), std::move(noted.file));
    }
  }
}

// What happens to a member of an epoch comes after that epoch, whose pause may not be known yet.
void HeadCore::EmitEpochOf(Job& job, const JobWorker& worker) {
  if (job.epoch_pending && groups::RankOf(job.view, worker.member()) >= 0) EmitEpoch(job, job.took);
}

void HeadCore::EmitWorker(Job& job, const JobWorker& worker, const WorkerStatus& status,
                          const std::string& state, const std::string& detail) {
  metrics::Add(metrics::Id::kWorkerEvents, 1, state);
  EmitEpochOf(job, worker);
  EmitInOrder(job, WorkerEvent(job.spec.job, Now(), status, state, detail));
}

void HeadCore::Emit(Job& job, JobEvent event, std::shared_ptr<const SpoolFile> file) {
  job.events.Add(std::move(event), std::move(file));
  SendEvents(job);
}

// Output that the driver was too slow for.
void HeadCore::EmitDropped(Job& job) {
  if (const uint64_t lines = job.events.TakeDropped(); lines > 0)
    job.events.AddOutput(DroppedEvent(job.spec.job, Now(), lines), lines);
}

void HeadCore::SendEvents(Job& job) {
  const auto send = [&](const std::string& driver, const auto& next) {
    const auto peer = driver_peers_.find(driver);
    if (peer == driver_peers_.end()) return;
    while (std::optional<JobEvents> batch = next()) {
      batch->job = job.spec.job;
      batch->log = log_id_;
      Send(peer->second, wire::Encode(kFrameJobEvents, *batch));
    }
  };
  send(job.record.driver, [&] { return job.events.Next(); });
  for (const std::string& watcher : job.events.Watchers(Now()))
    send(watcher, [&] { return job.events.NextOf(watcher); });
}

// Of one that is over nothing is kept: see Forget.
void HeadCore::Save(const Job& job) {
  if (job.done()) return;
  Keep("job/" + job.spec.job + "/state", wire::Encode(kFrameJobCommand, job.record));
}

void HeadCore::SaveSpec(const Job& job) {
  Keep("job/" + job.spec.job + "/spec", wire::Encode(kFrameSubmitJob, job.spec));
}

// A large one stays with its worker until the run is over.
void HeadCore::SaveResult(const Job& job, const std::string& member) {
  const auto result = job.results.find(member);
  if (result == job.results.end() || result->second.file) return;
  if (result->second.bytes.size() > kKeptResultBytes) return;
  Keep("job/" + job.spec.job + kResult + member, result->second.bytes);
}

// What the head holds, as of now.
void HeadCore::Measure() const {
  if (!metrics::On()) return;
  std::map<std::string, double> jobs;
  for (size_t i = 0; i < kJobStates; ++i) jobs[JobStateName(static_cast<JobState>(i))] = 0;
  for (const auto& [name, job] : jobs_) ++jobs[JobStateName(job.state)];
  for (const auto& [state, count] : jobs) metrics::Set(metrics::Id::kJobs, count, state);
  std::map<NodeState, double> nodes{{NodeState::kAlive, 0},
                                    {NodeState::kSuspect, 0},
                                    {NodeState::kDead, 0},
                                    {NodeState::kLeft, 0}};
  for (const auto& [id, record] : nodes_.nodes()) ++nodes[record.state];
  for (const auto& [state, count] : nodes)
    metrics::Set(metrics::Id::kNodes, count, NodeStateName(state));
  std::map<std::string, double> capacity;
  std::map<std::string, double> used;
  for (const sched::NodeStatus& node : scheduler_.Nodes()) {
    if (!node.alive) continue;
    for (const auto& [name, amount] : node.total.ToMap()) capacity[name] += amount;
    for (const auto& [name, amount] : node.used.ToMap()) used[name] += amount;
  }
  for (const auto& [name, amount] : capacity) {
    metrics::Set(metrics::Id::kResourceCapacity, amount, name);
    metrics::Set(metrics::Id::kResourceUsed, used[name], name);
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
  for (const auto& [name, job] : jobs_) {
    if (job.end_kept) SaveEnd(job);
    if (job.done()) continue;
    SaveSpec(job);
    Save(job);
    for (const auto& [member, result] : job.results) SaveResult(job, member);
  }
  actors_.RefreshKeys();
  placement_groups_.RefreshKeys();
  collective_groups_.RefreshKeys();
  actor_groups_.RefreshKeys();
}

WorkerStatus HeadCore::StatusOf(const Job& job, const JobWorker& worker) const {
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
  if (const groups::Coordinator* group = coordinators_->Find(job.spec.job); group != nullptr) {
    for (const groups::Report& r : group->members()) {
      if (r.id != worker.member()) continue;
      status.version = r.version;
      if (worker.state == WorkerState::kRunning && r.state != groups::MemberState::kActive)
        status.state = "ready";
    }
  }
  return status;
}

std::map<std::string, WorkerStatus> HeadCore::StatusMap(const Job& job) const {
  std::map<std::string, WorkerStatus> map;
  for (const JobWorker& worker : job.record.workers)
    map[worker.member().ToString()] = StatusOf(job, worker);
  return map;
}

JobStatus HeadCore::StatusOf(const Job& job) const {
  JobStatus status{job.spec.job,         job.spec.name,        JobStateName(job.state),
                   job.reason,           job.view.epoch,       job.record.target,
                   job.spec.min_workers, job.spec.max_workers, {},
                   job.spec.detached,    Attended(job),        ToSeconds(Now() - job.submitted)};
  for (const JobWorker& worker : job.record.workers)
    status.workers.push_back(StatusOf(job, worker));
  if (const groups::Coordinator* group = coordinators_->Find(job.spec.job);
      group != nullptr && status.reason.empty()) {
    status.reason = group->waiting_for();
  }
  return status;
}

}  // namespace troupe::daemons
