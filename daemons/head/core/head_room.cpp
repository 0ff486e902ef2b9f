// How the runs of HeadCore get their workers: each is one life of an actor of the directory, and
// what the directory says of it is what the run hears of its place.
#include <algorithm>
#include <set>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"

namespace troupe::daemons {

namespace {

std::string RunActorOf(const Run& run, const RunWorker& worker) {
  return RunOwner(run.spec.id) + "/" + worker.member().ToString();
}

}  // namespace

actors::ActorSpec HeadCore::SpecOf(const Run& run, const RunWorker& worker) const {
  actors::ActorSpec spec;
  spec.actor = worker.actor;
  spec.type = run.spec.name;
  spec.owner = RunOwner(run.spec.id);
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
  return spec;
}

// `gang`: the first workers, of which there must be enough at once.
void HeadCore::AskForRoom(Run& run, uint32_t count, bool gang) {
  std::set<uint32_t> used;
  for (const RunWorker& worker : run.record.workers) {
    if (worker.alive()) used.insert(worker.index);
  }
  for (const RunWorker& worker : run.record.waiting) used.insert(worker.index);
  std::vector<actors::ActorSpec> specs;
  for (uint32_t i = 0; i < count; ++i) {
    RunWorker worker;
    while (used.contains(worker.index)) ++worker.index;
    used.insert(worker.index);
    worker.incarnation = ++run.record.incarnations[std::to_string(worker.index)];
    worker.actor = RunActorOf(run, worker);
    specs.push_back(SpecOf(run, worker));
    run.record.waiting.push_back(std::move(worker));
  }
  // The next head must not give the same incarnation to another process.
  Save(run);
  const size_t at_least = gang && count > 1 ? std::min<size_t>(count, run.spec.min_workers) : 0;
  const Status started =
      actors_.StartMembers(specs, at_least, *ParsePlacementStrategy(run.spec.strategy));
  if (!started.ok())
    return End(run, RunState::kFailed,
               "cannot start " + run.spec.name + ": " + started.error().message);
  queue_.Put(step::CheckRoom{{run.spec.id}});
}

void HeadCore::GiveUpRoom(Run& run, size_t count) {
  for (; count > 0 && !run.record.waiting.empty(); --count) {
    const std::string actor = run.record.waiting.back().actor;
    run.record.waiting.pop_back();
    Save(run);
    actors_.EndActor(actor, "not needed any more");
  }
}

// Why it waits; and whether that makes sense.
void HeadCore::CheckRoom(Run& run) {
  if (run.done() || run.record.waiting.empty()) return;
  const std::optional<sched::LeaseStatus> lease =
      scheduler_.FindLease(MakeLeaseId(run.record.waiting.front().actor, 1));
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
  auto& waiting = run->record.waiting;
  const auto waits = std::ranges::find(waiting, id, &RunWorker::actor);
  const auto worker = std::ranges::find(run->record.workers, id, &RunWorker::actor);
  const actors::ActorLife& life = actor->life;
  if (life.state == actors::ActorState::kStarting) {
    if (worker == run->record.workers.end() && waits == waiting.end())
      return actors_.EndActor(id, "its run does not know it");
    const RunWorker placed = waits != waiting.end() ? *waits : *worker;
    if (waits != waiting.end()) waiting.erase(waits);
    OnPlaced(*run, placed, life);
  } else if (life.state == actors::ActorState::kDead && waits != waiting.end()) {
    waiting.erase(waits);
    Save(*run);
    const std::string why = life.reason.empty() ? "it was ended" : life.reason.front().message;
    if (!run->done() && run->record.workers.empty())
      End(*run, RunState::kFailed, "cannot place " + run->spec.name + ": " + why);
  } else if (worker != run->record.workers.end() && worker->alive()) {
    if (life.state == actors::ActorState::kDead) {
      const std::string why = life.reason.empty() ? "it was ended" : life.reason.front().message;
      OnWorkerGone(*run, *worker, why);
    } else if (life.process.empty()) {  // The order to start it was lost, and comes again.
      worker->process.clear();
      worker->node.clear();
      if (worker->state == WorkerState::kDraining) actors_.EndActor(id, "not needed any more");
    }
  }
}

// It has ended, and if its process has, too, nobody will say how.
void HeadCore::OnWorkerGone(Run& run, RunWorker& worker, const std::string& why) {
  const std::string process = worker.process;
  WorkerDied(run, worker, why);
  if (processes_.Find(process) == nullptr) TellDeath(run, {process, true, why, -1, {}}, true);
}

void HeadCore::OnPlaced(Run& run, RunWorker worker, const actors::ActorLife& life) {
  if (run.done()) return actors_.EndActor(worker.actor, "the run is over");
  worker.node = life.node;
  worker.process = life.process;
  if (const HeadProcess* process = processes_.Find(life.process); process != nullptr)
    worker.devices = process->owner.room.devices;
  std::erase_if(run.record.workers, [&](const RunWorker& old) {
    return old.actor == worker.actor || (old.index == worker.index && !old.alive());
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
