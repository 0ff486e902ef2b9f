// How the runs of HeadCore get their workers: each is one life of an actor of the directory, and
// what the directory says of it is what the run hears of its place.
#include <algorithm>
#include <set>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"

namespace troupe::daemons {

namespace {

std::string RunActorOf(const Job& job, const JobWorker& worker) {
  return RunOwner(job.spec.job) + "/" + worker.member().ToString();
}

}  // namespace

actors::ActorSpec HeadCore::SpecOf(const Job& job, const JobWorker& worker) {
  actors::ActorSpec spec;
  spec.actor = worker.actor;
  spec.type = job.spec.name;
  spec.owner = RunOwner(job.spec.job);
  spec.wish.resources = job.spec.resources;
  // Of each worker for itself; that all go to one node or to different ones holds for a gang.
  const PlacementStrategy strategy = *ParsePlacementStrategy(job.spec.strategy);
  spec.wish.strategy = strategy == PlacementStrategy::kStrictPack     ? "pack"
                       : strategy == PlacementStrategy::kStrictSpread ? "spread"
                                                                      : job.spec.strategy;
  spec.program = {job.spec.worker_argv, job.spec.env,
                  job.spec.spares > 0 ? job.spec.spare_argv : std::vector<std::string>{}};
  if (metrics::On()) spec.program.env["TROUPE_METRICS"] = "1";  // It has something to tell us.
  spec.start_timeout_s = ToSeconds(kWorkerStartLimit);
  return spec;
}

// `gang`: the first workers, of which there must be enough at once.
void HeadCore::AskForRoom(Job& job, uint32_t count, bool gang) {
  std::set<uint32_t> used;
  for (const JobWorker& worker : job.record.workers) {
    if (worker.alive()) used.insert(worker.index);
  }
  for (const JobWorker& worker : job.record.waiting) used.insert(worker.index);
  std::vector<actors::ActorSpec> specs;
  for (uint32_t i = 0; i < count; ++i) {
    JobWorker worker;
    while (used.contains(worker.index)) ++worker.index;
    used.insert(worker.index);
    worker.incarnation = ++job.record.incarnations[std::to_string(worker.index)];
    worker.actor = RunActorOf(job, worker);
    specs.push_back(SpecOf(job, worker));
    job.record.waiting.push_back(std::move(worker));
  }
  // The next head must not give the same incarnation to another process.
  Save(job);
  const size_t at_least = gang && count > 1 ? std::min<size_t>(count, job.spec.min_workers) : 0;
  const Status started =
      actors_.StartMembers(specs, at_least, *ParsePlacementStrategy(job.spec.strategy));
  if (!started.ok())
    return End(job, JobState::kFailed,
               "cannot start " + job.spec.name + ": " + started.error().message);
  queue_.Put(step::CheckRoom{{job.spec.job}});
}

void HeadCore::GiveUpRoom(Job& job, size_t count) {
  for (; count > 0 && !job.record.waiting.empty(); --count) {
    const std::string actor = job.record.waiting.back().actor;
    job.record.waiting.pop_back();
    Save(job);
    actors_.EndActor(actor, "not needed any more");
  }
}

// Why it waits; and whether that makes sense.
void HeadCore::CheckRoom(Job& job) {
  if (job.done() || job.record.waiting.empty()) return;
  const std::optional<sched::LeaseStatus> lease =
      scheduler_.FindLease(MakeLeaseId(job.record.waiting.front().actor, 1));
  if (!lease) return;
  job.reason = lease->reason;
  if (!job.record.workers.empty()) return;
  const bool never = lease->impossible && CannotGrow();
  const bool late =
      Now() > job.submitted + milliseconds(static_cast<int64_t>(job.spec.start_timeout_s * 1000));
  if (never || late)
    End(job, JobState::kFailed, "cannot place " + job.spec.name + ": " + lease->reason);
}

// What has no room here now will never have any.
bool HeadCore::CannotGrow() const {
  return options_.embedded && !offered_.empty() &&
         std::ranges::all_of(nodes_.nodes(), [](const auto& node) {
           return node.second.state == NodeState::kAlive;
         });
}

const Job* HeadCore::JobOf(const std::string& actor) const {
  if (!IsRunActor(actor)) return nullptr;
  const size_t begin = std::string_view(kRunActor).size();
  const auto it = jobs_.find(actor.substr(begin, actor.rfind('/') - begin));
  return it == jobs_.end() ? nullptr : &it->second;
}

// The directory has something to say of a run's worker.
void HeadCore::OnRunActor(const std::string& id) {
  const actors::PlacedActor* actor = actors_.directory().Find(id);
  Job* job = JobOf(id);
  if (actor == nullptr || job == nullptr) return;
  auto& waiting = job->record.waiting;
  const auto waits = std::ranges::find(waiting, id, &JobWorker::actor);
  const auto worker = std::ranges::find(job->record.workers, id, &JobWorker::actor);
  const actors::ActorLife& life = actor->life;
  if (life.state == actors::ActorState::kStarting) {
    if (worker == job->record.workers.end() && waits == waiting.end())
      return actors_.EndActor(id, "its run does not know it");
    const JobWorker placed = waits != waiting.end() ? *waits : *worker;
    if (waits != waiting.end()) waiting.erase(waits);
    OnPlaced(*job, placed, life);
  } else if (life.state == actors::ActorState::kDead && waits != waiting.end()) {
    waiting.erase(waits);
    Save(*job);
    const std::string why = life.reason.empty() ? "it was ended" : life.reason.front().message;
    if (!job->done() && job->record.workers.empty())
      End(*job, JobState::kFailed, "cannot place " + job->spec.name + ": " + why);
  } else if (worker != job->record.workers.end() && worker->alive()) {
    if (life.state == actors::ActorState::kDead) {
      const std::string why = life.reason.empty() ? "it was ended" : life.reason.front().message;
      OnWorkerGone(*job, *worker, why);
    } else if (life.process.empty()) {  // The order to start it was lost, and comes again.
      worker->process.clear();
      worker->node.clear();
      if (worker->state == WorkerState::kDraining) actors_.EndActor(id, "not needed any more");
    }
  }
}

// It has ended, and if its process has, too, nobody will say how.
void HeadCore::OnWorkerGone(Job& job, JobWorker& worker, const std::string& why) {
  const std::string process = worker.process;
  WorkerDied(job, worker, why);
  if (processes_.Find(process) == nullptr) TellDeath(job, {process, true, why, -1, {}}, true);
}

void HeadCore::OnPlaced(Job& job, JobWorker worker, const actors::ActorLife& life) {
  if (job.done()) return actors_.EndActor(worker.actor, "the job is over");
  worker.node = life.node;
  worker.process = life.process;
  if (const HeadProcess* process = processes_.Find(life.process); process != nullptr)
    worker.devices = process->owner.room.devices;
  std::erase_if(job.record.workers, [&](const JobWorker& old) {
    return old.actor == worker.actor || (old.index == worker.index && !old.alive());
  });
  job.record.workers.push_back(std::move(worker));
  job.joined_by = Now() + kJoinTime;
  job.ask_spares_at = {};  // It may have been one.
  // Of the first ones all that come at once are founders.
  if (!job.opened) queue_.Put(step::OpenRun{{job.spec.job}});
  Save(job);
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
