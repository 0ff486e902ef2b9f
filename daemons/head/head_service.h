// HeadService: places workers on nodes, owns jobs and their groups, answers drivers.
//
// It composes the scheduler's cores (node table, placement) with the group service; that
// composition is the head's own business, since neither folder may know the other.
// Thread: the transport's loop, but for the constructor and destructor.
// Owns: nothing that training needs: it can be killed and started again, and finds jobs and groups
// in the store.
// Limits: those of EventLog per job; timings below.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "collective_groups/membership/group_service.h"
#include "daemons/head/collective_groups.h"
#include "daemons/head/core/process_table.h"
#include "daemons/head/head_actor_groups.h"
#include "daemons/head/head_actors.h"
#include "daemons/head/job.h"
#include "daemons/head/log_requests.h"
#include "daemons/head/placement_groups.h"
#include "daemons/head/records.h"
#include "daemons/head/usage.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/process.h"
#include "runtime/store.h"
#include "runtime/transport.h"
#include "scheduler/node_table.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

inline constexpr Duration kWorkerStartLimit = seconds(60);  // From start to hello.

struct HeadOptions {
  bool embedded = false;  // Only this machine: what does not fit now never will.
  // From so much silence of its driver on another one may take a run. What a driver has that has
  // never said how long it may be silent ends then.
  Duration driver_lease = seconds(15);
  // How long a detached run can be asked for after its end, if no newer ones need the room.
  Duration detached_kept = seconds(24 * 3600);
  Duration confirm_grace = seconds(5);  // After a restart, for workers to be heard.
  Duration node_suspect = seconds(2);
  Duration node_dead = seconds(6);
  // While nobody at all is heard it may be the head that is cut off, and nobody is given up.
  [[nodiscard]] Duration spared() const { return 5 * node_dead; }
  // How long the store keeps what a head that is gone has left; a running one refreshes it.
  Duration key_ttl = seconds(24 * 3600);
  std::function<std::string()> new_id = RandomId;  // Hexadecimal digits, 16 at least.
};

class HeadService {
 public:
  HeadService(Transport* transport, Lane* store_lane, Store* store, HeadOptions options);
  // Whether the cluster was taken down, so that nothing is to start this head again.
  [[nodiscard]] bool down() const { return down_.load(); }
  // Whether that has begun: whoever ends the head now ends the cluster, too.
  [[nodiscard]] bool going_down() const { return going_down_.load(); }
  // Loads jobs from the store and begins to serve. Blocks up to the store's time-outs.
  Status Start();

 private:
  struct Node {
    std::string peer;    // Its transport's name.
    uint64_t heard = 0;  // The last answer that it had got when it spoke.
  };

  void OnFrame(const std::string& from, const std::string& frame);
  template <class T, class F>
  void On(uint8_t type, const std::string& frame, F&& handler);
  void OnNodeHello(const std::string& from, const NodeHello& hello);
  void OnWorkerHello(const std::string& from, const WorkerHello& hello);
  // `lost`: nothing is known of its end but that it is gone.
  void OnWorkerExited(const WorkerExited& exited, bool lost = false);
  void OnReport(const std::string& group, const groups::Report& report);
  void OnWorkerOutput(const std::string& from, const WorkerOutput& output);
  void OnWorkerResult(const WorkerResult& result);
  void OnWorkerNote(const WorkerNote& note);
  void OnWorkerPart(const std::string& from, const WorkerPart& part);
  void OnSubmit(const std::string& from, const SubmitJob& submit);
  void OnJobCommand(const std::string& from, const JobCommand& command);
  void OnDriverHello(const std::string& from, const DriverHello& hello);
  void OnDrainNode(const std::string& from, const JobCommand& command);
  void OnLeave(const std::string& from, const JobCommand& command);
  // Why what the driver has is to end, if it is.
  [[nodiscard]] std::optional<std::string> DriverLost(const std::string& place, Time heard,
                                                      Duration silence);
  [[nodiscard]] std::optional<std::string> DriverLost(const Job& job);
  [[nodiscard]] std::optional<std::string> OwnerLost(const std::string& owner, Time heard);
  void EndWithoutDriver(Job& job);
  // Who asks for its events is its driver from now on, if the one it had is silent.
  void TakeUp(Job& job, const std::string& driver);
  [[nodiscard]] bool Attended(const Job& job) const;
  // Ended runs that are kept no longer.
  [[nodiscard]] std::vector<std::string> Outdated();
  [[nodiscard]] Error NoRun(const std::string& job) const;
  void OnSubscribe(const std::string& from, const Subscribe& subscribe);
  void TellLost(const std::string& from, const Subscribe& subscribe);
  void OnQuery(const std::string& from, const Query& query);
  void OnLogQuery(const std::string& from, const Query& query);
  [[nodiscard]] Status Reachable(const std::string& node) const;
  void OnTick();
  void NoticeStop();
  void ApplyNodes(const NodeDecision& decision);
  void OnNodeEnded(const NodeChange& change);
  // Tells the scheduler, and those concerned what it has decided.
  void Schedule(const SchedulerEvent& event);
  void ScheduleWake();
  void Recover(Time until);
  void EndRecovery();
  void Reconcile(const NodeHello& hello, uint64_t heard);
  void EndIfOver(const std::string& process);
  void EndMissing(const std::string& process, const std::string& how);
  bool Confirm(Job& job);

