// What HeadCore does when a worker dies: the group goes on, the driver is told why, and a next
// life is started, later and later, or the run fails with the cause.
#include <algorithm>

#include "daemons/head/core/head_core.h"
#include "runtime/metrics.h"

namespace troupe::daemons {
namespace {

constexpr const char* kKilled = "signal SIGKILL";  // As a node tells it.

}  // namespace

void HeadCore::WorkerDied(Run& run, RunWorker& worker, const std::string& cause) {
  const std::string how = worker.forced.empty() ? cause : worker.forced;
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
  const bool settled =
      worker.member_since != Time::Never() && Now() > worker.member_since + kSettledTime;
  if (settled) run.crashes.erase(worker.index);
  if (settled || worker.fenced) actors_.Proven(worker.actor);
  if (!worker.forced.empty()) TellDeath(run, {worker.process, true, how, -1, {}}, true);
  Save(run);
  FinishIfDone(run);
  if (run.done()) return;
  // What its group makes of the death decides whether its next life may begin at once.
  ++run.deaths_untold;
  run.quiet_until = Now() + kReformQuiet;
  queue_.Put(step::DeathTold{{run.spec.id}});
}

// The survivors get the machine to themselves first: whoever follows can only join when they are
// active again, and its start would slow that down.
void HeadCore::On(const step::DeathTold& death) {
  Run* run = FindRun(death.run);
  if (run == nullptr || --run->deaths_untold > 0) return;
  const groups::Coordinator* group = coordinators_->Find(death.run);
  const groups::GroupPhase phase = group == nullptr ? groups::GroupPhase::kForming : group->phase();
  const bool reforms = phase == groups::GroupPhase::kPersisting ||
                       phase == groups::GroupPhase::kPreparing ||
                       phase == groups::GroupPhase::kLinking;
  if (reforms) return;
  run->quiet_until = Time{};
  queue_.Put(step::OrderHeld{});
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
  return !elastic && run.results.size() < run.view.members.size() && !run.crashes.empty();
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
  const RunWorker& worker = death.worker;
  const bool killed = exited.how.starts_with(kKilled);
  int crashes = 0;
  if (!lost && !killed) crashes = ++run.crashes[worker.index];
  if (killed && worker.member_since != Time::Never())
    actors_.Forgive(worker.actor, worker.incarnation);
  if (death.was_starting && !lost) ++run.start_failures;
  CloseIfOver(run);
  if (Trains(run)) return;
  if (run.start_failures >= kStartFailuresMax) {
    return End(run, RunState::kFailed,
               std::to_string(run.start_failures) + " workers in a row died " +
                   "before they could start; the last one, " + run.last_death,
               death.status);
  }
  if (crashes >= kCrashesMax) {
    return End(run, RunState::kFailed,
               "a worker crashed " + std::to_string(crashes) + " times in a row; " + run.last_death,
               death.status);
  }
  FinishIfDone(run);
}

}  // namespace troupe::daemons
