#include "daemons/head/head_service.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "collective_groups/membership/messages.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kTick = milliseconds(200);
constexpr size_t kReasonsPerTick = 50;  // They take a look at the whole cluster.
// Of a job's events that its driver has not seen: workers with large payloads wait then.
constexpr uint64_t kUnseenBytesMax = uint64_t{256} << 20;
// In memory: a report that finds no room is dropped. Large ones lie in files.
constexpr uint64_t kUnseenReportBytesMax = uint64_t{24} << 20;
constexpr uint64_t kErrorBytesMax = uint64_t{16} << 20;  // Of a pickled exception.

}  // namespace

template <class T, class F>
void HeadService::On(uint8_t type, const std::string& frame, F&& handler) {
  Result<T> message = wire::Decode<T>(type, frame);
  if (message.ok()) {
    handler(*message);
  } else {
    LogWarning("dropped a frame: ", message.error().message);
  }
}

void HeadService::OnFrame(const std::string& from, const std::string& frame) {
  NoticeStop();
  if (actors_.OnFrame(from, frame)) return;
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) {
    LogWarning("dropped a frame from ", from, ": ", type.error().message);
    return;
  }
  switch (*type) {
    case actors::kFrameGroupRequest:
      return On<actors::GroupRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::PlacementGroupVerb::kCreate && !m.spec.detached)
          actors_.Own(m.spec.owner);
        placement_groups_.OnRequest(Now(), from, m);
      });
    case actors::kFrameActorGroupRequest:
      return On<actors::ActorGroupRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::ActorGroupVerb::kCreate) actors_.OwnFrom(m.spec.owner, from);
        actor_groups_.OnRequest(Now(), from, m);
      });
    case actors::kFrameCollectiveRequest:
      return On<actors::CollectiveRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::CollectiveVerb::kCreate) actors_.Own(m.spec.owner);
        collective_groups_.OnRequest(Now(), from, m);
      });
    case kFrameGroupReport:
      return On<GroupFrame>(*type, frame, [&](const GroupFrame& m) {
        Result<groups::Report> report = wire::Decode<groups::Report>(kFrameGroupReport, m.body);
        if (report.ok() && !collective_groups_.OnReport(from, m.group, *report))
          OnReport(m.group, *report);
      });
    case kFrameNodeHello:
      return On<NodeHello>(*type, frame, [&](const auto& m) { OnNodeHello(from, m); });
    case kFrameWorkerHello:
      return On<WorkerHello>(*type, frame, [&](const auto& m) { OnWorkerHello(from, m); });
    case kFrameWorkerExited:
      return On<WorkerExited>(*type, frame, [&](const auto& m) { OnWorkerExited(m); });
    case kFrameWorkerOutput:
      return On<WorkerOutput>(*type, frame, [&](const auto& m) { OnWorkerOutput(from, m); });
    case kFrameWorkerResult:
      return On<WorkerResult>(*type, frame, [&](const auto& m) { OnWorkerResult(m); });
    case kFrameWorkerNote:
      return On<WorkerNote>(*type, frame, [&](const auto& m) { OnWorkerNote(m); });
    case kFrameWorkerPart:
      return On<WorkerPart>(*type, frame, [&](const auto& m) { OnWorkerPart(from, m); });
    case kFrameLogTail:
      return On<LogTail>(*type, frame, [&](const auto& m) { logs_.OnTail(m); });
    case kFrameSubmitJob:
      return On<SubmitJob>(*type, frame, [&](const auto& m) { OnSubmit(from, m); });
    case kFrameDriverHello:
      return On<DriverHello>(*type, frame, [&](const auto& m) { OnDriverHello(from, m); });
    case kFrameJobCommand:
      return On<JobCommand>(*type, frame, [&](const auto& m) { OnJobCommand(from, m); });
    case kFrameSubscribe:
      return On<Subscribe>(*type, frame, [&](const auto& m) { OnSubscribe(from, m); });
    case kFrameQuery:
      return On<Query>(*type, frame, [&](const auto& m) { OnQuery(from, m); });
    default:
      LogWarning("dropped a frame of unknown type ", static_cast<int>(*type), " from ", from);
  }
}

