// The runs of HeadCore: their life from submission to the last event.
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
const char* WorkerStateName(WorkerState state) {
  static constexpr const char* kNames[] = {"starting", "active",  "draining",
                                           "finished", "drained", "dead"};
  return kNames[static_cast<size_t>(state)];
}

const char* RunStateName(RunState state) {
  static constexpr const char* kNames[kRunStates] = {"pending",   "running", "parked",
                                                     "succeeded", "failed",  "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

RunState ParseRunState(const std::string& name) {
  for (size_t i = 0; i < kRunStates; ++i) {
    const auto state = static_cast<RunState>(i);
    if (name == RunStateName(state)) return state;
  }
  return RunState::kFailed;
}

// ---- driver requests ----

void HeadCore::OnSubmit(const std::string& from, const SubmitRun& submit) {
  const RunSpec& spec = submit.spec;
  if (const auto it = runs_.find(spec.id);
      it != runs_.end()) {  // A repeat: the first answer was lost.
    return ReplyWhenKept(from, submit.request);
  }
  if (spec.id.empty() || spec.min_workers == 0 || spec.min_workers > spec.max_workers ||
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
  Run run;
  run.spec = spec;
  run.need = *need;
  run.record.driver = submit.driver;
  if (const auto known = drivers_.find(submit.driver); known != drivers_.end())
    run.record.driver_place = known->second.place;
  run.record.target = spec.workers;
  run.submitted = run.driver_heard = Now();
  driver_peers_[submit.driver] = from;
  Run& stored = runs_[spec.id] = std::move(run);
  SaveSpec(stored);
  Save(stored);
  if (const Status made = MakeWorkers(stored, 0); !made.ok())
    End(stored, RunState::kFailed, "cannot start " + spec.name + ": " + made.error().message);
  ReplyWhenKept(from, submit.request);
}

void HeadCore::OnRunCommand(const std::string& from, const RunCommand& command) {
  if (command.verb == RunVerb::kLeave) return OnLeave(from, command);
  if (command.verb == RunVerb::kDrainNode) return OnDrainNode(from, command);
  const auto it = runs_.find(command.run);
  if (it == runs_.end()) {
    return Reply(from, command.request, NoRun(command.run));
  }
  Run& run = it->second;
  if (command.verb == RunVerb::kCancel) {
    if (!run.done()) End(run, RunState::kCancelled, "cancelled by the driver");
    return ReplyWhenKept(from, command.request);
  }
  if (run.done())
    return Reply(from, command.request,
                 Error{ErrorCode::kNotFound, "the run has ended: " + run.reason});
  // Else kDrain.
  const Status done =
      command.verb == RunVerb::kResize ? Resize(run, command.workers) : DrainByDriver(run, command);
  if (!done.ok()) return Reply(from, command.request, done);
  Save(run);
  return ReplyWhenKept(from, command.request);
}

Status HeadCore::Resize(Run& run, uint32_t workers) {
  if (workers < run.spec.min_workers || workers > run.spec.max_workers) {
    return Error{ErrorCode::kInvalidArgument,
                 "cannot resize to " + std::to_string(workers) + ": min_workers is " +
                     std::to_string(run.spec.min_workers) + ", max_workers " +
                     std::to_string(run.spec.max_workers)};
  }
  run.record.target = workers;
  return actor_groups_.Change([&](ActorGroups& groups, ActorGroupActions& actions) {
    return groups.Resize(Now(), RunOwner(run.spec.id), workers,
                         "resized to " + std::to_string(workers), kNoDrainLimit, actions);
  });
}

// Nobody follows who is drained by name.
Status HeadCore::DrainByDriver(Run& run, const RunCommand& command) {
  const RunWorker* worker = FindWorker(run, command.member);
  if (worker == nullptr || !worker->alive())
    return Error{ErrorCode::kNotFound, "no live worker " + command.member};
  const bool repeated =
      worker->state == WorkerState::kDraining || worker->state == WorkerState::kFinished;
  if (!repeated && run.record.target <= run.spec.min_workers) {
    return Error{ErrorCode::kInvalidArgument, "draining " + command.member +
                                                  " would leave fewer than min_workers = " +
                                                  std::to_string(run.spec.min_workers)};
  }
  if (!repeated) --run.record.target;
  const Duration limit = command.deadline_ms == 0
                             ? kNoDrainLimit
                             : milliseconds(std::min(command.deadline_ms, kDrainMsMax));
  return actor_groups_.Change([&](ActorGroups& groups, ActorGroupActions& actions) {
    return groups.Shrink(Now(), RunOwner(run.spec.id), worker->index, "asked by the driver", limit,
                         actions);
  });
}

void HeadCore::OnSubscribe(const std::string& from, const Subscribe& subscribe) {
  driver_peers_[subscribe.driver] = from;
  const auto it = runs_.find(subscribe.run);
  if (it == runs_.end()) return TellLost(from, subscribe);
  Run& run = it->second;
  if (!subscribe.watch) TakeUp(run, subscribe.driver);
  const bool starts = subscribe.log != log_id_;  // It has nothing of ours yet.
  const Subscribe seen =
      starts ? Subscribe{subscribe.driver, subscribe.run, log_id_, 0, 0, subscribe.room}
             : subscribe;
  if (run.record.driver == subscribe.driver) {
    run.driver_heard = Now();
    run.events.Seen(Now(), seen, starts);
    if (run.told_by != Time::Never()) FinishIfDone(run);
  } else {
    run.events.Watch(Now(), seen, starts);
  }
  EmitDropped(run);
  SendEvents(run);
}

// Who has been told that its run was kept, and asks for it in vain, is not to ask for ever.
void HeadCore::TellLost(const std::string& from, const Subscribe& subscribe) {
  const RunEvent lost =
      DoneEvent(subscribe.run, Now(), "failed",
                "the cluster has lost this run: its head does not know it, and its store has no "
                "record of it",
                {}, "");
  const uint64_t next = subscribe.log == log_id_ ? subscribe.next : 0;
  Send(from,
       wire::Encode(kFrameRunEvents, RunEvents{subscribe.run, log_id_, next, 0, next, {lost}}));
}

// ---- workers of a run ----

// A warm process, so that a replacement starts with its imports done. Its node keeps it.
void HeadCore::EnsureSpare(Run& run) {
  const bool wanted = !run.done() && run.spec.spares > 0 && !run.spec.spare_argv.empty() &&
                      run.view.epoch > 0 && run.results.empty();
  if (!wanted || Now() < run.ask_spares_at || Now() < run.quiet_until) return;
  // Not beside a joiner that still prepares: the two would share the CPU that it needs.
  const auto joining = [&](const RunWorker& worker) {
    return worker.alive() && RankOf(run.view, worker.member()) < 0;
  };
  if (Now() < run.joined_by && std::ranges::any_of(run.record.workers, joining)) return;
  for (const sched::NodeStatus& node : scheduler_.Nodes()) {
    const bool usable = node.alive && !node.draining && node.total.Covers(run.need);
    if (!usable || !node_links_.contains(node.id)) continue;
    if (!run.spares_on.empty() && run.spares_on != node.id) AskForSpares(run, 0);
    run.spares_on = node.id;
    run.ask_spares_at = Now() + kAskSparesAgain;
    return AskForSpares(run, 1);
  }
}

void HeadCore::AskForSpares(const Run& run, uint32_t count) {
  const auto node = node_links_.find(run.spares_on);
  if (node == node_links_.end()) return;
  const actors::Program program = WorkerSpec(run).program;
  SendToNode(node->first,
             wire::Encode(kFrameKeepSpares, KeepSpares{program.spare_argv, program.env, count}));
}

// ---- its group ----

void HeadCore::TellGroup(const Run& run, groups::CoordinatorEvent event) {
  queue_.Put(step::TellCoordinator{run.spec.id, std::move(event)});
}

void HeadCore::OpenGroup(Run& run) {
  if (run.opened) return;
  run.opened = true;
  groups::CoordinatorOptions options;
  options.group = run.spec.id;
  options.min_members = run.spec.min_workers;
  options.start_members = static_cast<uint32_t>(std::max<size_t>(1, run.record.workers.size()));
  options.form_timeout = milliseconds(static_cast<int64_t>(run.spec.start_timeout_s * 1000));
  options.park_timeout = milliseconds(static_cast<int64_t>(run.spec.elastic_timeout_s * 1000));
  options.lease = milliseconds(run.spec.lease_ms);
  options.silent_lease = 5 * options.lease;
  options.stall_report_after = milliseconds(static_cast<int64_t>(run.spec.stall_report_s * 1000));
  options.stall_remove_after = milliseconds(static_cast<int64_t>(run.spec.stall_remove_s * 1000));
  queue_.Put(step::OpenEpochs{std::move(options)});
}

void HeadCore::On(const step::CoordinatorSays& says) {
  if (says.group.starts_with(actors::kCollectivePrefix))
    return collective_groups_.OnNotice(says.group, says.notice);
  Run* run = FindRun(says.group);
  if (run == nullptr || run->done()) return;
  std::visit([&](const auto& notice) { OnNotice(*run, notice); }, says.notice);
}

void HeadCore::OnNotice(Run& run, const groups::SendCommand& send) {
  const RunWorker* worker = FindWorker(run, send.to.ToString());
  if (worker == nullptr) return;
  const GroupFrame frame{run.spec.id, wire::Encode(kFrameGroupCommand, send.command)};
  Send(worker->process, wire::Encode(kFrameGroupCommand, frame));
}

void HeadCore::OnNotice(Run& run, const groups::FenceMember& fence) {
  RunWorker* worker = FindWorker(run, fence.id.ToString());
  if (worker == nullptr) return;
  worker->fenced = true;
  Save(run);
  Kill(worker->process, SIGKILL, fence.reason);
}

// How long a step took in the epoch that is over.
void HeadCore::NotePace(Run& run, const groups::View& next) {
  uint64_t steps = 0;
  for (const groups::ViewMember& m : next.members) steps = std::max(steps, m.version);
  if (run.view.epoch > 0 && steps > run.epoch_steps)
    run.step_s = ToSeconds(Now() - run.epoch_at) / static_cast<double>(steps - run.epoch_steps);
  run.epoch_at = Now();
  run.epoch_steps = steps;
}

void HeadCore::OnNotice(Run& run, const groups::EpochActivated& activated) {
  if (run.epoch_pending) EmitEpoch(run, run.took);
  NotePace(run, activated.view);
  run.view = activated.view;
  run.old_size = activated.old_size;
  run.planned = activated.planned;
  run.took = activated.took;
  run.epoch_pending = true;
  run.epoch_settled = activated.known;
  run.state = RunState::kRunning;
  run.reason.clear();
  if (run.quiet_until > Now()) {
    run.quiet_until = Now() + kReformSettle;
    queue_.PutAt(run.quiet_until, step::OrderHeld{});
  }
  for (RunWorker& worker : run.record.workers) {
    worker.rank = RankOf(run.view, worker.member());
    if (worker.rank >= 0) worker.member_since = std::min(worker.member_since, Now());
  }
  queue_.PutAt(Now() + kSpareDelay, step::KeepSpare{{run.spec.id}});
  if (activated.known) return EmitSettledEpoch(run);
  if (run.spec.reset_limit >= 0 && static_cast<int64_t>(run.view.epoch) - 1 > run.spec.reset_limit)
    End(run, RunState::kFailed,
        "more membership changes than reset_limit = " + std::to_string(run.spec.reset_limit));
}

void HeadCore::OnNotice(Run& run, const groups::EpochSettled& settled) {
  if (!run.epoch_pending) return;
  if (run.old_size != 0) run.took = settled.pause;
  run.epoch_settled = true;
  EmitSettledEpoch(run);
}

void HeadCore::OnNotice(Run& run, const groups::GroupStalled& stalled) {
  if (run.epoch_pending) EmitEpoch(run, run.took);  // The ranks are those of this epoch.
  EmitInOrder(run, StalledEvent(run.spec.id, Now(), stalled, StatusMap(run)));
}

void HeadCore::OnNotice(Run& run, const groups::GroupUnreachable& left) {
  EmitInOrder(run, UnreachableEvent(run.spec.id, Now(), left));
}

void HeadCore::OnNotice(Run& run, const groups::GroupParked& parked) {
  run.state = RunState::kParked;
  run.reason = parked.reason;
  EmitInOrder(run, ParkedEvent(run.spec.id, Now(), parked.reason));
}

void HeadCore::OnNotice(Run& run, const groups::GroupFailed& failed) {
  const std::string& last = run.last_death;
  End(run, RunState::kFailed, failed.reason + (last.empty() ? "" : "; " + last));
}

// The workers' results decide when the run is done.
void HeadCore::OnNotice(Run& /*run*/, const groups::GroupEnded& /*ended*/) {}

// Its group wants it to leave, and says so again until it has.
void HeadCore::On(const step::DrainWorker& drain) {
  Run* run = RunOf(drain.actor);
  if (run == nullptr || run->done()) return;
  const auto worker = std::ranges::find_if(run->record.workers, [&](const RunWorker& w) {
    return w.actor == drain.actor && w.alive() && w.state != WorkerState::kFinished;
  });
  if (worker == run->record.workers.end()) return;
  // A report may overtake the hello: who is known to the group is a member and leaves like one. So
  // may be who was started before this head, heard or not.
  const actors::PlacedActor* actor = actors_.directory().Find(drain.actor);
  const HeadProcess* process = processes_.Find(worker->process);
  const bool ours = process != nullptr && !process->found;
  const bool alive = actor != nullptr && actor->life.state == actors::ActorState::kAlive;
  const bool started = alive || !ours || InGroup(*run, *worker);
  if (std::exchange(worker->state, WorkerState::kDraining) != WorkerState::kDraining) Save(*run);
  if (started) {
    TellGroup(*run, groups::DrainRequested{worker->member(), drain.reason});
  } else {
    Kill(worker->process, SIGKILL, "not needed any more");
  }
}

}  // namespace troupe::daemons
