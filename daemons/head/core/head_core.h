// HeadCore: places actors on nodes, owns runs and their groups, answers drivers.
//
// One machine: a task comes in, its parts deal with it and with all that comes of it one after the
// other, and what is to be done outside comes out as effects, in order. It composes the scheduler's
// cores with those of collective groups; that composition is the head's own business, since neither
// folder may know the other.
// Thread: one. Never blocks but as the spool does, reads no clock, logs and counts nothing:
// HeadService is the shell that does.
// Owns: nothing that training needs: it can be killed and started again, and finds all in the
// store.
// Limits: those of EventLog per run; timings below.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/membership/coordinators.h"
#include "daemons/head/core/collective_groups.h"
#include "daemons/head/core/head_actor_groups.h"
#include "daemons/head/core/head_actors.h"
#include "daemons/head/core/head_options.h"
#include "daemons/head/core/head_queue.h"
#include "daemons/head/core/join_tokens.h"
#include "daemons/head/core/log_requests.h"
#include "daemons/head/core/placement_groups.h"
#include "daemons/head/core/process_table.h"
#include "daemons/head/core/run.h"
#include "daemons/head/core/spool.h"
#include "daemons/head/core/uploads.h"
#include "daemons/head/core/usage.h"
#include "daemons/head/core/user_metrics.h"
#include "scheduler/node_table.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

// What a head before has left in the store, by the beginnings of its keys.
struct HeadRecords {
  std::map<std::string, std::string> runs;
  std::map<std::string, std::string> actors;
  std::map<std::string, std::string> placement_groups;
  std::map<std::string, std::string> collective_groups;
  std::map<std::string, std::string> actor_groups;
  std::map<std::string, std::string> join_tokens;
  std::set<std::string> epochs;  // What those of groups are named by.
};

class HeadCore final : private HeadKnowledge {
 public:
  // `id`: nothing else has it. `coordinators`: those that OpenEpochs has asked for. `spool`: for
  // results and reports that are too large for memory.
  HeadCore(HeadOptions options, const std::string& id, const groups::Coordinators* coordinators,
           Spool* spool);
  ~HeadCore() override;
  HeadCore(const HeadCore&) = delete;
  HeadCore& operator=(const HeadCore&) = delete;
  // First of all; from then on it ticks by itself.
  void Restore(Time now, const HeadRecords& records);
  void Put(HeadStep step);
  // The next effect of what was put, or is due; nothing: nothing is left to do before WakeAt.
  [[nodiscard]] std::optional<HeadEffect> Next(Time now);
  [[nodiscard]] Time WakeAt() const { return queue_.NextAt(); }
  // Why this state will never be kept, as OfferState has asked.
  [[nodiscard]] Status MayKeep(const actors::OfferState& offer) const {
    return actors_.MayKeep(offer.actor, offer.incarnation, offer.bytes);
  }

 private:
  struct Node {
    std::string peer;    // Its transport's name.
    uint64_t heard = 0;  // The last answer that it had got when it spoke.
    NodeNotice notice;
    NodeNotice warning;
    Time warning_at = Time::Never();
  };

