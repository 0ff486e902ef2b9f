// How the runs of HeadCore get their workers: each is one life of an actor of the directory, and
// what the directory says of it is what the run hears of its place.
#include <algorithm>
#include <csignal>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"

namespace troupe::daemons {

actors::ActorSpec HeadCore::WorkerSpec(const Run& run) const {
  actors::ActorSpec spec;
  spec.type = run.spec.name;
  spec.wish.resources = run.spec.resources;
  // Of each worker for itself; that all go to one node or to different ones holds for a gang.
  const PlacementStrategy strategy = *ParsePlacementStrategy(run.spec.strategy);
  spec.wish.strategy = strategy == PlacementStrategy::kStrictPack     ? "pack"
                       : strategy == PlacementStrategy::kStrictSpread ? "spread"
                                                                      : run.spec.strategy;
  spec.program = {run.spec.worker_argv, run.spec.env,
                  run.spec.spares > 0 ? run.spec.spare_argv : std::vector<std::string>{}};
  if (options_.metrics) spec.program.env["TROUPE_METRICS"] = "1";  // It has something to tell us.
  spec.start_timeout_s = ToSeconds(kWorkerStartLimit);
  spec.max_restarts = -1;
  spec.backoff_ms = kRestartDelayMs;
  spec.backoff_max_ms = kRestartDelayMaxMs;
  return spec;
}

Status HeadCore::MakeWorkers(const Run& run, uint32_t first) {
  actors::ActorGroupSpec spec;
  spec.group = spec.owner = RunOwner(run.spec.id);
  spec.detached = spec.of_run = true;
  spec.min_size = run.spec.min_workers;
  spec.size = run.record.target;
  spec.max_size = run.spec.max_workers;
  spec.member = WorkerSpec(run);
  spec.strategy = run.spec.strategy;
  return actor_groups_.Change([&](ActorGroups& groups, ActorGroupActions& actions) {
    return groups.Create(Now(), spec, actions, first);
  });
}

void HeadCore::EndWorkers(const std::string& run, const std::string& reason) {
  actor_groups_.Change([&](ActorGroups& groups, ActorGroupActions& actions) {
    groups.End(Now(), RunOwner(run), reason, actions);
  });
}

// A group whose members finish takes nobody in.
void HeadCore::CloseIfOver(const Run& run) {
  const bool finishing = std::ranges::any_of(run.record.workers, [](const RunWorker& worker) {
    return worker.state == WorkerState::kFinished;
  });
  const bool closed = run.done() || (finishing && !MayJoin(run));
  actor_groups_.Change([&](ActorGroups& groups, ActorGroupActions& actions) {
    groups.SetClosed(RunOwner(run.spec.id), closed, actions);
  });
}

void HeadCore::On(const step::StartActors& start) {
  std::optional<PlacementStrategy> together;
  if (!start.strategy.empty()) together = *ParsePlacementStrategy(start.strategy);
  const Status started = actors_.StartMembers(start.actors, start.at_least, together);
  if (started.ok()) return;
  if (Run* run = RunOf(start.actors.front().actor); run != nullptr && !run->done())
    End(*run, RunState::kFailed, "cannot start " + run->spec.name + ": " + started.error().message);
}

void HeadCore::On(const step::EndActor& end) {
  Run* run = end.overdue ? RunOf(end.actor) : nullptr;
  if (run == nullptr) return actors_.EndActor(end.actor, end.reason);
  // How its process has ended is told when it has.
  bool killed = false;
  for (RunWorker& worker : run->record.workers) {
    if (worker.actor != end.actor || !worker.alive()) continue;
    worker.forced = end.reason;
    Kill(worker.process, SIGKILL, "its drain is overdue");
    killed = true;
  }
  if (!killed) actors_.EndActor(end.actor, end.reason);
}

// Why it waits; and whether that makes sense.
void HeadCore::CheckRoom(Run& run) {
  const std::vector<std::string> waiting = actor_groups_.groups().WaitingIn(RunOwner(run.spec.id));
  if (run.done() || waiting.empty()) return;
  const actors::PlacedActor* actor = actors_.directory().Find(waiting.front());
  if (actor == nullptr) return;
  const std::optional<sched::LeaseStatus> lease =
      scheduler_.FindLease(MakeLeaseId(waiting.front(), actor->life.incarnation));
  if (!lease) return;
  run.reason = lease->reason;
  if (!run.record.workers.empty()) return;
  const bool never = lease->impossible && CannotGrow();
  const bool late =
      Now() > run.submitted + milliseconds(static_cast<int64_t>(run.spec.start_timeout_s * 1000));
  if (never || late)
    End(run, RunState::kFailed, "cannot place " + run.spec.name + ": " + lease->reason);
}

// What has no room here now will never have any.
bool HeadCore::CannotGrow() const {
  return options_.embedded && !offered_.empty() &&
         std::ranges::all_of(nodes_.nodes(), [](const auto& node) {
           return node.second.state == NodeState::kAlive;
         });
}

const Run* HeadCore::RunOf(const std::string& actor) const {
  if (!IsRunActor(actor)) return nullptr;
  const size_t begin = std::string_view(kRunActor).size();
  const auto it = runs_.find(actor.substr(begin, actor.rfind('/') - begin));
  return it == runs_.end() ? nullptr : &it->second;
}

// The directory has something to say of a run's worker.
void HeadCore::OnRunActor(const std::string& id) {
  const actors::PlacedActor* actor = actors_.directory().Find(id);
  Run* run = RunOf(id);
  if (actor == nullptr || run == nullptr) return;
  const actors::ActorLife& life = actor->life;
  const std::string why = life.reason.empty() ? "it was ended" : life.reason.front().message;
  for (size_t i = 0; i < run->record.workers.size(); ++i) {
    RunWorker& worker = run->record.workers[i];
    const bool over = actor->dead() || worker.incarnation != life.incarnation;
    if (worker.actor == id && worker.alive() && over) OnWorkerGone(*run, worker, why);
  }
  const bool here = std::ranges::any_of(run->record.workers, [&](const RunWorker& worker) {
    return worker.actor == id && worker.incarnation == life.incarnation;
  });
  if (life.state == actors::ActorState::kStarting && !here) OnPlaced(*run, id, life);
  // One that cannot have a place, not one that was asked to leave.
  if (actor->dead() && actor_groups_.groups().Stays(id) && !run->done() &&
      run->record.workers.empty())
    End(*run, RunState::kFailed, "cannot place " + run->spec.name + ": " + why);
}

// It was to be a life, and has been none.
void HeadCore::On(const step::OrderLost& lost) {
  Run* run = RunOf(lost.actor);
  if (run == nullptr) return;
  const auto is = [&](const RunWorker& worker) {
    return worker.actor == lost.actor && worker.incarnation == lost.incarnation;
  };
  if (std::erase_if(run->record.workers, is) > 0) Save(*run);
}

// It has ended, and if its process has, too, nobody will say how.
void HeadCore::OnWorkerGone(Run& run, RunWorker& worker, const std::string& why) {
  const std::string process = worker.process;
  WorkerDied(run, worker, why);
  if (processes_.Find(process) == nullptr) TellDeath(run, {process, true, why, -1, {}}, true);
}

void HeadCore::OnPlaced(Run& run, const std::string& id, const actors::ActorLife& life) {
  const auto member = actor_groups_.groups().MemberOf(id);
  if (run.done() || !member) return actors_.EndActor(id, "its run has no use for it");
  RunWorker worker;
  worker.index = member->second;
  worker.incarnation = life.incarnation;
  worker.actor = id;
  worker.node = life.node;
  worker.process = life.process;
  if (const HeadProcess* process = processes_.Find(life.process); process != nullptr)
    worker.devices = process->owner.room.devices;
  std::erase_if(run.record.workers, [&](const RunWorker& old) {
    return !old.alive() &&
           (old.index == worker.index || !actor_groups_.groups().MemberOf(old.actor));
  });
  run.record.workers.push_back(std::move(worker));
  run.joined_by = Now() + kJoinTime;
  run.ask_spares_at = {};  // It may have been one.
  // Of the first ones all that come at once are founders.
  if (!run.opened) queue_.Put(step::OpenRun{{run.spec.id}});
  Save(run);
}

// Groups first: what the others are told of may lie in them.
void HeadCore::On(const step::Schedule& schedule) {
  const SchedulerDecision decision = scheduler_.Step(Now(), schedule.event);
  for (const auto& one : decision.groups) placement_groups_.OnChange(one);
  for (const auto& one : decision.revoked) actors_.OnRevoked(one);
  for (const auto& one : decision.granted) actors_.OnGranted(one);
  for (const auto& one : decision.refused) {
    queue_.Warn("the scheduler refused ", one.what, ": ", one.error.message);
    const bool group = one.what.starts_with(actors::kGroupId);
    group ? placement_groups_.OnRefused(one) : actors_.OnRefused(one);
  }
  const Time wake = scheduler_.next_wake();
  if (wake >= wake_at_) return;
  wake_at_ = wake;
  queue_.PutAt(wake, step::WakeScheduler{wake});
}

void HeadCore::On(const step::WakeScheduler& wake) {
  if (wake_at_ != wake.at) return;  // Another one is due before.
  wake_at_ = Time::Never();
  Schedule(sched::Wake{});
}

}  // namespace troupe::daemons
