#include "daemons/head/core/head_core.h"

#include <algorithm>
#include <csignal>

#include "collective_groups/membership/messages.h"
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
void HeadCore::OnMessage(uint8_t type, const std::string& frame, F&& handler) {
  Result<T> message = wire::Decode<T>(type, frame);
  if (message.ok()) {
    handler(*message);
  } else {
    queue_.Warn("dropped a frame: ", message.error().message);
  }
}

// ---- what comes in, and what is to be done of it ----

std::optional<HeadEffect> HeadCore::Next(Time now) {
  while (true) {
    std::optional<HeadStep> next = queue_.Take(now);
    if (!next) {
      std::optional<HeadQueue::Kept> kept = queue_.TakeWhenKept();
      if (!kept) return std::nullopt;
      return step::AwaitKept{std::move(kept->name),
                             std::make_shared<const HeadStep>(std::move(kept->step))};
    }
    if (auto* effect = std::get_if<HeadEffect>(&*next)) return std::move(*effect);
    std::visit([this](auto& task) { On(task); }, std::get<HeadTask>(*next));
  }
}

void HeadCore::On(const step::SendToNode& send) {
  const auto node = node_links_.find(send.node);
  if (node != node_links_.end()) Send(node->second.peer, send.frame);
}

void HeadCore::On(const step::ActorChanged& changed) {
  if (IsRunActor(changed.actor)) return OnRunActor(changed.actor);
  collective_groups_.OnActor(changed.actor);
  actor_groups_.OnActor(changed.actor);
}

void HeadCore::On(const step::OwnerEnded& ended) {
  placement_groups_.OwnerGone(ended.owner);
  collective_groups_.OwnerGone(ended.owner);
  actor_groups_.OwnerGone(ended.owner);
}

void HeadCore::On(const step::FillRun& fill) {
  if (Job* job = FindRun(fill.run); job != nullptr) Fill(*job);
}

void HeadCore::On(const step::KeepSpare& spare) {
  if (Job* job = FindRun(spare.run); job != nullptr) EnsureSpare(*job);
}

void HeadCore::On(const step::OpenRun& open) {
  if (Job* job = FindRun(open.run); job != nullptr && !job->done()) OpenGroup(*job);
}

void HeadCore::On(const step::CheckRoom& check) {
  if (Job* job = FindRun(check.run); job != nullptr) CheckRoom(*job);
}

bool HeadCore::Grouped(const std::string& actor) const {
  return IsRunActor(actor) || collective_groups_.HasMember(actor) ||
         actor_groups_.groups().MemberOf(actor).has_value();
}

Time HeadCore::HeldUntil(const std::string& actor) const {
  const Job* job = JobOf(actor);
  return job == nullptr ? Time{} : job->quiet_until;
}

