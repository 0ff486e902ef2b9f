#include "daemons/head/core/head_core.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "collective_groups/membership/messages.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/trace.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kTick = milliseconds(200);
constexpr size_t kReasonsPerTick = 50;  // They take a look at the whole cluster.
// Of a run's events that its driver has not seen: workers with large payloads wait then.
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

void HeadCore::Put(HeadStep step) { queue_.Put(std::move(step)); }

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
  if (IsRunActor(changed.actor)) OnRunActor(changed.actor);
  collective_groups_.OnActor(changed.actor);
  actor_groups_.OnActor(changed.actor);
}

void HeadCore::On(const step::OwnerEnded& ended) {
  placement_groups_.OwnerGone(ended.owner);
  collective_groups_.OwnerGone(ended.owner);
  actor_groups_.OwnerGone(ended.owner);
}

void HeadCore::On(const step::KeepSpare& spare) {
  if (Run* run = FindRun(spare.run); run != nullptr) EnsureSpare(*run);
}

void HeadCore::On(const step::OpenRun& open) {
  if (Run* run = FindRun(open.run); run != nullptr && !run->done()) OpenGroup(*run);
}

bool HeadCore::Grouped(const std::string& actor) const {
  return IsRunActor(actor) || collective_groups_.HasMember(actor) ||
         actor_groups_.groups().MemberOf(actor).has_value();
}

Time HeadCore::HeldUntil(const std::string& actor) const {
  const Run* run = RunOf(actor);
  return run == nullptr ? Time{} : run->quiet_until;
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
    case kFrameUserMetrics:
      return OnMessage<UserMetrics>(*type, frame, [&](const auto& m) {
        Send(from, wire::Encode(kFrameUserMetricsTaken, user_metrics_.OnMetrics(Now(), from, m)));
      });
    case kFrameSubmitRun:
      return OnMessage<SubmitRun>(*type, frame, [&](const auto& m) { OnSubmit(from, m); });
    case kFrameDriverHello:
      return OnMessage<DriverHello>(*type, frame, [&](const auto& m) { OnDriverHello(from, m); });
    case kFrameRunCommand:
      return OnMessage<RunCommand>(*type, frame, [&](const auto& m) { OnRunCommand(from, m); });
    case kFrameSubscribe:
      return OnMessage<Subscribe>(*type, frame, [&](const auto& m) { OnSubscribe(from, m); });
    case kFrameAdmitGuest:
      return OnMessage<AdmitGuest>(*type, frame, [&](const auto& m) { OnAdmit(from, m); });
    case kFrameQuery:
      return OnMessage<Query>(*type, frame, [&](const auto& m) { OnQuery(from, m); });
    default:
      queue_.Warn("dropped a frame of unknown type ", static_cast<int>(*type), " from ", from);
  }
}

// ---- processes ----

void HeadCore::OnWorkerHello(const std::string& from, const WorkerHello& hello) {
  actors_.OnWorkerHello(from, hello);
  const auto [run, worker] = Owner(hello.process);
  const HeadProcess* process = processes_.Find(hello.process);
  if (worker == nullptr || process == nullptr || process->ended) return;
  const bool news = std::exchange(worker->pid, hello.pid) != hello.pid;
  worker->host = hello.host;
  if (news) Save(*run);  // The next head may never hear it.
  if (worker->state != WorkerState::kStarting || hello.assignment.empty()) return;
  worker->state = WorkerState::kRunning;
  Save(*run);
  run->start_failures = 0;
  EmitWorker(*run, *worker, StatusOf(*run, *worker), "started", "");
}

// One that was evicted or taken for dead may come back from behind a cut, to a head that is another
// one by now and whose group does not know of that.
void HeadCore::OnReport(const std::string& group, const groups::Report& report) {
  const auto run = runs_.find(group);
  if (run == runs_.end()) return;
  const RunWorker* worker = FindWorker(run->second, report.id.ToString());
  if (worker == nullptr || !worker->alive() || worker->fenced) return;
  TellGroup(run->second, groups::ReportReceived{report});
  // Its group did not know it when it was told.
  if (worker->state == WorkerState::kDraining && !InGroup(run->second, *worker))
    TellGroup(run->second, groups::DrainRequested{report.id, "drain"});
}