// ---- processes ----

void HeadService::OnWorkerHello(const std::string& from, const WorkerHello& hello) {
  if (actors_.OnWorkerHello(from, hello)) return;
  HeadProcess& process = processes_.Adopt(Now(), hello.process, hello.node, RunRole{});
  if (process.ended) return;
  const bool first = !process.hello;
  process.hello = true;
  process.node = hello.node;
  process.pid = hello.pid;
  process.host = hello.host;
  RunRole& role = *process.run();
  role.preloaded = hello.preloaded;
  role.address = hello.address;
  TakeCounts(role, hello.counts);
  // One that this head knows as that member may be on its way out: a drained one settles yet.
  const bool stranger = !hello.member.empty() && role.member != hello.member;
  if (!hello.job.empty() && role.job.empty()) {  // We started after it was assigned.
    role.job = hello.job;
    role.member = hello.member;
  }
  const auto [job, worker] = Owner(hello.process);
  const bool known = job != nullptr || (jobs_.contains(role.job) && !jobs_.at(role.job).done());
  if (!known && !role.job.empty()) {
    (void)transport_->Send(from,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"its job is over"}));
    return;
  }
  const bool other = worker != nullptr && hello.member != worker->member().ToString();
  if (stranger && (worker == nullptr || other)) {
    role.member = hello.member;  // No spare.
    return Kill(hello.process, SIGKILL, "it was evicted before the head restarted");
  }
  if (worker != nullptr && !role.lease.empty())  // Else its node has to claim it first.
    Schedule(sched::Confirm{worker->lease, worker->node});
  if (worker != nullptr) {
    worker->pid = hello.pid;
    worker->host = hello.host;
  }
  if (worker != nullptr && worker->status() == WorkerState::kStarting && !hello.job.empty()) {
    worker->state = static_cast<uint8_t>(WorkerState::kRunning);
    Save(*job);
    job->start_failures = 0;
    EmitWorker(*job, *worker, StatusOf(*job, *worker), "started", "");
  }
  if (hello.job.empty() && (first || worker != nullptr || !hello.preloaded)) Assign(hello.process);
}

// One that was evicted or taken for dead may come back from behind a cut, to a head that is another
// one by now and whose group does not know of that.
void HeadService::OnReport(const std::string& group, const groups::Report& report) {
  const auto job = jobs_.find(group);
  if (job == jobs_.end()) return;
  const JobWorker* worker = FindWorker(job->second, report.id.ToString());
  if (worker != nullptr && worker->alive() && !worker->fenced) groups_.OnReport(group, report);
}

void HeadService::Assign(const std::string& name) {
  const HeadProcess& process = *ProcessOf(name);
  const RunRole& role = *process.run();
  const auto it = jobs_.find(role.job);
  if (it == jobs_.end() || !process.hello) return;
  const Job& job = it->second;
  Assignment assignment;
  assignment.env = job.spec.env;
  assignment.preload = job.spec.preload;
  if (!role.member.empty() && role.kept) {
    assignment.job = job.spec.job;
    assignment.name = job.spec.name;
    assignment.kind = job.spec.kind;
    assignment.member = role.member;
    assignment.min_workers = job.spec.min_workers;
    assignment.max_workers = job.spec.max_workers;
    assignment.payload = job.spec.payload;
    assignment.group_running = job.view.epoch > 0;
    for (const JobWorker& w : job.record.workers) {
      if (w.process != name) continue;
      assignment.index = w.index;
      assignment.devices = w.devices;
    }
  }
  (void)transport_->Send(name, wire::Encode(kFrameAssignment, assignment));
}