  // ---- jobs ----
  void Fill(Job& job);
  void AskForRoom(Job& job, uint32_t count, bool gang);
  void GiveUpRoom(Job& job, size_t count);
  void CheckRoom(Job& job);
  [[nodiscard]] bool CannotGrow() const;
  [[nodiscard]] static actors::ActorSpec SpecOf(const Job& job, const JobWorker& worker);
  // What the directory says of an actor that is a run's worker.
  void OnRunActor(const std::string& actor);
  void OnPlaced(Job& job, JobWorker worker, const actors::ActorLife& life);
  void OnWorkerGone(Job& job, JobWorker& worker, const std::string& why);
  [[nodiscard]] Job* JobOf(const std::string& actor);  // Nothing: it is no worker of a run.
  [[nodiscard]] std::optional<Assignment> AssignmentOf(const std::string& process);
  void EnsureSpare(Job& job);
  void AskForSpares(const Job& job, uint32_t count);
  void OpenGroup(Job& job);
  void WorkerDied(Job& job, JobWorker& worker, const std::string& how);
  void TellGone(Job& job);
  // The cause of a death is known, or will not be.
  void TellDeath(Job& job, const WorkerExited& exited, bool lost);
  void TellDeaths(Job& job, Time until);
  void BackOff(Job& job, const JobWorker& worker);
  void CheckResult(Job& job, const JobWorker& worker);
  [[nodiscard]] bool Trains(const Job& job) const;  // Some member of it does.
  [[nodiscard]] bool MayJoin(const Job& job) const;
  // After `limit` it is ended; zero: never.
  void DrainWorker(Job& job, JobWorker& worker, const std::string& reason,
                   Duration limit = Duration::zero());
  void PressDrain(Job& job, JobWorker& worker);
  void Shrink(Job& job);
  void FinishIfDone(Job& job);
  void TellResults(Job& job, const std::vector<const JobWorker*>& finished);
  void End(Job& job, JobState state, const std::string& reason, const WorkerStatus& worker = {},
           const std::string& payload = "");
  void EndProcesses(const std::string& run);
  void EmitEpoch(Job& job, Duration pause);
  void EmitSettledEpoch(Job& job);
  void EmitEpochs(Job& job);
  void EmitEpochOf(Job& job, const JobWorker& worker);  // If it is one of its members.
  void EmitInOrder(Job& job, JobEvent event);
  void EmitNoted(Job& job, groups::Epoch newest);  // Of epochs up to this one.
  void EmitWorker(Job& job, const JobWorker& worker, const WorkerStatus& status,
                  const std::string& state, const std::string& detail);
  void EmitLast(Job& job);
  void Emit(Job& job, JobEvent event, std::shared_ptr<const SpoolFile> file = nullptr);
  void EmitDropped(Job& job);
  void SendEvents(Job& job);
  void Save(const Job& job);
  void SaveSpec(const Job& job);
  void SaveResult(const Job& job, const std::string& member);
  void KeepEnd(Job& job);
  void SaveEnd(const Job& job);
  void RestoreJobs(const std::map<std::string, std::string>& records);
  void RestoreEnd(EndedRecord record);
  void EndStrays();
  void ForgetWhenSeen(Job& job);
  void Forget(const Job& job);
  void RefreshKeys();
  void WriteAll();
  void Measure() const;
  void Kill(const std::string& process, int signal, const std::string& reason);
  void Reply(const std::string& to, uint64_t request, const Status& status,
             const std::string& json = "");
  void ReplyWhenKept(const std::string& to, uint64_t request);  // That it is done.

  [[nodiscard]] JobWorker* FindWorker(Job& job, const std::string& member);
  [[nodiscard]] std::pair<Job*, JobWorker*> Owner(const std::string& process);
  [[nodiscard]] WorkerStatus StatusOf(const Job& job, const JobWorker& worker) const;
  [[nodiscard]] std::map<std::string, WorkerStatus> StatusMap(const Job& job) const;
  [[nodiscard]] JobStatus StatusOf(const Job& job) const;
  [[nodiscard]] std::string StateJson();
  [[nodiscard]] std::string WhatIs(const std::string& process);
  void TakeDown();
  void PressDown(Time until);
  [[nodiscard]] Time Now() { return transport_->loop().Now(); }

  Transport* const transport_;
  Lane* const store_lane_;
  Store* const store_;
  const HeadOptions options_;
  const std::string log_id_;
  NodeTable nodes_;
  Scheduler scheduler_;
  std::set<std::string> offered_;  // Nodes that the scheduler has.
  std::deque<SchedulerEvent> to_schedule_;
  bool scheduling_ = false;
  Time wake_at_ = Time::Never();
  Time recover_until_{};
  std::map<std::string, Node> node_links_;
  ProcessTable processes_;
  Uploads uploads_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, std::string> driver_peers_;  // Driver id -> transport name.
  struct Driver {
    std::string place;
    Duration silence{};
    Time heard{};
  };
  std::map<std::string, Driver> drivers_;
  groups::GroupService groups_;
  Records records_;
  HeadActors actors_;
  PlacementGroups placement_groups_;
  CollectiveGroups collective_groups_;
  HeadActorGroups actor_groups_;
  std::atomic<bool> going_down_{false};
  LogRequests logs_;
  Usage usage_;
  std::atomic<bool> down_{false};
  Time refresh_at_{};
  Time tick_due_ = Time::Never();
  LoopScope scope_{&transport_->loop()};  // Last.
};

}  // namespace troupe::daemons