bool HeadCore::InGroup(const Run& run, const RunWorker& worker) const {
  const groups::Coordinator* group = coordinators_->Find(run.spec.id);
  if (group == nullptr) return false;
  const std::vector<groups::Report> reports = group->members();
  return std::any_of(reports.begin(), reports.end(),
                     [&](const groups::Report& r) { return r.id == worker.member(); });
}

std::optional<Assignment> HeadCore::AssignmentOf(const std::string& process) const {
  const auto [run, worker] = Owner(process);
  if (worker == nullptr || run->done() || !worker->alive()) return std::nullopt;
  Assignment assignment;
  assignment.env = run->spec.env;
  assignment.preload = run->spec.preload;
  assignment.id = run->spec.id;
  assignment.name = run->spec.name;
  assignment.member = worker->member().ToString();
  // Its rank for as long as it has none: numbers of workers only grow.
  assignment.index = static_cast<uint32_t>(
      std::ranges::count_if(run->record.workers, [index = worker->index](const RunWorker& other) {
        return other.alive() && other.index < index;
      }));
  assignment.devices = worker->devices;
  assignment.min_workers = run->spec.min_workers;
  assignment.max_workers = run->spec.max_workers;
  assignment.payload = run->spec.payload;
  assignment.group_running = run->view.epoch > 0;
  return assignment;
}

void HeadCore::OnWorkerExited(const WorkerExited& exited, bool lost) {
  if (exited.reaped) user_metrics_.OnEnded(exited.process);
  const HeadProcess* process = processes_.Find(exited.process);
  if (process == nullptr) return;
  Run* run = RunOf(process->owner.actor);
  if (run != nullptr && !process->ended) {
    if (trace::On()) trace::Instant("worker gone", {{"process", exited.process}});
    RunWorker* worker = Owner(exited.process).second;
    if (worker != nullptr && worker->alive()) WorkerDied(*run, *worker, exited.how);
  }
  actors_.OnWorkerExited(exited, lost);
  if (!exited.reaped) return;
  uploads_.Forget(exited.process);
  if (run == nullptr) return;
  TellDeath(*run, exited, lost);
  EmitLast(*run);
}

void HeadCore::OnWorkerOutput(const std::string& from, const WorkerOutput& output) {
  Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{output.number}));
  const auto [run, worker] = Owner(output.process);
  if (worker == nullptr) return actors_.OnWorkerOutput(output);
  EmitDropped(*run);
  const size_t lines = output.lines.size() + output.dropped;
  if (run->events.AddOutput(LogEvent(run->spec.id, Now(), StatusOf(*run, *worker), output), lines))
    SendEvents(*run);
}

