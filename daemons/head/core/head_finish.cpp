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

void HeadCore::FinishIfDone(Run& run) {
  if (run.done() || run.results.empty() || !run.deaths.empty() || MayJoin(run)) return;
  for (const RunWorker& worker : run.record.workers) {
    if (!worker.alive() || worker.state == WorkerState::kFinished) continue;
    // A joiner, however far it is, finds a group that takes nobody in any more.
    const bool joiner = run.view.epoch > 0 && RankOf(run.view, worker.member()) < 0;
    if (!joiner) return;
  }
  std::vector<const RunWorker*> finished;
  for (const RunWorker& worker : run.record.workers) {
    if (worker.state != WorkerState::kFinished) continue;
    if (!run.results.contains(worker.member().ToString())) return;  // It says it again.
    finished.push_back(&worker);
  }
  std::stable_sort(finished.begin(), finished.end(), [](const RunWorker* a, const RunWorker* b) {
    const auto key = [](const RunWorker* w) {
      return w->rank < 0 ? static_cast<int>(w->index) : w->rank;
    };
    return key(a) < key(b);
  });
  if (run.told_by == Time::Never()) TellResults(run, finished);
  // What is only here and with the workers is to arrive before they go.
  if (Now() < run.told_by && Attended(run) && !run.events.all_seen()) return;
  End(run, RunState::kSucceeded, "");
}

void HeadCore::TellResults(Run& run, const std::vector<const RunWorker*>& finished) {
  run.told_by = Now();
  int rank = 0;
  for (const RunWorker* worker : finished) {
    Run::Payload& result = run.results[worker->member().ToString()];
    RunEvent event = ResultEvent(run.spec.id, Now(), StatusOf(run, *worker), rank++, result.bytes);
    if (result.file || result.bytes.size() > kKeptResultBytes) {
      run.told_by = Now() + kSeeResults;
    } else {
      run.final_events.push_back(event);
    }
    Emit(run, std::move(event), result.file);
  }
}

void HeadCore::End(Run& run, RunState state, const std::string& reason, const WorkerStatus& worker,
                   const std::string& payload) {
  run.state = state;
  run.reason = reason;
  TellDeaths(run, Time::Never());
  if (run.epoch_pending) EmitEpoch(run, run.took);
  EmitEpochs(run);
  EmitNoted(run, std::numeric_limits<groups::Epoch>::max());
  queue_.Note("run ", run.spec.id, " ", RunStateName(state), reason.empty() ? "" : ": ", reason);
  CloseIfOver(run);
  if (!run.spares_on.empty()) AskForSpares(run, 0);
  queue_.Put(step::CloseEpochs{run.spec.id});
  // What a worker printed comes through its node and may be behind its result: the run's last event
  // waits until the node has seen the processes end.
  run.last_event = DoneEvent(run.spec.id, Now(), RunStateName(state), reason, worker, payload);
  run.final_events.push_back(*run.last_event);
  if (payload.size() > kKeptErrorBytes) run.final_events.back().payload.clear();
  KeepEnd(run);
  // They could tell the next head their results once more, until it is kept.
  queue_.PutWhenKept("end/" + run.spec.id, step::EndProcessesOfRun{{run.spec.id}});
  queue_.PutAt(Now() + kEndKeptLimit, step::EndProcessesOfRun{{run.spec.id}});
  run.last_event_by = Now() + kOutputGrace;
  EmitLast(run);
}

// The run is over: all that is left of it goes. Again is no error.
void HeadCore::EndProcesses(const std::string& id) {
  const auto run = runs_.find(id);
  if (run == runs_.end()) return;
  run->second.released = true;
  for (const auto& [name, process] : processes_.all()) {
    if (process.ended || RunOf(process.owner.actor) != &run->second) continue;
    processes_.EndBy(name, Now() + kLeaveTime);
    const auto& workers = run->second.record.workers;
    const auto owner = std::ranges::find(workers, name, &RunWorker::process);
    if (owner != workers.end() && owner->state == WorkerState::kFinished) {
      Send(name, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"the run is over"}));
    } else {
      Kill(name, SIGTERM, "the run is over");
    }
  }
  EndWorkers(id, "the run is over");
}

void HeadCore::EmitLast(Run& run) {
  if (!run.last_event) return;
  for (const auto& [name, process] : processes_.all())
    if (Now() < run.last_event_by && RunOf(process.owner.actor) == &run) return;
  RunEvent event = std::move(*run.last_event);
  run.last_event.reset();
  Emit(run, std::move(event));
}

// ---- what is kept of it ----

// A head that is killed now must not make its driver believe that the run was lost.
void HeadCore::KeepEnd(Run& run) {
  const bool awaited =
      (run.spec.detached || !DriverLost(run)) && !TROUPE_MUTATED("an end is not kept");
  if (!awaited) return Forget(run);
  run.end_kept = true;
  SaveEnd(run);
  const std::string prefix = "job/" + run.spec.id;
  for (const char* key : {"/spec", "/state"}) Keep(prefix + key, "");
  queue_.Put(step::DropRecords{prefix + kResult});
  queue_.Put(step::DropRecords{"group/" + run.spec.id + "/"});
}

void HeadCore::SaveEnd(const Run& run) {
  EndedRecord record{
      run.spec,   run.record.driver, run.record.driver_place, RunStateName(run.state),
      run.reason, run.final_events};
  record.spec.payload.clear();
  Keep("job/" + run.spec.id + kEnded, wire::Encode(kFrameRunEvents, record));
}

void HeadCore::RestoreEnd(EndedRecord record) {
  const std::string name = record.spec.id;
  Run& run = runs_[name];
  run.spec = std::move(record.spec);
  run.record.driver = record.driver;
  run.record.driver_place = record.driver_place;
  run.state = ParseRunState(record.state);
  run.reason = record.reason;
  run.submitted = run.driver_heard = run.ended = Now();
  run.released = true;
  run.final_events = record.events;
  for (RunEvent& event : record.events) run.events.Add(std::move(event));
  KeepEnd(run);  // The head before may have had no time to remove the rest.
}

void HeadCore::ForgetWhenSeen(Run& run) {
  const bool seen = !run.spec.detached && !run.last_event && run.events.all_seen();
  if (!seen || !std::exchange(run.end_kept, false)) return;
  Forget(run);
}

void HeadCore::Forget(const Run& run) {
  queue_.Put(step::DropRecords{"job/" + run.spec.id + "/"});
  queue_.Put(step::DropRecords{"group/" + run.spec.id + "/"});
}

}  // namespace troupe::daemons
