// How a run of HeadCore ends: its results are told, its end is kept until its driver has heard
// of it, its processes go.
#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>

#include "daemons/head/core/head_core.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kOutputGrace = seconds(2);
constexpr Duration kEndKeptLimit = seconds(10);  // Where the store does not answer.

}  // namespace

void HeadCore::FinishIfDone(Job& job) {
  if (job.done() || job.results.empty() || !job.deaths.empty() || MayJoin(job)) return;
  for (const JobWorker& worker : job.record.workers) {
    if (!worker.alive() || worker.state == WorkerState::kFinished) continue;
    // A joiner, however far it is, finds a group that takes nobody in any more.
    const bool joiner = job.view.epoch > 0 && RankOf(job.view, worker.member()) < 0;
    if (!joiner) return;
  }
  std::vector<const JobWorker*> finished;
  for (const JobWorker& worker : job.record.workers) {
    if (worker.state != WorkerState::kFinished) continue;
    if (!job.results.contains(worker.member().ToString())) return;  // It says it again.
    finished.push_back(&worker);
  }
  std::stable_sort(finished.begin(), finished.end(), [](const JobWorker* a, const JobWorker* b) {
    const auto key = [](const JobWorker* w) {
      return w->rank < 0 ? static_cast<int>(w->index) : w->rank;
    };
    return key(a) < key(b);
  });
  if (job.told_by == Time::Never()) TellResults(job, finished);
  // What is only here and with the workers is to arrive before they go.
  if (Now() < job.told_by && Attended(job) && !job.events.all_seen()) return;
  End(job, JobState::kSucceeded, "");
}

void HeadCore::TellResults(Job& job, const std::vector<const JobWorker*>& finished) {
  job.told_by = Now();
  int rank = 0;
  for (const JobWorker* worker : finished) {
    Job::Payload& result = job.results[worker->member().ToString()];
    JobEvent event = ResultEvent(job.spec.job, Now(), StatusOf(job, *worker), rank++, result.bytes);
    if (result.file || result.bytes.size() > kKeptResultBytes) {
      job.told_by = Now() + kSeeResults;
    } else {
      job.final_events.push_back(event);
    }
    Emit(job, std::move(event), result.file);
  }
}

void HeadCore::End(Job& job, JobState state, const std::string& reason, const WorkerStatus& worker,
                   const std::string& payload) {
  job.state = state;
  job.reason = reason;
  TellDeaths(job, Time::Never());
  if (job.epoch_pending) EmitEpoch(job, job.took);
  EmitEpochs(job);
  EmitNoted(job, std::numeric_limits<groups::Epoch>::max());
  queue_.Note("job ", job.spec.job, " ", JobStateName(state), reason.empty() ? "" : ": ", reason);
  GiveUpRoom(job, job.record.waiting.size());
  if (!job.spares_on.empty()) AskForSpares(job, 0);
  queue_.Put(step::CloseEpochs{job.spec.job});
  // What a worker printed comes through its node and may be behind its result: the job's last event
  // waits until the node has seen the processes end.
  job.last_event = DoneEvent(job.spec.job, Now(), JobStateName(state), reason, worker, payload);
  job.final_events.push_back(*job.last_event);
  if (payload.size() > kKeptErrorBytes) job.final_events.back().payload.clear();
  KeepEnd(job);
  // They could tell the next head their results once more, until it is kept.
  queue_.PutWhenKept("end/" + job.spec.job, step::EndProcessesOfRun{{job.spec.job}});
  queue_.PutAt(Now() + kEndKeptLimit, step::EndProcessesOfRun{{job.spec.job}});
  job.last_event_by = Now() + kOutputGrace;
  EmitLast(job);
}

// The run is over: all that is left of it goes. Again is no error.
void HeadCore::EndProcesses(const std::string& run) {
  const auto job = jobs_.find(run);
  if (job == jobs_.end()) return;
  job->second.released = true;
  for (const auto& [name, process] : processes_.all()) {
    if (process.ended || JobOf(process.owner.actor) != &job->second) continue;
    processes_.EndBy(name, Now() + kLeaveTime);
    const auto& workers = job->second.record.workers;
    const auto owner = std::ranges::find(workers, name, &JobWorker::process);
    if (owner != workers.end() && owner->state == WorkerState::kFinished) {
      Send(name, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the job is over"}));
    } else {
      Kill(name, SIGTERM, "the job is over");
    }
  }
  // Those that are about to be started once more.
  for (const JobWorker& worker : std::vector(job->second.record.workers))
    if (worker.process.empty()) actors_.EndActor(worker.actor, "the job is over");
}

void HeadCore::EmitLast(Job& job) {
  if (!job.last_event) return;
  for (const auto& [name, process] : processes_.all())
    if (Now() < job.last_event_by && JobOf(process.owner.actor) == &job) return;
  JobEvent event = std::move(*job.last_event);
  job.last_event.reset();
  Emit(job, std::move(event));
}

// ---- what is kept of it ----

// A head that is killed now must not make its driver believe that the run was lost.
void HeadCore::KeepEnd(Job& job) {
  const bool awaited =
      (job.spec.detached || !DriverLost(job)) && !TROUPE_MUTATED("an end is not kept");
  if (!awaited) return Forget(job);
  job.end_kept = true;
  SaveEnd(job);
  const std::string prefix = "job/" + job.spec.job;
  for (const char* key : {"/spec", "/state"}) Keep(prefix + key, "");
  queue_.Put(step::DropRecords{prefix + kResult});
  queue_.Put(step::DropRecords{"group/" + job.spec.job + "/"});
}

void HeadCore::SaveEnd(const Job& job) {
  EndedRecord record{
      job.spec,   job.record.driver, job.record.driver_place, JobStateName(job.state),
      job.reason, job.final_events};
  record.spec.payload.clear();
  Keep("job/" + job.spec.job + kEnded, wire::Encode(kFrameJobEvents, record));
}

void HeadCore::RestoreEnd(EndedRecord record) {
  const std::string name = record.spec.job;
  Job& job = jobs_[name];
  job.spec = std::move(record.spec);
  job.record.driver = record.driver;
  job.record.driver_place = record.driver_place;
  job.state = ParseJobState(record.state);
  job.reason = record.reason;
  job.submitted = job.driver_heard = job.ended = Now();
  job.released = true;
  job.final_events = record.events;
  for (JobEvent& event : record.events) job.events.Add(std::move(event));
  KeepEnd(job);  // The head before may have had no time to remove the rest.
}

void HeadCore::ForgetWhenSeen(Job& job) {
  const bool seen = !job.spec.detached && !job.last_event && job.events.all_seen();
  if (!seen || !std::exchange(job.end_kept, false)) return;
  Forget(job);
}

void HeadCore::Forget(const Job& job) {
  queue_.Put(step::DropRecords{"job/" + job.spec.job + "/"});
  queue_.Put(step::DropRecords{"group/" + job.spec.job + "/"});
}

}  // namespace troupe::daemons