  // ---- tasks ----
  void On(const step::Frame& came);
  void On(const step::GuestFrame& came) { join_tokens_.OnGuest(came.from, came.key, came.frame); }
  void On(const step::Tick& tick);
  void On(step::StateLoaded& loaded) { actors_.Give(loaded.process, std::move(loaded.state)); }
  void On(const step::CoordinatorSays& says);
  void On(const step::WriteAll& /*all*/) {
    collective_groups_.OnStoreLost();
    WriteAll();
  }
  void On(const step::SendToNode& send);
  void On(const step::Schedule& schedule);
  void On(const step::WakeScheduler& wake);
  void On(const step::GroupTried& /*tried*/) { placement_groups_.OnTried(); }
  void On(const step::AnswerGroup& answer) { placement_groups_.AnswerKept(answer); }
  void On(const step::AnswerWaiters& placed) { placement_groups_.AnswerPlaced(placed.group); }
  void On(const step::ActorChanged& changed);
  void On(const step::OwnerEnded& ended);
  void On(const step::StartActors& start);
  void On(const step::EndActor& end);
  void On(const step::HoldActor& hold) { actors_.Hold(hold.actor, hold.held); }
  void On(const step::DismissActor& d) { actors_.TellToLeave(d.actor, d.reason); }
  void On(step::Launch& launch) { actors_.Launch(std::move(launch)); }
  void On(const step::EndProcess& end) { actors_.End(end.process, end.reason); }
  void On(const step::WakeActors& wake) { actors_.Wake(wake.at); }
  void On(const step::OrderHeld& /*order*/) { actors_.OrderHeld(); }
  void On(const step::OrderLost& lost);
  void On(const step::NodeLost& lost);
  void On(const step::EndRecovery& end);
  void On(const step::PressDown& press) { PressDown(press.until); }
  void On(const step::SetGroupMembers& members) { collective_groups_.SetMembers(members); }
  void On(const step::DrainFromGroup& d) { collective_groups_.Drain(d.group, d.actor, d.reason); }
  void On(const step::DismissFromGroup& d) {
    collective_groups_.Dismiss(d.group, d.actors, d.reason);
  }
  void On(const step::ReadmitToGroup& readmit) { collective_groups_.Readmit(readmit.group); }
  void On(const step::DrainWorker& drain);
  void On(const step::DeathTold& death);
  void On(const step::KeepSpare& spare);
  void On(const step::OpenRun& open);
  void On(const step::EndProcessesOfRun& end) { EndProcesses(end.run); }

  // ---- what its parts may know ----
  [[nodiscard]] std::optional<std::string> OwnerLost(const std::string& owner,
                                                     Time heard) const override;
  [[nodiscard]] bool Grouped(const std::string& actor) const override;
  [[nodiscard]] std::optional<Assignment> AssignmentOf(const std::string& process) const override;
  [[nodiscard]] Time HeldUntil(const std::string& actor) const override;

  template <class T, class F>
  void OnMessage(uint8_t type, const std::string& frame, F&& handler);
  void OnNodeHello(const std::string& from, const NodeHello& hello);
  void OnWorkerHello(const std::string& from, const WorkerHello& hello);
  // `lost`: nothing is known of its end but that it is gone.
  void OnWorkerExited(const WorkerExited& exited, bool lost = false);
  void OnReport(const std::string& group, const groups::Report& report);
  void OnWorkerOutput(const std::string& from, const WorkerOutput& output);
  void OnWorkerResult(const WorkerResult& result);
  void OnWorkerNote(const WorkerNote& note);
  void OnWorkerPart(const std::string& from, const WorkerPart& part);
  void OnSubmit(const std::string& from, const SubmitRun& submit);
  void OnRunCommand(const std::string& from, const RunCommand& command);
  void OnDriverHello(const std::string& from, const DriverHello& hello);
  void OnDrainNode(const std::string& from, const RunCommand& command);
  void OnAdmit(const std::string& from, const AdmitGuest& guest);
  void OnLeave(const std::string& from, const RunCommand& command);
  // Why what the driver has is to end, if it is.
  [[nodiscard]] std::optional<std::string> DriverLost(const std::string& place, Time heard,
                                                      Duration silence) const;
  [[nodiscard]] std::optional<std::string> DriverLost(const Run& run) const;
  void EndWithoutDriver(Run& run);
  // Who asks for its events is its driver from now on, if the one it had is silent.
  void TakeUp(Run& run, const std::string& driver);
  [[nodiscard]] bool Attended(const Run& run) const;
  // Ended runs that are kept no longer.
  [[nodiscard]] std::vector<std::string> Outdated();
  [[nodiscard]] Error NoRun(const std::string& run) const;
  void OnSubscribe(const std::string& from, const Subscribe& subscribe);
  void TellLost(const std::string& from, const Subscribe& subscribe);
  void OnQuery(const std::string& from, const Query& query);
  void OnLogQuery(const std::string& from, const Query& query);
  void NoticeStop();
  void ApplyNodes(const NodeDecision& decision);
  void OnNodeEnded(const NodeChange& change);
  void Schedule(SchedulerEvent event) { queue_.Put(step::Schedule{std::move(event)}); }
  void Recover(Time until);
  void Reconcile(const NodeHello& hello, uint64_t heard);
  void TakeNotices(const NodeHello& hello, Node& node);
  void EndIfOver(const std::string& process);
  void EndMissing(const std::string& process, const std::string& how);
  void Confirm(Run& run);

