// The jobs of HeadCore: their life from submission to the last event.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "collective_groups/membership/messages.h"
#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/wire.h"
#include "scheduler/devices.h"

namespace troupe::daemons {
namespace {

constexpr uint64_t kDrainMsMax = 1'000'000'000'000;  // In nanoseconds it still fits a Duration.

}  // namespace

const char* WorkerStateName(WorkerState state) {
  static constexpr const char* kNames[] = {"starting", "active",  "draining",
                                           "finished", "drained", "dead"};
  return kNames[static_cast<size_t>(state)];
}

const char* JobStateName(JobState state) {
  static constexpr const char* kNames[kJobStates] = {"pending",   "running", "parked",
                                                     "succeeded", "failed",  "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

JobState ParseJobState(const std::string& name) {
  for (size_t i = 0; i < kJobStates; ++i) {
    const auto state = static_cast<JobState>(i);
    if (name == JobStateName(state)) return state;
  }
  return JobState::kFailed;
}

// ---- driver requests ----

void HeadCore::OnSubmit(const std::string& from, const SubmitJob& submit) {
  const JobSpec& spec = submit.spec;
  if (const auto it = jobs_.find(spec.job);
      it != jobs_.end()) {  // A repeat: the first answer was lost.
    return ReplyWhenKept(from, submit.request);
  }
  if (spec.job.empty() || spec.min_workers == 0 || spec.min_workers > spec.max_workers ||
      spec.workers < spec.min_workers || spec.workers > spec.max_workers ||
      spec.max_workers > groups::kGroupMembersMax) {
    return Reply(
        from, submit.request,
        Error{ErrorCode::kInvalidArgument, "need 1 <= min_workers <= workers <= max_workers <= " +
                                               std::to_string(groups::kGroupMembersMax)});
  }
  Result<ResourceSet> need = ResourceSet::FromMap(spec.resources);
  if (!need.ok()) return Reply(from, submit.request, need.error());
  if (const Result<PlacementStrategy> s = ParsePlacementStrategy(spec.strategy); !s.ok()) {
    return Reply(from, submit.request, s.error());
  }
  Job job;
  job.spec = spec;
  job.need = *need;
  job.record.driver = submit.driver;
  if (const auto known = drivers_.find(submit.driver); known != drivers_.end())
    job.record.driver_place = known->second.place;
  job.record.target = spec.workers;
  job.submitted = job.driver_heard = Now();
  driver_peers_[submit.driver] = from;
  Job& stored = jobs_[spec.job] = std::move(job);
  SaveSpec(stored);
  Save(stored);
  ReplyWhenKept(from, submit.request);
  Fill(stored);
}

void HeadCore::OnJobCommand(const std::string& from, const JobCommand& command) {
  if (command.verb == JobVerb::kLeave) return OnLeave(from, command);
  if (command.verb == JobVerb::kDrainNode) return OnDrainNode(from, command);
  const auto it = jobs_.find(command.job);
  if (it == jobs_.end()) {
    return Reply(from, command.request, NoRun(command.job));
  }
  Job& job = it->second;
  if (command.verb == JobVerb::kCancel) {
    if (!job.done()) End(job, JobState::kCancelled, "cancelled by the driver");
    return ReplyWhenKept(from, command.request);
  }
  if (job.done())
    return Reply(from, command.request,
                 Error{ErrorCode::kNotFound, "the job has ended: " + job.reason});
  if (command.verb == JobVerb::kResize) {
    if (command.workers < job.spec.min_workers || command.workers > job.spec.max_workers) {
      return Reply(from, command.request,
                   Error{ErrorCode::kInvalidArgument,
                         "cannot resize to " + std::to_string(command.workers) +
                             ": min_workers is " + std::to_string(job.spec.min_workers) +
                             ", max_workers " + std::to_string(job.spec.max_workers)});
    }
    job.record.target = command.workers;
    Shrink(job);
    Fill(job);
    Save(job);
    return ReplyWhenKept(from, command.request);
  }
  // kDrain
  JobWorker* worker = FindWorker(job, command.member);
  if (worker == nullptr || !worker->alive()) {
    return Reply(from, command.request,
                 Error{ErrorCode::kNotFound, "no live worker " + command.member});
  }
  const bool repeated = worker->state == WorkerState::kDraining;
  if (!repeated && job.record.target <= job.spec.min_workers) {
    return Reply(from, command.request,
                 Error{ErrorCode::kInvalidArgument, "draining " + command.member +
                                                        " would leave fewer than min_workers = " +
                                                        std::to_string(job.spec.min_workers)});
  }
  if (!repeated) --job.record.target;
  DrainWorker(job, *worker, "asked by the driver",
              milliseconds(std::min(command.deadline_ms, kDrainMsMax)));
  Save(job);
  return ReplyWhenKept(from, command.request);
}

void HeadCore::OnSubscribe(const std::string& from, const Subscribe& subscribe) {
  driver_peers_[subscribe.driver] = from;
  const auto it = jobs_.find(subscribe.job);
  if (it == jobs_.end()) return TellLost(from, subscribe);
  Job& job = it->second;
  if (!subscribe.watch) TakeUp(job, subscribe.driver);
  const bool anew = subscribe.log != log_id_;  // It has nothing of ours yet.
  const Subscribe seen =
      anew ? Subscribe{subscribe.driver, subscribe.job, log_id_, 0, 0, subscribe.room} : subscribe;
  if (job.record.driver == subscribe.driver) {
    job.driver_heard = Now();
    job.events.Seen(Now(), seen, anew);
    if (job.told_by != Time::Never()) FinishIfDone(job);
  } else {
    job.events.Watch(Now(), seen, anew);
  }
  EmitDropped(job);
  SendEvents(job);
}

// Who has been told that its run was kept, and asks for it in vain, is not to ask for ever.
void HeadCore::TellLost(const std::string& from, const Subscribe& subscribe) {
  const JobEvent lost =
      DoneEvent(subscribe.job, Now(), "failed",
                "the cluster has lost this run: its head does not know it, and its store has no "
                "record of it",
                {}, "");
  const uint64_t next = subscribe.log == log_id_ ? subscribe.next : 0;
  Send(from,
       wire::Encode(kFrameJobEvents, JobEvents{subscribe.job, log_id_, next, 0, next, {lost}}));
}

// ---- workers of a job ----

void HeadCore::Fill(Job& job) {
  if (job.done() || job.confirming || job.deaths_untold > 0 || Now() < job.quiet_until) return;
  uint32_t alive = 0;
  for (const JobWorker& worker : job.record.workers) {
    if (worker.state == WorkerState::kFinished && !MayJoin(job))
      return GiveUpRoom(job, job.record.waiting.size());
    if (worker.alive() && worker.state != WorkerState::kDraining) ++alive;
  }
  const auto held = static_cast<uint32_t>(std::ranges::count_if(
      job.restarts, [&](const auto& entry) { return entry.second.not_before > Now(); }));
  alive += held;
  const uint32_t wanted = job.record.target > alive ? job.record.target - alive : 0;
  const auto asked = static_cast<uint32_t>(job.record.waiting.size());
  if (asked > wanted) GiveUpRoom(job, asked - wanted);
  if (asked < wanted) AskForRoom(job, wanted - asked, job.record.workers.empty() && asked == 0);
}

// A warm process, so that a replacement starts with its imports done. Its node keeps it.
void HeadCore::EnsureSpare(Job& job) {
  const bool wanted = !job.done() && job.spec.spares > 0 && !job.spec.spare_argv.empty() &&
                      job.view.epoch > 0 && job.results.empty();
  if (!wanted || Now() < job.ask_spares_at || Now() < job.quiet_until) return;
  // Not beside a joiner that still prepares: the two would share the CPU that it needs.
  const auto joining = [&](const JobWorker& worker) {
    return worker.alive() && RankOf(job.view, worker.member()) < 0;
  };
  if (Now() < job.joined_by && std::ranges::any_of(job.record.workers, joining)) return;
  for (const sched::NodeStatus& node : scheduler_.Nodes()) {
    const bool usable = node.alive && !node.draining && node.total.Covers(job.need);
    if (!usable || !node_links_.contains(node.id)) continue;
    if (!job.spares_on.empty() && job.spares_on != node.id) AskForSpares(job, 0);
    job.spares_on = node.id;
    job.ask_spares_at = Now() + kAskSparesAgain;
    return AskForSpares(job, 1);
  }
}

void HeadCore::AskForSpares(const Job& job, uint32_t count) {
  const auto node = node_links_.find(job.spares_on);
  if (node == node_links_.end()) return;
  const actors::Program program = SpecOf(job, {}).program;
  SendToNode(node->first,
             wire::Encode(kFrameKeepSpares, KeepSpares{program.spare_argv, program.env, count}));
}

// ---- its group ----

void HeadCore::TellGroup(const Job& job, groups::CoordinatorEvent event) {
  queue_.Put(step::TellCoordinator{job.spec.job, std::move(event)});
}

void HeadCore::OpenGroup(Job& job) {
  if (job.opened) return;
  job.opened = true;
  groups::CoordinatorOptions options;
  options.group = job.spec.job;
  options.min_members = job.spec.min_workers;
  options.start_members = static_cast<uint32_t>(std::max<size_t>(1, job.record.workers.size()));
  options.form_timeout = milliseconds(static_cast<int64_t>(job.spec.start_timeout_s * 1000));
  options.park_timeout = milliseconds(static_cast<int64_t>(job.spec.elastic_timeout_s * 1000));
  options.lease = milliseconds(job.spec.lease_ms);
  options.silent_lease = 5 * options.lease;
  options.stall_report_after = milliseconds(static_cast<int64_t>(job.spec.stall_report_s * 1000));
  options.stall_remove_after = milliseconds(static_cast<int64_t>(job.spec.stall_remove_s * 1000));
  queue_.Put(step::OpenEpochs{std::move(options)});
}

void HeadCore::On(const step::CoordinatorSays& says) {
  if (says.group.starts_with(actors::kCollectivePrefix))
    return collective_groups_.OnNotice(says.group, says.notice);
  Job* job = FindRun(says.group);
  if (job == nullptr || job->done()) return;
  std::visit([&](const auto& notice) { OnNotice(*job, notice); }, says.notice);
}

void HeadCore::OnNotice(Job& job, const groups::SendCommand& send) {
  const JobWorker* worker = FindWorker(job, send.to.ToString());
  if (worker == nullptr) return;
  const GroupFrame frame{job.spec.job, wire::Encode(kFrameGroupCommand, send.command)};
  Send(worker->process, wire::Encode(kFrameGroupCommand, frame));
}

void HeadCore::OnNotice(Job& job, const groups::FenceMember& fence) {
  JobWorker* worker = FindWorker(job, fence.id.ToString());
  if (worker == nullptr) return;
  worker->fenced = true;
  Save(job);
  Kill(worker->process, SIGKILL, fence.reason);
}

void HeadCore::OnNotice(Job& job, const groups::EpochActivated& activated) {
  if (job.epoch_pending) EmitEpoch(job, job.took);
  job.view = activated.view;
  job.old_size = activated.old_size;
  job.planned = activated.planned;
  job.took = activated.took;
  job.epoch_pending = true;
  job.epoch_settled = activated.known;
  job.state = JobState::kRunning;
  job.reason.clear();
  if (job.quiet_until > Now()) {
    job.quiet_until = Now() + kReformSettle;
    queue_.PutAt(job.quiet_until, step::FillRun{{job.spec.job}});
  }
  for (JobWorker& worker : job.record.workers) {
    worker.rank = RankOf(job.view, worker.member());
    if (worker.rank >= 0) worker.member_since = std::min(worker.member_since, Now());
  }
  queue_.PutAt(Now() + kSpareDelay, step::KeepSpare{{job.spec.job}});
  if (activated.known) return EmitSettledEpoch(job);
  if (job.spec.reset_limit >= 0 && static_cast<int64_t>(job.view.epoch) - 1 > job.spec.reset_limit)
    End(job, JobState::kFailed,
        "more membership changes than reset_limit = " + std::to_string(job.spec.reset_limit));
}

void HeadCore::OnNotice(Job& job, const groups::EpochSettled& settled) {
  if (!job.epoch_pending) return;
  if (job.old_size != 0) job.took = settled.pause;
  job.epoch_settled = true;
  EmitSettledEpoch(job);
}

void HeadCore::OnNotice(Job& job, const groups::GroupStalled& stalled) {
  if (job.epoch_pending) EmitEpoch(job, job.took);  // The ranks are those of this epoch.
  EmitInOrder(job, StalledEvent(job.spec.job, Now(), stalled, StatusMap(job)));
}

void HeadCore::OnNotice(Job& job, const groups::GroupUnreachable& left) {
  EmitInOrder(job, UnreachableEvent(job.spec.job, Now(), left));
}

void HeadCore::OnNotice(Job& job, const groups::GroupParked& parked) {
  job.state = JobState::kParked;
  job.reason = parked.reason;
  EmitInOrder(job, ParkedEvent(job.spec.job, Now(), parked.reason));
}

void HeadCore::OnNotice(Job& job, const groups::GroupFailed& failed) {
  const std::string& last = job.last_death;
  End(job, JobState::kFailed, failed.reason + (last.empty() ? "" : "; " + last));
}

// The workers' results decide when the run is done.
void HeadCore::OnNotice(Job& /*job*/, const groups::GroupEnded& /*ended*/) {}

void HeadCore::DrainWorker(Job& job, JobWorker& worker, const std::string& reason, Duration limit) {
  if (worker.state == WorkerState::kFinished) return;
  if (limit > Duration::zero() && Now() + limit < worker.drain_by) {
    worker.drain_by = Now() + limit;
    worker.drain_ms = static_cast<uint64_t>(limit / milliseconds(1));
  }
  if (worker.state == WorkerState::kDraining) return;
  // A report may overtake the hello: who is known to the group is a member and leaves like one. So
  // may be who was started before this head, heard or not.
  const HeadProcess* process = processes_.Find(worker.process);
  const bool ours = process != nullptr && !process->found;
  const groups::Coordinator* group = coordinators_->Find(job.spec.job);
  const auto reports = group == nullptr ? std::vector<groups::Report>{} : group->members();
  const bool started = worker.state == WorkerState::kRunning || !ours ||
                       std::any_of(reports.begin(), reports.end(), [&](const groups::Report& r) {
                         return r.id == worker.member();
                       });
  worker.state = WorkerState::kDraining;
  if (started) {
    TellGroup(job, groups::DrainRequested{worker.member(), reason});
  } else {
    Kill(worker.process, SIGKILL, "not needed any more");
  }
}

// Repeats a drain, since the group may not have known the worker then, or the head may be new; ends
// what is still there after its time.
void HeadCore::PressDrain(Job& job, JobWorker& worker) {
  if (worker.state != WorkerState::kDraining) return;
  if (worker.drain_ms > 0 && worker.drain_by == Time::Never())
    worker.drain_by = Now() + milliseconds(worker.drain_ms);
  if (Now() < worker.drain_by) {
    TellGroup(job, groups::DrainRequested{worker.member(), "drain"});
    return;
  }
  worker.overdue = true;
  Kill(worker.process, SIGKILL, "its drain is overdue");
}

// Drains the youngest workers over the target.
void HeadCore::Shrink(Job& job) {
  std::vector<JobWorker*> live;
  for (JobWorker& worker : job.record.workers) {
    if (worker.alive() && worker.state != WorkerState::kDraining) live.push_back(&worker);
  }
  std::stable_sort(live.begin(), live.end(), [](const JobWorker* a, const JobWorker* b) {
    const auto key = [](const JobWorker* w) { return w->rank < 0 ? 1 << 20 : w->rank; };
    return key(a) < key(b);
  });
  while (live.size() > job.record.target) {
    DrainWorker(job, *live.back(), "resized to " + std::to_string(job.record.target));
    live.pop_back();
  }
}

}  // namespace troupe::daemons