void HeadCore::On(const step::Frame& came) {
  const std::string& from = came.from;
  const std::string& frame = came.frame;
  NoticeStop();
  if (actors_.OnFrame(from, frame)) return;
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) {
    queue_.Warn("dropped a frame from ", from, ": ", type.error().message);
    return;
  }
  switch (*type) {
    case actors::kFrameGroupRequest:
      return OnMessage<actors::GroupRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::PlacementGroupVerb::kCreate && !m.spec.detached)
          actors_.Own(m.spec.owner);
        placement_groups_.OnRequest(from, m);
      });
    case actors::kFrameActorGroupRequest:
      return OnMessage<actors::ActorGroupRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::ActorGroupVerb::kCreate) actors_.OwnFrom(m.spec.owner, from);
        actor_groups_.OnRequest(from, m);
      });
    case actors::kFrameCollectiveRequest:
      return OnMessage<actors::CollectiveRequest>(*type, frame, [&](const auto& m) {
        if (m.verb == actors::CollectiveVerb::kCreate) actors_.Own(m.spec.owner);
        collective_groups_.OnRequest(from, m);
      });
    case kFrameGroupReport:
      return OnMessage<GroupFrame>(*type, frame, [&](const GroupFrame& m) {
        Result<groups::Report> report = wire::Decode<groups::Report>(kFrameGroupReport, m.body);
        if (report.ok() && !collective_groups_.OnReport(from, m.group, *report))
          OnReport(m.group, *report);
      });
    case kFrameNodeHello:
      return OnMessage<NodeHello>(*type, frame, [&](const auto& m) { OnNodeHello(from, m); });
    case kFrameWorkerHello:
      return OnMessage<WorkerHello>(*type, frame, [&](const auto& m) { OnWorkerHello(from, m); });
    case kFrameWorkerExited:
      return OnMessage<WorkerExited>(*type, frame, [&](const auto& m) { OnWorkerExited(m); });
    case kFrameWorkerOutput:
      return OnMessage<WorkerOutput>(*type, frame, [&](const auto& m) { OnWorkerOutput(from, m); });
    case kFrameWorkerResult:
      return OnMessage<WorkerResult>(*type, frame, [&](const auto& m) { OnWorkerResult(m); });
    case kFrameWorkerNote:
      return OnMessage<WorkerNote>(*type, frame, [&](const auto& m) { OnWorkerNote(m); });
    case kFrameWorkerPart:
      return OnMessage<WorkerPart>(*type, frame, [&](const auto& m) { OnWorkerPart(from, m); });
    case kFrameLogTail:
      return OnMessage<LogTail>(*type, frame, [&](const auto& m) { logs_.OnTail(m); });
    case kFrameSubmitJob:
      return OnMessage<SubmitJob>(*type, frame, [&](const auto& m) { OnSubmit(from, m); });
    case kFrameDriverHello:
      return OnMessage<DriverHello>(*type, frame, [&](const auto& m) { OnDriverHello(from, m); });
    case kFrameJobCommand:
      return OnMessage<JobCommand>(*type, frame, [&](const auto& m) { OnJobCommand(from, m); });
    case kFrameSubscribe:
      return OnMessage<Subscribe>(*type, frame, [&](const auto& m) { OnSubscribe(from, m); });
    case kFrameQuery:
      return OnMessage<Query>(*type, frame, [&](const auto& m) { OnQuery(from, m); });
    default:
      queue_.Warn("dropped a frame of unknown type ", static_cast<int>(*type), " from ", from);
  }
}

// ---- processes ----