  // ---- runs ----
  // Its workers are a group of actors, which gets them places, follows those who are lost by others
  // and has them leave; the run says when nobody is to join it any more.
  [[nodiscard]] Status MakeWorkers(const Run& run, uint32_t first);
  void EndWorkers(const std::string& run, const std::string& reason);
  void CloseIfOver(const Run& run);
  void CheckRoom(Run& run);
  [[nodiscard]] bool CannotGrow() const;
  [[nodiscard]] actors::ActorSpec WorkerSpec(const Run& run) const;
  // What the directory says of an actor that is a run's worker.
  void OnRunActor(const std::string& actor);
  void OnPlaced(Run& run, const std::string& actor, const actors::ActorLife& life);
  void OnWorkerGone(Run& run, RunWorker& worker, const std::string& why);
  [[nodiscard]] Run* FindRun(const std::string& run);
  // Nothing: it is no worker of a run.
  [[nodiscard]] const Run* RunOf(const std::string& actor) const;
  [[nodiscard]] Run* RunOf(const std::string& actor) {
    return const_cast<Run*>(std::as_const(*this).RunOf(actor));
  }
  void EnsureSpare(Run& run);
  void AskForSpares(const Run& run, uint32_t count);
  void OpenGroup(Run& run);
  void TellGroup(const Run& run, groups::CoordinatorEvent event);
  [[nodiscard]] bool InGroup(const Run& run, const RunWorker& worker) const;  // It has reported.
  void OnNotice(Run& run, const groups::SendCommand& send);
  void OnNotice(Run& run, const groups::FenceMember& fence);
  void NotePace(Run& run, const groups::View& next);
  void OnNotice(Run& run, const groups::EpochActivated& activated);
  void OnNotice(Run& run, const groups::EpochSettled& settled);
  void OnNotice(Run& run, const groups::GroupStalled& stalled);
  void OnNotice(Run& run, const groups::GroupUnreachable& left);
  void OnNotice(Run& run, const groups::GroupParked& parked);
  void OnNotice(Run& run, const groups::GroupFailed& failed);
  void OnNotice(Run& run, const groups::GroupEnded& ended);
  void WorkerDied(Run& run, RunWorker& worker, const std::string& how);
  void TellGone(Run& run);
  // The cause of a death is known, or will not be.
  void TellDeath(Run& run, const WorkerExited& exited, bool lost);
  void TellDeaths(Run& run, Time until);
  void CheckResult(Run& run, const RunWorker& worker);
  [[nodiscard]] bool Trains(const Run& run) const;  // Some member of it does.
  [[nodiscard]] bool MayJoin(const Run& run) const;
  [[nodiscard]] Status Resize(Run& run, uint32_t workers);
  [[nodiscard]] Status DrainByDriver(Run& run, const RunCommand& command);
  void FinishIfDone(Run& run);
  void TellResults(Run& run, const std::vector<const RunWorker*>& finished);
  void End(Run& run, RunState state, const std::string& reason, const WorkerStatus& worker = {},
           const std::string& payload = "");
  void EndProcesses(const std::string& run);
  void EmitEpoch(Run& run, Duration pause);
  void EmitSettledEpoch(Run& run);
  void EmitEpochs(Run& run);
  void EmitEpochOf(Run& run, const RunWorker& worker);  // If it is one of its members.
  void EmitInOrder(Run& run, RunEvent event);
  void EmitNoted(Run& run, groups::Epoch newest);  // Of epochs up to this one.
  void EmitWorker(Run& run, const RunWorker& worker, const WorkerStatus& status,
                  const std::string& state, const std::string& detail);
  void EmitLast(Run& run);
  void Emit(Run& run, RunEvent event, std::shared_ptr<const SpoolFile> file = nullptr);
  void EmitDropped(Run& run);
  void SendEvents(Run& run);
  void Save(const Run& run);
  void SaveSpec(const Run& run);
  void SaveResult(const Run& run, const std::string& member);
  void KeepEnd(Run& run);
  void SaveEnd(const Run& run);
  void RestoreRuns(const std::map<std::string, std::string>& records);
  void RestoreEnd(EndedRecord record);
  void RestoreWorkers();
  void EndLeftMembers();
  void DropLeftEpochs(const HeadRecords& records);
  void ForgetWhenSeen(Run& run);
  void Forget(const Run& run);
  void RefreshKeys();
  void WriteAll();
  void Measure();
  void PublishUserMetrics();
  void Kill(const std::string& process, int signal, const std::string& reason);
  void Reply(const std::string& to, uint64_t request, const Status& status,
             const std::string& json = "");
  void ReplyWhenKept(const std::string& to, uint64_t request,
                     const std::string& json = "");  // That it is done.

