// HeadActors: the placed actors of the cluster, around the directory: where they get processes,
// who is told of them, what is kept in the store. A worker of a run is one of them; what it is to
// do and what it returns is the business of its run.
//
// Thread: the head's loop, but for the constructor.
// Owns: nothing that a call needs: while there is no head, actors go on and their callers reach
// them.
// Limits: kFollowersMax; kOwnerLease of silence ends what an owner has not detached.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/core/directory.h"
#include "daemons/head/actor_watch.h"
#include "daemons/head/core/process_table.h"
#include "daemons/head/records.h"
#include "daemons/head/state_loads.h"
#include "daemons/head/state_saves.h"
#include "daemons/protocol/actor_lease.h"
#include "daemons/protocol/messages.h"
#include "runtime/lane.h"
#include "runtime/loop_scope.h"
#include "runtime/store.h"
#include "runtime/transport.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

struct HeadActorsOptions {
  Duration owner_lease = seconds(15);   // An actor that nobody knows is gone when silent so long.
  Duration confirm_grace = seconds(5);  // After a restart, for processes to be heard,
  Duration spared = seconds(30);        // and longer while no node at all is heard.
  Duration key_ttl = seconds(24 * 3600);
  std::function<std::string()> new_id;  // For processes.
};

// Of what their actors print, sent to an owner between two of its words.
inline constexpr size_t kOwnerOutputBytes = 512 << 10;

class HeadActors {
 public:
  // What it asks of the head that it is part of.
  struct Callbacks {
    Transport* transport = nullptr;
    Lane* store_lane = nullptr;
    Store* store = nullptr;
    Records* records = nullptr;
    ProcessTable* processes = nullptr;
    // What comes of it is told by OnGranted and its like, perhaps before this returns.
    std::function<void(const SchedulerEvent& event)> schedule;
    std::function<void(const std::string& node, const StartWorker& start)> launch;
    std::function<void(const std::string& node, const std::string& process, int signal,
                       const std::string& reason)>
        kill;
    // Something has changed about the actor.
    std::function<void(const std::string& actor)> actor_changed;
    // What else the owner has is to go.
    std::function<void(const std::string& owner)> owner_gone;
    // Why an owner that was heard then, and is no actor, is given up; nothing if it is not.
    std::function<std::optional<std::string>(const std::string& owner, Time heard)> owner_lost;
    // Whether somebody acts on its death at once, so that its cause must not be waited for.
    std::function<bool(const std::string& actor)> grouped;
    // What a worker of a run is to do; nothing: it is not to do anything yet.
    std::function<std::optional<Assignment>(const std::string& process)> assignment_of_run;
    // No process is started for this actor before.
    std::function<Time(const actors::ActorSpec& actor)> hold;
  };

  HeadActors(Callbacks callbacks, HeadActorsOptions options, std::string log);
  // From the store; before anything else.
  void Restore(const std::map<std::string, std::string>& records);

  // True if the frame is of actors.
  bool OnFrame(const std::string& from, const std::string& frame);
  // Of processes.
  void OnWorkerHello(const std::string& from, const WorkerHello& hello);
  void OnWorkerResult(const WorkerResult& result);  // Not that of a run's worker.
  // `lost`: nothing is known of its end but that it is gone.
  void OnWorkerExited(const WorkerExited& exited, bool lost = false);
  void OnWorkerOutput(const WorkerOutput& output);  // Likewise.
  // A node lists a process that the table lacks.
  void Adopt(const NodeHello& hello, const RunningWorker& listed);
  // The order to start it never arrived.
  void OnOrderLost(const std::string& process);
  // All that a node runs is in the table. `heard`: the last answer of ours it had got.
  void OnNode(const NodeHello& hello, uint64_t heard);
  // `elsewhere` says which actors somebody else takes care of.
  void OnNodeDrain(const std::string& node, const std::string& reason,
                   const std::function<bool(const std::string& actor)>& elsewhere);
  // The scheduler's word on leases that begin with kActorLease.
  void OnGranted(const sched::Granted& granted);
  void OnRevoked(const sched::Revoked& revoked);
  void OnRefused(const sched::Refused& refused);
  // Some of those that wait for a place, in turn; and why they do. `never`: it will not change.
  [[nodiscard]] std::vector<std::string> TakeWaiting(size_t limit);
  void SetReason(const std::string& lease, const std::string& reason, bool never);
  // After a restart: whether it is not known yet of all that had a place whether they live; and of
  // the one that is to be in this process.
  [[nodiscard]] bool Unconfirmed();
  [[nodiscard]] bool Unconfirmed(const std::string& process) const {
    return confirm_by_ != Time::Never() && !process.empty() && processes_.Find(process) == nullptr;
  }
  void OnTick();
  // Tells the owners of processes for tasks that these leases and groups wait for room; nobody:
  // that none does.
  void TellRoomWanted(std::vector<std::string> waiting);
  void OnStopped(Duration stopped);  // The head was stopped for so long.
  // It has something that goes with it; from now on its silence matters.
  void Own(const std::string& owner) { owners_[owner] = Now(); }
  // And where it is told what its actors print.
  void OwnFrom(const std::string& owner, const std::string& peer) {
    Own(owner);
    owner_peers_[owner] = peer;
  }
  // Members of a group, or workers of a run, with room for `at_least` of them at once if that is
  // not 0. Again is no error.
  // `together`: the strategy of them all, if it is not that of each.
  [[nodiscard]] Status StartMembers(const std::vector<actors::ActorSpec>& members, size_t at_least,
                                    std::optional<PlacementStrategy> together = std::nullopt);
  void EndActor(const std::string& actor, const std::string& reason);
  // Its process lets it finish what it does, and ends then.
  void TellToLeave(const std::string& actor, const std::string& reason);
  void OwnerGone(const std::string& owner, const std::string& reason);
  void RefreshKeys();
  [[nodiscard]] const actors::PlacedActor* ActorOf(const HeadProcess& process) const {
    return directory_.Find(process.owner.actor);
  }
  [[nodiscard]] const actors::Directory& directory() const { return directory_; }

