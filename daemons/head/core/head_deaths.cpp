// What HeadCore does when a worker dies: the group goes on, the driver is told why, and a next
// life is started, later and later, or the run fails with the cause.
#include <algorithm>
#include <sstream>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"

namespace troupe::daemons {
namespace {

constexpr const char* kKilled = "signal SIGKILL";  // As a node tells it.

}  // namespace

void HeadCore::WorkerDied(Run& run, RunWorker& worker, const std::string& cause) {
  std::ostringstream forced;
  forced << "ended by force: it was still there " << static_cast<double>(worker.drain_ms) / 1e3
         << " s after it was asked to leave";
  const std::string how = worker.overdue ? forced.str() : cause;
  const bool was_starting = worker.state == WorkerState::kStarting;
  const bool had_finished = worker.state == WorkerState::kFinished;
  const bool was_draining = worker.state == WorkerState::kDraining;
  const WorkerStatus status = StatusOf(run, worker);
  if (had_finished) return CheckResult(run, worker);
  worker.state = WorkerState::kDead;
  TellGroup(run, groups::MemberDied{worker.member(), how});
  if (run.done()) return;
  // Told when its node has reaped it and says why it ended.
  EmitEpochOf(run, worker);
  run.deaths[worker.process] = {worker, status, was_draining ? "drained" : "died", was_starting,
                                Now() + kCauseGrace};
  if (!was_draining && !worker.fenced) BackOff(run, worker);
  if (worker.overdue) TellDeath(run, {worker.process, true, how, -1, {}}, true);
  Save(run);
  FinishIfDone(run);
  if (run.done()) return;
  // What its group makes of the death decides whether a replacement may start at once.
  ++run.deaths_untold;
  queue_.Put(step::FillAfterDeath{{run.spec.id}});
}

// The survivors get the machine to themselves first: the replacement can only join when they are
// active again, and its start would slow that down.
void HeadCore::On(const step::FillAfterDeath& death) {
  Run* run = FindRun(death.run);
  if (run == nullptr || --run->deaths_untold > 0) return;
  const groups::Coordinator* group = coordinators_->Find(death.run);
  const groups::GroupPhase phase = group == nullptr ? groups::GroupPhase::kForming : group->phase();
  const bool reforms = phase == groups::GroupPhase::kPersisting ||
                       phase == groups::GroupPhase::kPreparing ||
                       phase == groups::GroupPhase::kLinking;
  if (reforms) {
    run->quiet_until = Now() + kReformQuiet;
    queue_.PutAt(run->quiet_until, step::FillRun{{death.run}});
  }
  Fill(*run);
}

// The head before may have known of the end of members, and had no time to tell their group.
void HeadCore::TellGone(Run& run) {
  const groups::Coordinator* group = coordinators_->Find(run.spec.id);
  if (group == nullptr || group->phase() != groups::GroupPhase::kRecovering || !group->record())
    return;
  std::vector<groups::MemberId> gone;
  for (const groups::ViewMember& member : group->record()->view.members) {
    const RunWorker* worker = FindWorker(run, member.id.ToString());
    if (worker == nullptr || !worker->alive() || worker->fenced) gone.push_back(member.id);
  }
  for (const groups::MemberId& id : gone)
    TellGroup(run, groups::MemberDied{id, "it had ended when the head was restarted"});
}

// The process of one that has finished is no longer needed if its result is here. It is not if it
// was told to the head before this one, and is too large to be kept.
void HeadCore::CheckResult(Run& run, const RunWorker& worker) {
  const std::string member = worker.member().ToString();
  if (run.done() || run.results.contains(member)) return;
  End(run, RunState::kFailed,
      "the result of " + member +
          " is lost: it was with the head that has ended, and its worker has ended too");
}

// A worker that dies again and again before it has settled is given less and less of the machine.
void HeadCore::BackOff(Run& run, const RunWorker& worker) {
  Run::Restart& restart = run.restarts[worker.index];
  const bool settled =
      worker.member_since != Time::Never() && Now() > worker.member_since + kSettledTime;
  if (settled) restart = {};
  if (++restart.deaths < 2) return;
  const int doubled = std::min(restart.deaths - 2, 16);
  restart.not_before = Now() + std::min<Duration>(kRestartDelay * (1 << doubled), kRestartDelayMax);
  queue_.PutAt(restart.not_before, step::FillRun{{run.spec.id}});
}

bool HeadCore::Trains(const Run& run) const {
  return run.view.epoch > 0 && std::ranges::any_of(run.record.workers, [&](const RunWorker& w) {
           return w.alive() && w.state != WorkerState::kFinished &&
                  RankOf(run.view, w.member()) >= 0;
         });
}

// A group whose members finish takes nobody in. Of a function that has no state to be elastic with
// each worker's result is wanted, so one that crashed runs again.
bool HeadCore::MayJoin(const Run& run) const {
  if (run.results.empty()) return true;
  const bool elastic = std::ranges::any_of(
      run.view.members, [](const groups::ViewMember& m) { return m.has_state || m.version > 0; });
  return !elastic && run.results.size() < run.view.members.size() &&
         std::ranges::any_of(run.restarts, [](const auto& r) { return r.second.crashes > 0; });
}

void HeadCore::TellDeaths(Run& run, Time until) {
  std::vector<std::string> due;
  for (const auto& [process, death] : run.deaths) {
    if (death.tell_by <= until) due.push_back(process);
  }
  for (const std::string& process : due)
    TellDeath(run, {process, true, "its process ended", -1, {}}, true);
}

void HeadCore::TellDeath(Run& run, const WorkerExited& exited, bool lost) {
  const auto it = run.deaths.find(exited.process);
  if (it == run.deaths.end()) return;
  const Run::Death death = std::move(it->second);
  run.deaths.erase(it);
  const std::vector<std::string>& lines = exited.last_lines;
  queue_.Put(step::Count{metrics::Id::kWorkerEvents, 1, death.event});
  EmitInOrder(run, WorkerEvent(run.spec.id, Now(), death.status, death.event, exited.how, lines));
  if (run.done()) return;
  // Nobody's fault that counts; but the others may have finished, and have waited for this word.
  if (death.event != "died" || death.worker.fenced) return FinishIfDone(run);
  run.last_death = death.status.id + (death.status.host.empty() ? "" : " on " + death.status.host) +
                   " died: " + exited.how;
  if (!lines.empty()) run.last_death += "; it printed last:";
  for (const std::string& line : lines) run.last_death += "\n  " + line;
  // Whoever was killed may have been so for reasons that do not lie in it; a member that was, had
  // started well, and its next life need not wait.
  Run::Restart& restart = run.restarts[death.worker.index];
  const bool killed = exited.how.starts_with(kKilled);
  if (!lost && !killed && restart.deaths > 0) ++restart.crashes;
  if (killed && death.worker.member_since != Time::Never() && restart.deaths > 0) {
    --restart.deaths;
    restart.not_before = Time{};
  }
  if (death.was_starting && !lost) ++run.start_failures;
  if (Trains(run)) return Fill(run);
  if (run.start_failures >= kStartFailuresMax) {
    return End(run, RunState::kFailed,
               std::to_string(run.start_failures) + " workers in a row died " +
                   "before they could start; the last one, " + run.last_death,
               death.status);
  }
  if (restart.crashes >= kCrashesMax) {
    return End(run, RunState::kFailed,
               "a worker crashed " + std::to_string(restart.crashes) + " times in a row; " +
                   run.last_death,
               death.status);
  }
  Fill(run);
  FinishIfDone(run);
}

}  // namespace troupe::daemons
