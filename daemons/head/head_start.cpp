// How HeadService is put together, and what it takes up from the store.
#include <utility>

#include "daemons/head/head_service.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/wire.h"

namespace troupe::daemons {
HeadService::HeadService(Transport* transport, Lane* store_lane, Store* store, HeadOptions options)
    : transport_(transport),
      store_lane_(store_lane),
      store_(store),
      options_(std::move(options)),
      log_id_(options_.new_id()),
      nodes_(NodeTableOptions{options_.node_suspect, options_.node_dead, options_.spared(),
                              seconds(600)}),
      scheduler_(SchedulerOptions{.confirm_within = 2 * kWorkerStartLimit}),
      groups_(&transport->loop(), store_lane, store, "head-" + log_id_, options_.key_ttl),
      records_(&transport->loop(), store_lane, store, options_.key_ttl, [this] { WriteAll(); }),
      actors_({transport, store_lane, store, &records_, &processes_,
               [this](const SchedulerEvent& event) { Schedule(event); },
               [this](const std::string& node, const StartWorker& start) {
                 (void)transport_->Send(node_links_[node].peer,
                                        wire::Encode(kFrameStartWorker, start));
               },
               [this](const std::string& node, const std::string& process, int signal,
                      const std::string& reason) {
                 (void)transport_->Send(
                     node_links_[node].peer,
                     wire::Encode(kFrameKillWorker, KillWorker{process, signal, reason}));
               },
               [this](const std::string& actor) {
                 if (IsRunActor(actor)) return OnRunActor(actor);
                 collective_groups_.OnActor(Now(), actor);
                 actor_groups_.OnActor(Now(), actor);
               },
               [this](const std::string& owner) {
                 placement_groups_.OwnerGone(owner);
                 collective_groups_.OwnerGone(Now(), owner);
                 actor_groups_.OwnerGone(Now(), owner);
               },
               [this](const std::string& owner, Time heard) { return OwnerLost(owner, heard); },
               [this](const std::string& actor) {
                 return IsRunActor(actor) || collective_groups_.HasMember(actor) ||
                        actor_groups_.groups().MemberOf(actor).has_value();
               },
               [this](const std::string& process) { return AssignmentOf(process); },
               [this](const actors::ActorSpec& actor) {
                 const Job* job = JobOf(actor.actor);
                 return job == nullptr ? Time{} : job->quiet_until;
               }},
              {options_.driver_lease, options_.confirm_grace, options_.spared(), options_.key_ttl,
               options_.new_id},
              log_id_),
      placement_groups_(
          {[this](const SchedulerEvent& event) { Schedule(event); },
           [this](const std::string& group) { return scheduler_.FindGroup(group); },
           [this](const std::string& key, std::string record) {
             record.empty() ? records_.Delete(key) : records_.Put(key, std::move(record));
           },
           [this](const std::string& name, std::function<void()> then) {
             records_.WhenKept(name, std::move(then));
           },
           [this](const std::string& to, const actors::ActorAnswer& answer) {
             (void)transport_->Send(to, wire::Encode(actors::kFrameActorAnswer, answer));
           }}),
      collective_groups_(
          {&groups_, [this](const std::string& actor) { return actors_.directory().Find(actor); },
           [this](const std::string& process, const std::string& frame) {
             return transport_->Send(process, frame);
           },
           [this](const std::string& key, std::string record) {
             record.empty() ? records_.Delete(key) : records_.Put(key, std::move(record));
           },
           [this](const std::string& name, std::function<void()> then) {
             records_.WhenKept(name, std::move(then));
           },
           [this](std::function<void()> then) { scope_.Post(std::move(then)); },
           [this] { return std::stoull(options_.new_id().substr(0, 8), nullptr, 16) << 20; }}),
      actor_groups_(
          {[this](const std::string& actor) { return actors_.directory().Where(actor); },
           [this](const std::string& actor) { return actors_.directory().Find(actor) != nullptr; },
           [this](const std::vector<actors::ActorSpec>& members, size_t at_least) {
             return actors_.StartMembers(members, at_least);
           },
           [this](const std::string& actor, const std::string& reason) {
             actors_.EndActor(actor, reason);
           },
           [this](const std::string& actor, const std::string& reason) {
             actors_.TellToLeave(actor, reason);
           },
           [this](const std::string& name, const GroupMembership* m) {
             collective_groups_.SetMembers(Now(), name, m ? m->min_size : 0, m ? m->max_size : 0,
                                           m ? m->actors : std::vector<std::string>());
           },
           [this](const std::string& name, const std::string& actor, const std::string& reason) {
             collective_groups_.Drain(name, actor, reason);
           },
           [this](const std::string& name, const std::vector<std::string>& actors,
                  const std::string& reason) { collective_groups_.Dismiss(name, actors, reason); },
           [this](const std::string& name) { collective_groups_.Readmit(name); },
           [this](const std::string& name) { return collective_groups_.Has(name); },
           [this](const std::string& key, std::string record) {
             record.empty() ? records_.Delete(key) : records_.Put(key, std::move(record));
           },
           [this](const std::string& name, std::function<void()> then) {
             records_.WhenKept(name, std::move(then));
           },
           [this](const std::string& to, const actors::ActorAnswer& answer) {
             (void)transport_->Send(to, wire::Encode(actors::kFrameActorAnswer, answer));
           }}),
      logs_({[this](const std::string& node) { return Reachable(node); },
             [this](const std::string& node, const ReadLog& read) {
               (void)transport_->Send(node_links_[node].peer, wire::Encode(kFrameReadLog, read));
             },
             [this](const std::string& driver, uint64_t request, const Status& status,
                    const std::string& json) { Reply(driver, request, status, json); }}) {}

Status HeadService::Start() {
  Result<std::map<std::string, std::string>> records = Records::Load(*store_, "job/");
  if (!records.ok()) return records.error().WithContext("cannot read the jobs");
  Result<std::map<std::string, std::string>> actors = Records::Load(*store_, "actor/");
  if (!actors.ok()) return actors.error().WithContext("cannot read the actors");
  Result<std::map<std::string, std::string>> groups = Records::Load(*store_, kGroupRecords);
  if (!groups.ok()) return groups.error().WithContext("cannot read the placement groups");
  Result<std::map<std::string, std::string>> collectives =
      Records::Load(*store_, kCollectiveRecords);
  if (!collectives.ok())
    return collectives.error().WithContext("cannot read the collective groups");
  Result<std::map<std::string, std::string>> actor_groups =
      Records::Load(*store_, kActorGroupRecords);
  if (!actor_groups.ok())
    return actor_groups.error().WithContext("cannot read the groups of actors");
  scope_.Post([this, records = std::move(*records), actors = std::move(*actors),
               groups = std::move(*groups), collectives = std::move(*collectives),
               actor_groups = std::move(*actor_groups)] {
    if (!records.empty() || !actors.empty() || !groups.empty())
      Recover(Now() + options_.confirm_grace);
    RestoreJobs(records);
    placement_groups_.Restore(groups);  // Before those that are in them.
    for (const auto& [id, group] : placement_groups_.groups())
      if (!group.spec.detached) actors_.Own(group.spec.owner);
    actors_.Restore(actors);
    EndStrays();
    collective_groups_.Restore(Now(), collectives);
    for (const actors::CollectiveStatus& group : collective_groups_.List())
      if (!group.spec.owner.empty()) actors_.Own(group.spec.owner);
    actor_groups_.Restore(Now(), actor_groups);
    for (const std::string& group : actor_groups_.groups().groups()) {
      const auto record = actor_groups_.groups().RecordOf(group);
      if (record && !record->spec.detached) actors_.Own(record->spec.owner);
    }
    records_.Mark();
    transport_->SetHandler(
        [this](const std::string& from, const std::string& frame) { OnFrame(from, frame); });
    OnTick();
  });
  return Status::Ok();
}

// Workers of runs that are over: the head before had no time to end them.
void HeadService::EndStrays() {
  std::set<std::string> owners;
  for (const auto& [id, actor] : actors_.directory().actors()) {
    if (!IsRunActor(id) || actor.dead()) continue;
    if (const Job* job = JobOf(id); job == nullptr || job->done()) owners.insert(actor.spec.owner);
  }
  for (const std::string& owner : owners) actors_.OwnerGone(owner, "its run is over");
}

// Those that are over first: of one that ended as its head died there may be both.
void HeadService::RestoreJobs(const std::map<std::string, std::string>& records) {
  for (const auto& [key, value] : records) {
    if (!key.ends_with(kEnded)) continue;
    if (auto ended = ReadRecord<EndedRecord>(kFrameJobEvents, key, value))
      RestoreEnd(std::move(*ended));
  }
  for (const auto& [key, value] : records) {
    if (!key.ends_with("/spec")) continue;
    const auto spec = ReadRecord<JobSpec>(kFrameSubmitJob, key, value);
    if (!spec || jobs_.contains(spec->job)) continue;
    Job job;
    job.spec = *spec;
    const auto state = records.find("job/" + spec->job + "/state");
    if (state == records.end()) continue;
    const auto record = ReadRecord<JobRecord>(kFrameJobCommand, state->first, state->second);
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
    LogInfo("continuing job ", name, " with ", stored.record.workers.size(), " workers");
    OpenGroup(stored);
  }
}

}  // namespace troupe::daemons