void HeadCore::OnWorkerNote(const WorkerNote& note) {
  const auto [run, worker] = Owner(note.process);
  if (worker == nullptr) return;
  const auto count = [&](metrics::Id id, uint64_t by) {
    queue_.Put(step::Count{id, static_cast<double>(by)});
  };
  if (note.kind == NoteKind::kProgress) {
    const std::optional<Progress> progress = ReadProgress(note);
    if (!progress) return;
    // A group that goes back to a commit counts those behind it once more.
    if (progress->samples > run->samples)
      count(metrics::Id::kSamplesTrained, progress->samples - run->samples);
    run->samples = std::max(run->samples, progress->samples);
    run->samples_per_epoch = progress->samples_per_epoch;
    return;
  }
  if (const std::optional<Recovered> recovered = ReadRecovered(note)) {
    count(metrics::Id::kStepsReplayed, recovered->steps_replayed);
    count(metrics::Id::kStepsRecomputed, recovered->steps_recomputed);
    count(metrics::Id::kSamplesReturned, recovered->samples_returned);
    run->steps_replayed += recovered->steps_replayed;
    run->steps_recomputed += recovered->steps_recomputed;
    run->samples_returned += recovered->samples_returned;
    run->redone_s += static_cast<double>(recovered->steps_recomputed) * run->step_s *
                     static_cast<double>(run->view.members.size());
  }
  std::shared_ptr<const SpoolFile> file;
  if (note.upload != 0) {
    file = uploads_.Take(note.process, note.upload);
    if (!file) return;  // Its beginning went to the head before.
  } else if (note.kind == NoteKind::kReport && run->events.bytes() > kUnseenReportBytesMax) {
    if (std::exchange(run->report_dropped, true)) return;
    WorkerNote warning = note;
    warning.kind = NoteKind::kWarning;
    warning.payload = "reports are dropped: the driver does not take them as fast as they come";
    Emit(*run, NoteEvent(run->spec.id, Now(), StatusOf(*run, *worker), warning));
    return;
  }
  run->report_dropped = false;
  RunEvent event = NoteEvent(run->spec.id, Now(), StatusOf(*run, *worker), note);
  // Members may go before the head has heard that all of them do.
  const bool ahead = run->view.epoch > 0 && note.epoch > run->view.epoch;
  if (run->epoch_pending || !run->epochs.empty() || ahead) {
    run->noted.push_back({note.epoch, std::move(event), std::move(file)});
  } else {
    Emit(*run, std::move(event), std::move(file));
  }
}

void HeadCore::OnWorkerPart(const std::string& from, const WorkerPart& part) {
  const auto [run, worker] = Owner(part.process);
  if (worker == nullptr || run->released) {
    Send(from, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the run is over"}));
    return;
  }
  // It comes again.
  if (run->done() || run->events.unseen_bytes() > kUnseenBytesMax) return;
  const Result<uint64_t> have = uploads_.Add(part);
  if (have.ok()) {
    Send(from, wire::Encode(kFramePartTaken, PartTaken{part.upload, *have}));
    return;
  }
  End(*run, RunState::kFailed,
      "cannot keep what " + worker->member().ToString() + " has to say (" +
          std::to_string(part.total) + " bytes): " + have.error().message);
}

void HeadCore::OnWorkerResult(const WorkerResult& result) {
  if (result.assignment.starts_with(kActorLease)) return actors_.OnWorkerResult(result);
  const auto [run, worker] = Owner(result.process);
  const HeadProcess* known = processes_.Find(result.process);
  if (worker == nullptr || run->released) {
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the run is over"}));
    return;
  }
  if (run->done()) return;
  if (known == nullptr || known->ended) return;
  if (!worker->alive()) {  // It was drained, or taken for dead; it may not have heard of that.
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"it has left"}));
    return;
  }
  if (worker->state == WorkerState::kFinished && run->results.contains(result.member))
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
  const std::string actor = worker->actor;
  if (result.rank >= 0) worker->rank = result.rank;
  if (!result.ok) {
    EmitWorker(*run, *worker, StatusOf(*run, *worker), "failed", "");
    const bool whole = file && file->size() <= kErrorBytesMax;
    End(*run, RunState::kFailed, worker->member().ToString() + " raised an exception",
        StatusOf(*run, *worker), whole ? file->Read(0, file->size()) : result.payload);
    return;
  }
  if (result.payload.empty() && !file) {
    worker->state = WorkerState::kDrained;
    EmitWorker(*run, *worker, StatusOf(*run, *worker), "drained", "");
    if (!run->results.empty()) run->crashes.clear();  // The group has no use for another life.
    Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"drained"}));
    Save(*run);
    CloseIfOver(*run);
    actor_groups_.Change([&](ActorGroups& g, auto& a) { g.Left(actor, "it has left", a); });
    FinishIfDone(*run);
    return;
  }
  // A worker that had finished repeats its result to a head that lacks it.
  const bool told = worker->state == WorkerState::kFinished;
  worker->state = WorkerState::kFinished;
  const std::string member = worker->member().ToString();
  run->results[member] = {result.payload, std::move(file)};
  SaveResult(*run, member);
  if (!told) EmitWorker(*run, *worker, StatusOf(*run, *worker), "finished", "");
  Save(*run);
  actor_groups_.Change([&](ActorGroups& g, auto& a) { g.Finished(actor, a); });
  CloseIfOver(*run);
  FinishIfDone(*run);
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
  user_metrics_.OnStopped(stopped);
  for (auto& [name, driver] : drivers_) driver.heard = std::min(Now(), driver.heard + stopped);
  for (auto& [name, run] : runs_) {
    run.driver_heard = std::min(Now(), run.driver_heard + stopped);
    for (auto& [process, death] : run.deaths) death.tell_by = death.tell_by + stopped;
    if (run.told_by != Time::Never()) run.told_by = run.told_by + stopped;
    if (run.last_event_by != Time::Never()) run.last_event_by = run.last_event_by + stopped;
  }
  if (recover_until_ > Now()) Recover(recover_until_ + stopped);
}