void HeadService::OnWorkerExited(const WorkerExited& exited, bool lost) {
  if (actors_.OnWorkerExited(exited)) return;
  HeadProcess* process = ProcessOf(exited.process);
  if (process == nullptr) return;
  const auto [job, worker] = Owner(exited.process);
  if (!process->ended) {
    process->ended = true;
    WorkerCounts last = process->run()->counts;
    last.waiting = 0;
    TakeCounts(*process->run(), last);
    if (trace::On()) trace::Instant("worker gone", {{"process", exited.process}});
    if (worker != nullptr && worker->alive()) WorkerDied(*job, *worker, exited.how);
  }
  if (!exited.reaped) return;
  for (auto& [name, of] : jobs_) TellDeath(of, exited, lost);
  const RunRole role = *process->run();
  processes_.Remove(exited.process);
  uploads_.Forget(exited.process);
  if (!role.lease.empty()) Schedule(sched::Release{role.lease});
  if (const auto owner = jobs_.find(role.job); owner != jobs_.end()) {
    Fill(owner->second);
    EmitLast(owner->second);
  }
}

void HeadService::OnWorkerOutput(const std::string& from, const WorkerOutput& output) {
  (void)transport_->Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{output.number}));
  if (actors_.OnWorkerOutput(output)) return;
  const auto [job, worker] = Owner(output.process);
  if (worker == nullptr) return;
  EmitDropped(*job);
  const size_t lines = output.lines.size() + output.dropped;
  if (job->events.AddOutput(LogEvent(job->spec.job, Now(), StatusOf(*job, *worker), output), lines))
    SendEvents(*job);
}

void HeadService::OnWorkerNote(const WorkerNote& note) {
  const auto [job, worker] = Owner(note.process);
  if (worker == nullptr) return;
  if (const std::optional<Recovered> recovered = ReadRecovered(note)) {
    metrics::Add(metrics::Id::kStepsReplayed, static_cast<double>(recovered->steps_replayed));
    metrics::Add(metrics::Id::kStepsRecomputed, static_cast<double>(recovered->steps_recomputed));
    metrics::Add(metrics::Id::kSamplesReturned, static_cast<double>(recovered->samples_returned));
  }
  std::shared_ptr<const SpoolFile> file;
  if (note.upload != 0) {
    file = uploads_.Take(note.process, note.upload);
    if (!file) return;  // Its beginning went to the head before.
  } else if (note.kind == "report" && job->events.bytes() > kUnseenReportBytesMax) {
    if (std::exchange(job->report_dropped, true)) return;
    WorkerNote warning = note;
    warning.kind = "warning";
    warning.payload = "reports are dropped: the driver does not take them as fast as they come";
    Emit(*job, NoteEvent(job->spec.job, Now(), StatusOf(*job, *worker), warning));
    return;
  }
  job->report_dropped = false;
  JobEvent event = NoteEvent(job->spec.job, Now(), StatusOf(*job, *worker), note);
  // Members may go before the head has heard that all of them do.
  const bool ahead = job->view.epoch > 0 && note.epoch > job->view.epoch;
  if (job->epoch_pending || !job->epochs.empty() || ahead) {
    job->noted.push_back({note.epoch, std::move(event), std::move(file)});
  } else {
    Emit(*job, std::move(event), std::move(file));
  }
}