void HeadCore::OnWorkerHello(const std::string& from, const WorkerHello& hello) {
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
void HeadCore::OnReport(const std::string& group, const groups::Report& report) {
  const auto job = jobs_.find(group);
  if (job == jobs_.end()) return;
  const JobWorker* worker = FindWorker(job->second, report.id.ToString());
  if (worker != nullptr && worker->alive() && !worker->fenced)
    TellGroup(job->second, groups::ReportReceived{report});
}

std::optional<Assignment> HeadCore::AssignmentOf(const std::string& process) const {
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

void HeadCore::OnWorkerExited(const WorkerExited& exited, bool lost) {
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

void HeadCore::OnWorkerOutput(const std::string& from, const WorkerOutput& output) {
  Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{output.number}));
  const auto [job, worker] = Owner(output.process);
  if (worker == nullptr) return actors_.OnWorkerOutput(output);
  EmitDropped(*job);
  const size_t lines = output.lines.size() + output.dropped;
  if (job->events.AddOutput(LogEvent(job->spec.job, Now(), StatusOf(*job, *worker), output), lines))
    SendEvents(*job);
}

void HeadCore::OnWorkerNote(const WorkerNote& note) {
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

void HeadCore::OnWorkerPart(const std::string& from, const WorkerPart& part) {
  const auto [job, worker] = Owner(part.process);
  if (worker == nullptr || job->released) {
    Send(from, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the job is over"}));
    return;
  }
  // It comes again.
  if (job->done() || job->events.unseen_bytes() > kUnseenBytesMax) return;
  const Result<uint64_t> have = uploads_.Add(part);
  if (have.ok()) {
    Send(from, wire::Encode(kFramePartTaken, PartTaken{part.upload, *have}));
    return;
  }
  End(*job, JobState::kFailed,
      "cannot keep what " + worker->member().ToString() + " has to say (" +
          std::to_string(part.total) + " bytes): " + have.error().message);
}

void HeadCore::OnWorkerResult(const WorkerResult& result) {
  if (result.job.starts_with(kActorLease)) return actors_.OnWorkerResult(result);
  const auto [job, worker] = Owner(result.process);
  const HeadProcess* known = processes_.Find(result.process);
  if (worker == nullptr || job->released) {
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the job is over"}));
    return;
  }
  if (job->done()) return;
  if (known == nullptr || known->ended) return;
  if (!worker->alive()) {  // It was drained, or taken for dead; it may not have heard of that.
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"it has left"}));
    return;
  }
  if (worker->state == WorkerState::kFinished && job->results.contains(result.member))
    return;              // A repeat.
  if (worker->fenced) {  // Its host was cut off meanwhile, so that the order to end it was lost.
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"evicted"}));
    Kill(result.process, SIGKILL, "it was evicted by its group");
    return;
  }
  std::shared_ptr<const SpoolFile> file;
  if (result.upload != 0) {
    file = uploads_.Take(result.process, result.upload);
    if (!file) {  // It went to the head before.
      Send(result.process,
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
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"drained"}));
    Save(*job);
    FinishIfDone(*job);
    Fill(*job);
    return;
  }
  // A worker that had finished repeats its result to a head that lacks it.
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
void HeadCore::NoticeStop() {
  if (tick_due_ == Time::Never() || Now() < tick_due_ + EventLoop::kStoppedFrom) return;
  const Duration stopped = Now() - tick_due_;
  queue_.Warn("the head was stopped for ", ToMilliseconds(stopped), " ms");
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

void HeadCore::On(const step::Tick& /*tick*/) {
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
  placement_groups_.OnTick(options_.embedded && !offered_.empty());
  collective_groups_.OnTick();
  actor_groups_.OnTick();
  logs_.OnTick();
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
  Measure();
  tick_due_ = Now() + kTick;
  queue_.PutAt(tick_due_, step::Tick{});
}

// ---- look-ups ----

JobWorker* HeadCore::FindWorker(Job& job, const std::string& member) {
  for (JobWorker& worker : job.record.workers) {
    if (worker.member().ToString() == member) return &worker;
  }
  return nullptr;
}

Job* HeadCore::FindRun(const std::string& run) {
  const auto it = jobs_.find(run);
  return it == jobs_.end() ? nullptr : &it->second;
}

std::pair<const Job*, const JobWorker*> HeadCore::Owner(const std::string& process) const {
  if (process.empty()) return {nullptr, nullptr};
  for (const auto& [name, job] : jobs_) {
    for (const JobWorker& worker : job.record.workers) {
      if (worker.process == process) return {&job, &worker};
    }
  }
  return {nullptr, nullptr};
}

std::pair<Job*, JobWorker*> HeadCore::Owner(const std::string& process) {
  const auto [job, worker] = std::as_const(*this).Owner(process);
  return {const_cast<Job*>(job), const_cast<JobWorker*>(worker)};
}

void HeadCore::Reply(const std::string& to, uint64_t request, const Status& status,
                     const std::string& json) {
  DriverReply reply{request, 0, "", json};
  if (!status.ok()) {
    reply.code = static_cast<uint8_t>(status.error().code);
    reply.message = status.error().message;
  }
  Send(to, wire::Encode(kFrameDriverReply, reply));
}

// What is done is to be done also for the next head.
void HeadCore::ReplyWhenKept(const std::string& to, uint64_t request) {
  queue_.PutWhenKept(
      to + "#" + std::to_string(request),
      step::Send{to, wire::Encode(kFrameDriverReply, DriverReply{request, 0, "", ""})});
}

}  // namespace troupe::daemons
