// HeadActors: the placed actors of the cluster, around the directory: where they get processes,
// who is told of them, what is kept in the store. A worker of a run is one of them; what it is to
// do and what it returns is the business of its run.
//
// Thread: the head's loop.
// Owns: nothing that a call needs: while there is no head, actors go on and their callers reach
// them.
// Limits: kFollowersMax; kOwnerLease of silence ends what an owner has not detached.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/core/actor_holders.h"
#include "actors/core/directory.h"
#include "daemons/head/core/actor_watch.h"
#include "daemons/head/core/head_queue.h"
#include "daemons/head/core/process_table.h"
#include "daemons/protocol/actor_lease.h"
#include "daemons/protocol/messages.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

struct HeadActorsOptions {
  Duration owner_lease = seconds(15);   // An actor that nobody knows is gone when silent so long.
  Duration confirm_grace = seconds(5);  // After a restart, for processes to be heard,
  Duration spared = seconds(30);        // and longer while no node at all is heard.
  std::function<std::string()> new_id;  // For processes.
};

// What the rest of the head knows of actors and their owners.
class HeadKnowledge {
 public:
  virtual ~HeadKnowledge() = default;
  // Why an owner that was heard then, and is no actor, is given up; nothing if it is not.
  [[nodiscard]] virtual std::optional<std::string> OwnerLost(const std::string& owner,
                                                             Time heard) const = 0;
  // Whether somebody acts on its death at once, so that its cause must not be waited for.
  [[nodiscard]] virtual bool Grouped(const std::string& actor) const = 0;
  // What a worker of a run is to do; nothing: it is not to do anything yet.
  [[nodiscard]] virtual std::optional<Assignment> AssignmentOf(
      const std::string& process) const = 0;
  // No process is started for this actor before.
  [[nodiscard]] virtual Time HeldUntil(const std::string& actor) const = 0;
};

// Of what their actors print, sent to an owner between two of its words.
inline constexpr size_t kOwnerOutputBytes = 512 << 10;

class HeadActors {
 public:
  HeadActors(HeadQueue* queue, ProcessTable* processes, const HeadKnowledge* head,
             HeadActorsOptions options, std::string log);
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
  // The actors with a process on the node that may live on elsewhere.
  [[nodiscard]] std::vector<std::string> On(const std::string& node) const;
  // `elsewhere`: those that somebody else takes care of.
  void OnNodeDrain(const std::string& node, const std::string& reason,
                   const std::set<std::string>& elsewhere);
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
  // As the directory has them, of a worker of a run.
  void Proven(const std::string& actor) { directory_.Proven(actor); }
  void Forgive(const std::string& actor, uint64_t incarnation);
  void Hold(const std::string& actor, bool held);
  void Wake(Time at);
  void OrderHeld();
  void Launch(step::Launch launch);
  void End(const std::string& process, const std::string& reason);
  // What was saved, for the next life of its actor; empty: nothing was.
  void Give(const std::string& process, std::string saved);
  // Why this state will never be kept.
  [[nodiscard]] Status MayKeep(const std::string& actor, uint64_t incarnation, size_t bytes) const;
  // Its process lets it finish what it does, and ends then. `unheld`: unless it knows better.
  void TellToLeave(const std::string& actor, const std::string& reason, bool unheld = false);
  void OwnerGone(const std::string& owner, const std::string& reason);
  void RefreshKeys();
  [[nodiscard]] const actors::PlacedActor* ActorOf(const HeadProcess& process) const {
    return directory_.Find(process.owner.actor);
  }
  [[nodiscard]] const actors::Directory& directory() const { return directory_; }