 private:
  void Do(const actors::DirectoryActions& actions);
  void Request(const std::string& actor, uint64_t incarnation);
  void Launch(const std::string& process, const StartWorker& start);
  void Assign(const std::string& process);
  void Give(const std::string& process, std::string saved);
  void Keep(const std::string& actor, bool spec);
  void End(const std::string& process, const std::string& reason);
  void Gone(const std::string& process, const std::string& how);
  // Whether the process hosts the life that its actor has now.
  [[nodiscard]] bool Lives(const std::string& name, const HeadProcess& process) const;
  static void TakeCounts(HeadProcess& process, const WorkerCounts& counts);
  void OnLoan(HeadProcess& process, const WorkerLoan& loan);
  void TellEnded(const WorkerExited& exited);
  [[nodiscard]] bool AwaitsCause(HeadProcess& process);
  void TellUnexplained();
  [[nodiscard]] std::string Named(const std::string& id, const std::string& node) const;
  [[nodiscard]] actors::ActorLocation Where(const std::string& followed) const;
  void TellProcess(const std::string& process);
  void Confirm(const NodeHello* hello, uint64_t heard);
  void Claim(const actors::PlacedActor& actor, const HeadProcess& process);
  void OnCreate(const std::string& from, const actors::CreateActor& create);
  void OnRequest(const std::string& from, const actors::ActorRequest& request);
  void OnOffer(const std::string& from, const actors::OfferState& offer);
  void OnSave(const std::string& from, actors::SaveActor save);
  // Why this state will never be kept.
  [[nodiscard]] Status MayKeep(const std::string& actor, uint64_t incarnation, size_t bytes) const;
  void OnFollow(const std::string& from, const actors::FollowActors& follow);
  void AnswerWhenKept(const std::string& to, actors::ActorAnswer answer);
  void TellOutput(const std::string& owner, actors::ActorOutput output);
  [[nodiscard]] Time Now() { return callbacks_.transport->loop().Now(); }

  const Callbacks callbacks_;
  const HeadActorsOptions options_;
  ProcessTable& processes_;
  actors::Directory directory_;
  ActorWatch watch_;
  std::set<std::string> survivors_;                 // Nodes that knew the head before.
  std::map<std::string, Time> ended_;               // Processes, for kDeadKept.
  std::set<std::string> waiting_;                   // Leases.
  std::set<std::string> told_room_;                 // Peers that are to hear when nobody waits.
  std::string last_waiting_;                        // Up to which TakeWaiting has come.
  std::map<std::string, Time> owners_;              // When they were heard last.
  std::map<std::string, std::string> owner_peers_;  // Where they are told what their actors print.
  struct OwnerOutput {
    size_t bytes = 0;  // Sent since the owner was heard.
    uint64_t dropped = 0;
  };
  std::map<std::string, OwnerOutput> outputs_;  // By owner.
  StateSaves saves_;
  StateLoads loads_;
  std::map<std::string, std::pair<uint64_t, uint64_t>> saved_;  // Incarnation and version.
  Time confirm_by_ = Time::Never();
  bool asked_longer_ = false;                       // One more hello than there was time for.
  bool node_heard_ = false;                         // One at least.
  LoopScope scope_{&callbacks_.transport->loop()};  // Last.
};

}  // namespace troupe::daemons