void HeadService::OnWorkerPart(const std::string& from, const WorkerPart& part) {
  const auto [job, worker] = Owner(part.process);
  if (worker == nullptr || job->released) {
    (void)transport_->Send(from,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the job is over"}));
    return;
  }
  // It comes again.
  if (job->done() || job->events.unseen_bytes() > kUnseenBytesMax) return;
  const Result<uint64_t> have = uploads_.Add(part);
  if (have.ok()) {
    (void)transport_->Send(from, wire::Encode(kFramePartTaken, PartTaken{part.upload, *have}));
    return;
  }
  End(*job, "failed",
      "cannot keep what " + worker->member().ToString() + " has to say (" +
          std::to_string(part.total) + " bytes): " + have.error().message);
}

void HeadService::OnWorkerResult(const WorkerResult& result) {
  if (actors_.OnWorkerResult(result)) return;
  const auto [job, worker] = Owner(result.process);
  const HeadProcess* known = ProcessOf(result.process);
  if (worker == nullptr || job->released) {
    (void)transport_->Send(result.process,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the job is over"}));
    return;
  }
  if (job->done()) return;
  if (known == nullptr || known->ended) return;
  if (!worker->alive()) {  // It was drained, or taken for dead; it may not have heard of that.
    (void)transport_->Send(result.process,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"it has left"}));
    return;
  }
  if (worker->status() == WorkerState::kFinished && job->results.contains(result.member))
    return;              // A repeat.
  if (worker->fenced) {  // Its host was cut off meanwhile, so that the order to end it was lost.
    (void)transport_->Send(result.process,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"evicted"}));
    Kill(result.process, SIGKILL, "it was evicted by its group");
    return;
  }
  std::shared_ptr<const SpoolFile> file;
  if (result.upload != 0) {
    file = uploads_.Take(result.process, result.upload);
    if (!file) {  // It went to the head before.
      (void)transport_->Send(
          result.process,
          wire::Encode(kFramePartTaken,
                       PartTaken{result.upload, uploads_.Have(result.process, result.upload)}));
      return;
    }
  }
  if (result.rank >= 0) worker->rank = result.rank;
  if (!result.ok) {
    EmitWorker(*job, *worker, StatusOf(*job, *worker), "failed", "");
    const bool whole = file && file->size() <= kErrorBytesMax;
    End(*job, "failed", worker->member().ToString() + " raised an exception",
        StatusOf(*job, *worker), whole ? file->Read(0, file->size()) : result.payload);
    return;
  }
  if (result.payload.empty() && !file) {
    worker->state = static_cast<uint8_t>(WorkerState::kDrained);
    EmitWorker(*job, *worker, StatusOf(*job, *worker), "drained", "");
    if (!job->results.empty()) job->restarts.clear();  // The group has no use for another life.
    (void)transport_->Send(result.process,
                           wire::Encode(kFrameReleaseWorker, ReleaseWorker{"drained"}));
    Save(*job);
    FinishIfDone(*job);
    Fill(*job);
    return;
  }
  // One that had finished says it anew to a head that has not got its result.
  const bool told = worker->status() == WorkerState::kFinished;
  worker->state = static_cast<uint8_t>(WorkerState::kFinished);
  const std::string member = worker->member().ToString();
  job->results[member] = {result.payload, std::move(file)};
  SaveResult(*job, member);
  if (!told) EmitWorker(*job, *worker, StatusOf(*job, *worker), "finished", "");
  Save(*job);
  FinishIfDone(*job);
}

// ---- time ----

// What nodes and drivers could not tell us while we were stopped does not count as their silence.
void HeadService::NoticeStop() {
  if (tick_due_ == Time::Never() || Now() < tick_due_ + EventLoop::kStoppedFrom) return;
  const Duration stopped = Now() - tick_due_;
  LogWarning("the head was stopped for ", ToMilliseconds(stopped), " ms");
  tick_due_ = Now();
  ApplyNodes(nodes_.Step(Now(), ListenerResumed{stopped}));
  actors_.OnStopped(stopped);
  processes_.OnStopped(stopped);
  for (auto& [name, driver] : drivers_) driver.heard = std::min(Now(), driver.heard + stopped);
  for (auto& [name, job] : jobs_) {
    job.driver_heard = std::min(Now(), job.driver_heard + stopped);
    if (job.confirm_by != Time::Never()) job.confirm_by = job.confirm_by + stopped;
    for (auto& [process, death] : job.deaths) death.tell_by = death.tell_by + stopped;
    if (job.told_by != Time::Never()) job.told_by = job.told_by + stopped;
    if (job.last_event_by != Time::Never()) job.last_event_by = job.last_event_by + stopped;
  }
  if (recover_until_ > Now()) Recover(recover_until_ + stopped);
}