  [[nodiscard]] RunWorker* FindWorker(Run& run, const std::string& member);
  [[nodiscard]] std::pair<const Run*, const RunWorker*> Owner(const std::string& process) const;
  [[nodiscard]] std::pair<Run*, RunWorker*> Owner(const std::string& process);
  [[nodiscard]] WorkerStatus StatusOf(const Run& run, const RunWorker& worker) const;
  [[nodiscard]] std::map<std::string, WorkerStatus> StatusMap(const Run& run) const;
  [[nodiscard]] RunStatus StatusOf(const Run& run) const;
  [[nodiscard]] std::string StateJson();
  [[nodiscard]] std::string WhatIs(const std::string& process);
  void TakeDown();
  void PressDown(Time until);
  void Send(const std::string& to, std::string frame) {
    queue_.Put(step::Send{to, std::move(frame)});
  }
  void SendToNode(const std::string& node, std::string frame) {
    queue_.Put(step::SendToNode{node, std::move(frame)});
  }
  void Keep(const std::string& key, std::string record) {
    queue_.Put(step::Keep{key, std::move(record)});
  }
  [[nodiscard]] Time Now() const { return queue_.now(); }

  const HeadOptions options_;
  const std::string log_id_;
  const groups::Coordinators* const coordinators_;
  HeadQueue queue_;
  NodeTable nodes_;
  Scheduler scheduler_;
  std::set<std::string> offered_;  // Nodes that the scheduler has.
  Time wake_at_ = Time::Never();   // The scheduler.
  Time recover_until_{};
  std::map<std::string, Node> node_links_;
  ProcessTable processes_;
  Uploads uploads_;
  std::map<std::string, Run> runs_;
  std::map<std::string, std::string> driver_peers_;  // Driver id -> transport name.
  struct Driver {
    std::string place;
    Duration silence{};
    Time heard{};
  };
  std::map<std::string, Driver> drivers_;
  HeadActors actors_;
  PlacementGroups placement_groups_;
  CollectiveGroups collective_groups_;
  HeadActorGroups actor_groups_;
  LogRequests logs_;
  JoinTokens join_tokens_;
  Usage usage_;
  UserMetricSums user_metrics_;
  Time publish_at_{};
  bool going_down_ = false;
  Time refresh_at_{};
  Time tick_due_ = Time::Never();
};

}  // namespace troupe::daemons