 private:
  void Do(const actors::DirectoryActions& actions);
  void WakeLater();
  void Request(const std::string& actor, uint64_t incarnation);
  void Assign(const std::string& process);
  void Keep(const std::string& actor, bool spec);
  void Gone(const std::string& process, const std::string& how);
  void Order(const step::Launch& launch);
  // Whether a process is to end before this one may begin, and has not.
  [[nodiscard]] bool EndsBefore(const HeadProcess& process) const;
  // Whether the process hosts the life that its actor has now.
  [[nodiscard]] bool Lives(const std::string& name, const HeadProcess& process) const;
  void TakeCounts(HeadProcess& process, const WorkerCounts& counts);
  void OnLoan(HeadProcess& process, const WorkerLoan& loan);
  void TellEnded(const WorkerExited& exited);
  [[nodiscard]] bool AwaitsCause(HeadProcess& process);
  void TellUnexplained();
  [[nodiscard]] std::string Named(const std::string& id, const std::string& node) const;
  [[nodiscard]] actors::ActorLocation Where(const std::string& followed) const;
  void TellProcess(const std::string& process);
  void Confirm(const NodeHello* hello, uint64_t heard);
  void Claim(const Result<sched::LeaseRequest>& lease, const HeadProcess& process);
  // The process that has this lease; empty: none.
  [[nodiscard]] std::string ProcessOf(const std::string& actor, uint64_t incarnation) const;
  void TakeRoom(const std::string& process);
  void OnCreate(const std::string& from, const actors::CreateActor& create);
  void OnRequest(const std::string& from, const actors::ActorRequest& request);
  void OnOffer(const std::string& from, const actors::OfferState& offer);
  void OnSave(const std::string& from, actors::SaveActor save);
  void OnFollow(const std::string& from, const actors::FollowActors& follow);
  // ---- handles that are counted: head_handles.cpp ----
  void RestoreHandles();
  void MadeBy(const std::string& from, const actors::ActorSpec& spec, bool repeated);
  void OnHold(const std::string& from, const actors::HoldActors& hold);
  void HandlesGone(const std::string& process, const ProcessOwner& owner);
  void ReadyAgain(const std::string& process, const std::string& actor);
  void ForgetHandles(const std::string& actor);
  void TickHandles();
  void EndUnheld();
  void AnswerWhenKept(const std::string& to, const actors::ActorAnswer& answer);
  void TellOutput(const std::string& owner, actors::ActorOutput output);
  void Send(const std::string& to, std::string frame) {
    queue_->Put(step::Send{to, std::move(frame)});
  }
  void Schedule(SchedulerEvent event) { queue_->Put(step::Schedule{std::move(event)}); }
  [[nodiscard]] Time Now() const { return queue_->now(); }

  HeadQueue* const queue_;
  ProcessTable& processes_;
  const HeadKnowledge* const head_;
  const HeadActorsOptions options_;
  const std::string log_;  // The head's id.
  actors::Directory directory_;
  actors::ActorHolders holders_;
  ActorWatch watch_;
  std::set<std::string> survivors_;    // Nodes that knew the head before.
  std::map<std::string, Time> ended_;  // Processes, for kDeadKept.
  std::set<std::string> waiting_;      // Leases.
  struct Held {
    step::Launch launch;
    Time until{};
  };
  std::map<std::string, Held> held_;    // Processes that something is to be over before.
  std::set<std::string> told_room_;     // Peers that are to hear when nobody waits.
  std::string last_waiting_;            // Up to which TakeWaiting has come.
  std::map<std::string, Time> owners_;  // When they were heard last.
  std::map<std::string, std::string> owner_peers_;  // Where they are told what their actors print.
  struct OwnerOutput {
    size_t bytes = 0;  // Sent since the owner was heard.
    uint64_t dropped = 0;
  };
  std::map<std::string, OwnerOutput> outputs_;                  // By owner.
  std::map<std::string, std::pair<uint64_t, uint64_t>> saved_;  // Incarnation and version.
  Time wake_at_ = Time::Never();                                // The directory.
  Time confirm_by_ = Time::Never();
  bool asked_longer_ = false;  // One more hello than there was time for.
  bool node_heard_ = false;    // One at least.
};

}  // namespace troupe::daemons