void HeadService::OnTick() {
  NoticeStop();
  ApplyNodes(nodes_.Step(Now(), troupe::Tick{}));
  for (auto& [name, job] : jobs_) {
    if (!job.done()) EndWithoutDriver(job);
    if (job.done()) {
      EmitLast(job);
      ForgetWhenSeen(job);
      continue;
    }
    Confirm(job);
    TellGone(job);
    TellDeaths(job, Now());
    // The head before may have got the last result, and no further.
    FinishIfDone(job);
    if (job.done()) continue;
    for (JobWorker& worker : job.record.workers) {
      const HeadProcess* process = ProcessOf(worker.process);
      const bool awaited =
          worker.status() == WorkerState::kStarting || worker.status() == WorkerState::kDraining;
      const bool late = awaited && process != nullptr && !process->hello &&
                        Now() > process->since + kWorkerStartLimit;
      if (late) Kill(worker.process, SIGKILL, "it did not come up in time");
      if (process != nullptr && !process->run()->kept) BeginWhenKept(worker.process);
      PressDrain(job, worker);
    }
    Fill(job);
    CheckRoom(job);
    EnsureSpare(job);
  }
  actors_.OnTick();
  if (recover_until_ <= Now()) placement_groups_.Recovered();
  placement_groups_.OnTick(Now(), options_.embedded && !offered_.empty());
  collective_groups_.OnTick(Now());
  actor_groups_.OnTick(Now());
  logs_.OnTick(Now());
  for (const std::string& lease : actors_.TakeWaiting(kReasonsPerTick)) {
    const std::optional<sched::LeaseStatus> status = scheduler_.FindLease(lease);
    // A placement group may grow, a cluster of several hosts, too.
    const bool fixed = options_.embedded && !offered_.empty();
    const bool never = status && status->impossible && status->group.empty() && fixed;
    if (status) actors_.SetReason(lease, status->reason, never);
  }
  for (const std::string& name : Outdated()) {
    Forget(jobs_.at(name));  // Again: the store may have been away when it ended.
    jobs_.erase(name);
  }
  RefreshKeys();
  records_.OnTick();
  Measure();
  tick_due_ = Now() + kTick;
  transport_->loop().CallAt(tick_due_, [this, alive = alive_] {
    if (*alive) OnTick();
  });
}

// ---- look-ups ----

HeadProcess* HeadService::ProcessOf(const std::string& name) {
  HeadProcess* process = processes_.Find(name);
  return process == nullptr || process->run() == nullptr ? nullptr : process;
}

bool HeadService::IsSpareOf(const HeadProcess& process, const Job& job) {
  const RunRole* role = process.run();
  return role != nullptr && role->job == job.spec.job && role->member.empty() && !process.ended;
}

JobWorker* HeadService::FindWorker(Job& job, const std::string& member) {
  for (JobWorker& worker : job.record.workers) {
    if (worker.member().ToString() == member) return &worker;
  }
  return nullptr;
}

std::pair<Job*, JobWorker*> HeadService::Owner(const std::string& process) {
  for (auto& [name, job] : jobs_) {
    for (JobWorker& worker : job.record.workers) {
      if (worker.process == process) return {&job, &worker};
    }
  }
  return {nullptr, nullptr};
}

void HeadService::Reply(const std::string& to, uint64_t request, const Status& status,
                        const std::string& json) {
  DriverReply reply{request, 0, "", json};
  if (!status.ok()) {
    reply.code = static_cast<uint8_t>(status.error().code);
    reply.message = status.error().message;
  }
  (void)transport_->Send(to, wire::Encode(kFrameDriverReply, reply));
}

// What is done is to be done also for the next head.
void HeadService::ReplyWhenKept(const std::string& to, uint64_t request) {
  records_.WhenKept(to + "#" + std::to_string(request),
                    [this, to, request] { Reply(to, request, Status::Ok()); });
}

}  // namespace troupe::daemons