void HeadCore::On(const step::Tick& /*tick*/) {
  NoticeStop();
  ApplyNodes(nodes_.Step(Now(), troupe::Tick{}));
  for (auto& [name, run] : runs_) {
    if (!run.done()) EndWithoutDriver(run);
    if (run.done()) {
      EmitLast(run);
      ForgetWhenSeen(run);
      continue;
    }
    Confirm(run);
    TellGone(run);
    TellDeaths(run, Now());
    // The head before may have got the last result, and no further.
    FinishIfDone(run);
    if (run.done()) continue;
    CloseIfOver(run);
    CheckRoom(run);
    EnsureSpare(run);
  }
  actors_.OnTick();
  if (recover_until_ <= Now()) placement_groups_.Recovered();
  placement_groups_.OnTick(options_.embedded && !offered_.empty());
  collective_groups_.OnTick();
  actor_groups_.OnTick();
  logs_.OnTick();
  join_tokens_.OnTick();
  for (const std::string& lease : actors_.TakeWaiting(kReasonsPerTick)) {
    const std::optional<sched::LeaseStatus> status = scheduler_.FindLease(lease);
    // A placement group may grow, a cluster of several hosts, too.
    const bool never = status && status->impossible && status->group.empty() && CannotGrow() &&
                       !IsRunActor(ParseLeaseId(lease).first);  // Its run decides.
    if (status) actors_.SetReason(lease, status->reason, never);
  }
  actors_.TellRoomWanted(scheduler_.WaitingForRoom(actors::kRoomWantedMax));
  for (const std::string& name : Outdated()) {
    Forget(runs_.at(name));  // Again: the store may have been away when it ended.
    runs_.erase(name);
  }
  RefreshKeys();
  Measure();
  PublishUserMetrics();
  tick_due_ = Now() + kTick;
  queue_.PutAt(tick_due_, step::Tick{});
}

// ---- look-ups ----

RunWorker* HeadCore::FindWorker(Run& run, const std::string& member) {
  for (RunWorker& worker : run.record.workers) {
    if (worker.member().ToString() == member) return &worker;
  }
  return nullptr;
}

Run* HeadCore::FindRun(const std::string& run) {
  const auto it = runs_.find(run);
  return it == runs_.end() ? nullptr : &it->second;
}

std::pair<const Run*, const RunWorker*> HeadCore::Owner(const std::string& process) const {
  if (process.empty()) return {nullptr, nullptr};
  for (const auto& [name, run] : runs_) {
    for (const RunWorker& worker : run.record.workers) {
      if (worker.process == process) return {&run, &worker};
    }
  }
  return {nullptr, nullptr};
}

std::pair<Run*, RunWorker*> HeadCore::Owner(const std::string& process) {
  const auto [run, worker] = std::as_const(*this).Owner(process);
  return {const_cast<Run*>(run), const_cast<RunWorker*>(worker)};
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
void HeadCore::ReplyWhenKept(const std::string& to, uint64_t request, const std::string& json) {
  queue_.PutWhenKept(
      to + "#" + std::to_string(request),
      step::Send{to, wire::Encode(kFrameDriverReply, DriverReply{request, 0, "", json})});
}

}  // namespace troupe::daemons
