// How HeadCore is put together, and what it takes up from the store.
#include <utility>

#include "daemons/head/core/head_core.h"
#include "daemons/head/core/read_record.h"
#include "runtime/metrics.h"
#include "runtime/wire.h"

namespace troupe::daemons {

HeadCore::HeadCore(HeadOptions options, const std::string& id,
                   const groups::Coordinators* coordinators)
    : options_(std::move(options)),
      log_id_(id),
      coordinators_(coordinators),
      nodes_(NodeTableOptions{options_.node_suspect, options_.node_dead, options_.spared(),
                              seconds(600)}),
      scheduler_(SchedulerOptions{.confirm_within = 2 * kWorkerStartLimit}),
      actors_(&queue_, &processes_, this,
              {options_.driver_lease, options_.confirm_grace, options_.spared(), options_.new_id},
              log_id_),
      placement_groups_(&queue_, &scheduler_),
      collective_groups_(&queue_, &actors_.directory(), coordinators, options_.new_id),
      actor_groups_(&queue_, &actors_.directory(), &collective_groups_),
      logs_(&queue_, &nodes_) {}

void HeadCore::Restore(Time now, const HeadRecords& records) {
  queue_.SetNow(now);
  if (!records.runs.empty() || !records.actors.empty() || !records.placement_groups.empty())
    Recover(Now() + options_.confirm_grace);
  RestoreJobs(records.runs);
  placement_groups_.Restore(records.placement_groups);  // Before those that are in them.
  for (const auto& [id, group] : placement_groups_.groups())
    if (!group.spec.detached) actors_.Own(group.spec.owner);
  actors_.Restore(records.actors);
  EndStrays();
  collective_groups_.Restore(records.collective_groups);
  for (const actors::CollectiveStatus& group : collective_groups_.List())
    if (!group.spec.owner.empty()) actors_.Own(group.spec.owner);
  actor_groups_.Restore(records.actor_groups);
  for (const std::string& group : actor_groups_.groups().groups()) {
    const auto record = actor_groups_.groups().RecordOf(group);
    if (record && !record->spec.detached) actors_.Own(record->spec.owner);
  }
  queue_.Put(step::MarkRecords{});
  queue_.Put(step::Tick{});
}

// Workers of runs that are over: the head before had no time to end them.
void HeadCore::EndStrays() {
  std::set<std::string> owners;
  for (const auto& [id, actor] : actors_.directory().actors()) {
    if (!IsRunActor(id) || actor.dead()) continue;
    if (const Job* job = JobOf(id); job == nullptr || job->done()) owners.insert(actor.spec.owner);
  }
  for (const std::string& owner : owners) actors_.OwnerGone(owner, "its run is over");
}

// Those that are over first: of one that ended as its head died there may be both.
void HeadCore::RestoreJobs(const std::map<std::string, std::string>& records) {
  for (const auto& [key, value] : records) {
    if (!key.ends_with(kEnded)) continue;
    if (auto ended = ReadRecord<EndedRecord>(queue_, kFrameJobEvents, key, value))
      RestoreEnd(std::move(*ended));
  }
  for (const auto& [key, value] : records) {
    if (!key.ends_with("/spec")) continue;
    const auto spec = ReadRecord<JobSpec>(queue_, kFrameSubmitJob, key, value);
    if (!spec || jobs_.contains(spec->job)) continue;
    Job job;
    job.spec = *spec;
    const auto state = records.find("job/" + spec->job + "/state");
    if (state == records.end()) continue;
    const auto record =
        ReadRecord<JobRecord>(queue_, kFrameJobCommand, state->first, state->second);
    Result<ResourceSet> need = ResourceSet::FromMap(spec->resources);
    if (!record || !need.ok()) continue;
    job.record = *record;
    job.need = *need;
    job.state = JobState::kRunning;
    job.submitted = job.driver_heard = Now();
    job.confirming = true;
    const std::string name = spec->job;
    const std::string results = "job/" + name + kResult;
    for (auto it = records.lower_bound(results);
         it != records.end() && it->first.starts_with(results); ++it)
      job.results[it->first.substr(results.size())] = {it->second, nullptr};
    for (JobWorker& worker : job.record.workers) {  // That may have been noted no more.
      if (worker.alive() && job.results.contains(worker.member().ToString()))
        worker.state = WorkerState::kFinished;
    }
    Job& stored = jobs_[name] = std::move(job);
    metrics::Add(metrics::Id::kJobsRecovered);
    queue_.Note("continuing job ", name, " with ", stored.record.workers.size(), " workers");
    OpenGroup(stored);
  }
}

}  // namespace troupe::daemons
