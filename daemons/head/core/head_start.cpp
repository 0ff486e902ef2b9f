// How HeadCore is put together, and what it takes up from the store.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "collective_groups/membership/group_keys.h"
#include "daemons/head/core/head_core.h"
#include "daemons/head/core/read_record.h"
#include "runtime/metrics.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {

HeadCore::HeadCore(HeadOptions options, const std::string& id,
                   const groups::Coordinators* coordinators, Spool* spool)
    : options_(std::move(options)),
      log_id_(id),
      coordinators_(coordinators),
      nodes_(NodeTableOptions{options_.node_suspect, options_.node_dead, options_.spared(),
                              seconds(600)}),
      scheduler_(SchedulerOptions{.confirm_within = 2 * kWorkerStartLimit}),
      uploads_(spool),
      actors_(&queue_, &processes_, this,
              {options_.driver_lease, options_.confirm_grace, options_.spared(), options_.new_id},
              log_id_),
      placement_groups_(&queue_, &scheduler_),
      collective_groups_(&queue_, &actors_.directory(), coordinators, options_.new_id),
      actor_groups_(&queue_, &actors_.directory(), &collective_groups_),
      logs_(&queue_, &nodes_),
      join_tokens_(&queue_, options_.join_keys),
      user_metrics_(log_id_, options_.metrics) {}

HeadCore::~HeadCore() = default;

void HeadCore::Restore(Time now, const HeadRecords& records) {
  queue_.SetNow(now);
  const bool runs =
      !records.runs.empty() || !records.actors.empty() || !records.placement_groups.empty();
  const bool found = runs || !records.collective_groups.empty() || !records.actor_groups.empty() ||
                     !records.join_tokens.empty();
  if (runs) Recover(Now() + options_.confirm_grace);
  RestoreRuns(records.runs);
  placement_groups_.Restore(records.placement_groups);  // Before those that are in them.
  for (const auto& [id, group] : placement_groups_.groups())
    if (!group.spec.detached) actors_.Own(group.spec.owner);
  actors_.Restore(records.actors);
  collective_groups_.Restore(records.collective_groups);
  for (const actors::CollectiveStatus& group : collective_groups_.List())
    if (!group.spec.owner.empty()) actors_.Own(group.spec.owner);
  actor_groups_.Restore(records.actor_groups);
  join_tokens_.Restore(records.join_tokens);
  RestoreWorkers();
  EndLeftMembers();
  DropLeftEpochs(records);
  for (const std::string& group : actor_groups_.groups().groups()) {
    const auto record = actor_groups_.groups().RecordOf(group);
    if (record && !record->spec.detached) actors_.Own(record->spec.owner);
  }
  queue_.Put(step::MarkRecords{found});
  queue_.Put(step::Tick{});
}

// The head before may have noted a change of a run, and had no time to note what it means for its
// workers; it may have been of a release that had no group of them.
void HeadCore::RestoreWorkers() {
  for (const std::string& group : actor_groups_.groups().groups()) {
    if (!IsRunActor(group)) continue;
    const std::string id = group.substr(std::string_view(kRunActor).size());
    if (const Run* run = FindRun(id); run == nullptr || run->done())
      EndWorkers(id, "its run is over");
  }
  for (auto& [id, run] : runs_) {
    if (run.done()) continue;
    uint32_t first = 0;  // No two of a run's workers have one number, ever.
    for (const auto& [number, incarnation] : run.record.numbers)
      first = std::max(first, static_cast<uint32_t>(std::strtoul(number.c_str(), nullptr, 10)) + 1);
    for (const RunWorker& worker : run.record.workers) first = std::max(first, worker.index + 1);
    Status status = MakeWorkers(run, first);  // Again is no error.
    if (status.ok()) status = Resize(run, run.record.target);
    if (!status.ok())
      End(run, RunState::kFailed, "cannot start " + run.spec.name + ": " + status.error().message);
    for (const RunWorker& worker : run.record.workers) {
      if (worker.state == WorkerState::kFinished)
        actor_groups_.Change([&](ActorGroups& g, auto& a) { g.Finished(worker.actor, a); });
    }
  }
}

// Members of groups that have ended: nobody but their group ends them, and the head before had no
// time to.
void HeadCore::EndLeftMembers() {
  if (TROUPE_MUTATED("members of ended groups stay")) return;
  for (const auto& [id, actor] : actors_.directory().actors()) {
    const bool of_group = id.starts_with(actors::kActorGroupId) || IsRunActor(id);
    if (of_group && !actor.dead() && !actor_groups_.groups().MemberOf(id))
      queue_.Put(step::EndActor{id, "its group has ended"});
  }
}

// Epochs of groups and runs that have ended: the head before had no time to remove them.
void HeadCore::DropLeftEpochs(const HeadRecords& records) {
  for (const std::string& keys : records.epochs) {
    const std::string run = "job/" + keys + "/";
    const auto of_run = records.runs.lower_bound(run);
    const bool is_run = of_run != records.runs.end() && of_run->first.starts_with(run);
    const bool of_actors = keys.starts_with(actors::kCollectivePrefix);
    if (is_run || (of_actors && collective_groups_.HasEpochs(keys))) continue;
    queue_.Put(step::DropRecords{groups::KeysOfGroup(keys)});
  }
}

// Those that are over first: of one that ended as its head died there may be both.
void HeadCore::RestoreRuns(const std::map<std::string, std::string>& records) {
  for (const auto& [key, value] : records) {
    if (!key.ends_with(kEnded)) continue;
    if (auto ended = ReadRecord<EndedRecord>(queue_, kFrameRunEvents, key, value))
      RestoreEnd(std::move(*ended));
  }
  for (const auto& [key, value] : records) {
    if (!key.ends_with("/spec")) continue;
    const auto spec = ReadRecord<RunSpec>(queue_, kFrameSubmitRun, key, value);
    if (!spec || runs_.contains(spec->id)) continue;
    Run run;
    run.spec = *spec;
    const auto state = records.find("job/" + spec->id + "/state");
    if (state == records.end()) continue;
    const auto record =
        ReadRecord<RunRecord>(queue_, kFrameRunCommand, state->first, state->second);
    Result<ResourceSet> need = ResourceSet::FromMap(spec->resources);
    if (!record || !need.ok()) continue;
    run.record = *record;
    run.need = *need;
    run.state = RunState::kRunning;
    run.submitted = run.driver_heard = Now();
    run.confirming = true;
    const std::string name = spec->id;
    const std::string results = "job/" + name + kResult;
    for (auto it = records.lower_bound(results);
         it != records.end() && it->first.starts_with(results); ++it)
      run.results[it->first.substr(results.size())] = {it->second, nullptr};
    for (RunWorker& worker : run.record.workers) {  // That may have been noted no more.
      if (worker.alive() && run.results.contains(worker.member().ToString()))
        worker.state = WorkerState::kFinished;
    }
    Run& stored = runs_[name] = std::move(run);
    queue_.Put(step::Count{metrics::Id::kRunsRecovered});
    queue_.Note("continuing run ", name, " with ", stored.record.workers.size(), " workers");
    OpenGroup(stored);
  }
}

}  // namespace troupe::daemons
