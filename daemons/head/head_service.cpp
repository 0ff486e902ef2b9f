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
  actors_.OnWorkerHello(from, hello);
  const auto [job, worker] = Owner(hello.process);
  const HeadProcess* process = processes_.Find(hello.process);
  if (worker == nullptr || process == nullptr || process->ended) return;
  worker->pid = hello.pid;
  worker->host = hello.host;
  if (worker->state != WorkerState::kStarting || hello.job.empty()) return;
  worker->state = WorkerState::kRunning;
  Save(*job);
  job->start_failures = 0;
  EmitWorker(*job, *worker, StatusOf(*job, *worker), "started", "");
}

// One that was evicted or taken for dead may come back from behind a cut, to a head that is another
// one by now and whose group does not know of that.
void HeadService::OnReport(const std::string& group, const groups::Report& report) {
  const auto job = jobs_.find(group);
  if (job == jobs_.end()) return;
  const JobWorker* worker = FindWorker(job->second, report.id.ToString());
  if (worker != nullptr && worker->alive() && !worker->fenced) groups_.OnReport(group, report);
}

std::optional<Assignment> HeadService::AssignmentOf(const std::string& process) {
  const auto [job, worker] = Owner(process);
  if (worker == nullptr || job->done() || !worker->alive()) return std::nullopt;
  Assignment assignment;
  assignment.env = job->spec.env;
  assignment.preload = job->spec.preload;
  assignment.job = job->spec.job;
  assignment.name = job->spec.name;
  assignment.member = worker->member().ToString();
  assignment.index = worker->index;
  assignment.devices = worker->devices;
  assignment.min_workers = job->spec.min_workers;
  assignment.max_workers = job->spec.max_workers;
  assignment.payload = job->spec.payload;
  assignment.group_running = job->view.epoch > 0;
  return assignment;
}

void HeadService::OnWorkerExited(const WorkerExited& exited, bool lost) {
  const HeadProcess* process = processes_.Find(exited.process);
  if (process == nullptr) return;
  Job* job = JobOf(process->owner.actor);
  if (job != nullptr && !process->ended) {
    if (trace::On()) trace::Instant("worker gone", {{"process", exited.process}});
    JobWorker* worker = Owner(exited.process).second;
    if (worker != nullptr && worker->alive()) WorkerDied(*job, *worker, exited.how);
  }
  if (job != nullptr && exited.reaped) TellDeath(*job, exited, lost);
  const std::string actor = process->owner.actor;
  actors_.OnWorkerExited(exited, lost);
  if (!exited.reaped) return;
  uploads_.Forget(exited.process);
  if (job = JobOf(actor); job != nullptr) {
    Fill(*job);
    EmitLast(*job);
  }
}

void HeadService::OnWorkerOutput(const std::string& from, const WorkerOutput& output) {
  (void)transport_->Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{output.number}));
  const auto [job, worker] = Owner(output.process);
  if (worker == nullptr) return actors_.OnWorkerOutput(output);
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
  } else if (note.kind == NoteKind::kReport && job->events.bytes() > kUnseenReportBytesMax) {
    if (std::exchange(job->report_dropped, true)) return;
    WorkerNote warning = note;
    warning.kind = NoteKind::kWarning;
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
  End(*job, JobState::kFailed,
      "cannot keep what " + worker->member().ToString() + " has to say (" +
          std::to_string(part.total) + " bytes): " + have.error().message);
}

void HeadService::OnWorkerResult(const WorkerResult& result) {
  if (result.job.starts_with(kActorLease)) return actors_.OnWorkerResult(result);
  const auto [job, worker] = Owner(result.process);
  const HeadProcess* known = processes_.Find(result.process);
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
  if (worker->state == WorkerState::kFinished && job->results.contains(result.member))
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
    End(*job, JobState::kFailed, worker->member().ToString() + " raised an exception",
        StatusOf(*job, *worker), whole ? file->Read(0, file->size()) : result.payload);
    return;
  }
  if (result.payload.empty() && !file) {
    worker->state = WorkerState::kDrained;
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
  const bool told = worker->state == WorkerState::kFinished;
  worker->state = WorkerState::kFinished;
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
    for (JobWorker& worker : job.record.workers) PressDrain(job, worker);
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
    const bool never = status && status->impossible && status->group.empty() && CannotGrow() &&
                       !IsRunActor(ParseLeaseId(lease).first);  // Its run decides.
    if (status) actors_.SetReason(lease, status->reason, never);
  }
  actors_.TellRoomWanted(scheduler_.WaitingForRoom(actors::kRoomWantedMax));
  for (const std::string& name : Outdated()) {
    Forget(jobs_.at(name));  // Again: the store may have been away when it ended.
    jobs_.erase(name);
    actors_.OwnerGone(RunOwner(name), "its run is over");
  }
  RefreshKeys();
  records_.OnTick();
  Measure();
  tick_due_ = Now() + kTick;
  scope_.CallAt(tick_due_, [this] { OnTick(); });
}

// ---- look-ups ----

JobWorker* HeadService::FindWorker(Job& job, const std::string& member) {
  for (JobWorker& worker : job.record.workers) {
    if (worker.member().ToString() == member) return &worker;
  }
  return nullptr;
}

std::pair<Job*, JobWorker*> HeadService::Owner(const std::string& process) {
  if (process.empty()) return {nullptr, nullptr};
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
