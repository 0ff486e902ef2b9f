// ActorSystem: the actors of one process, and its calls to those of others.
//
// One transport carries both. Actors that are placed by the cluster are followed through an
// ActorDirectoryClient: while one restarts, calls to it wait. Others live and die with their
// process. Every process has a host actor, through which others can start actors in it.
// Thread: any; callbacks come on the transport's loop or an actor's thread.
// Owns: its transport, the threads of its actors, its actors.
// Invariants: those of CallWindow, Mailbox and ActorCell.
// Limits: kLocalActorsMax; ended actors' reasons are kept for the last kEndedKept.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "actors/core/directory_client.h"
#include "actors/core/waiting_notes.h"
#include "actors/host/actor_cell.h"
#include "actors/host/actor_ref.h"
#include "actors/host/cpu_loan.h"
#include "actors/host/type_table.h"
#include "runtime/brief_mutex.h"
#include "runtime/executor.h"
#include "runtime/transport.h"

namespace troupe::actors {

inline constexpr size_t kLocalActorsMax = 1'000'000;
inline constexpr size_t kEndedKept = 10'000;
inline constexpr size_t kGroupsWatchedMax = 100;

class LaterCall;
class RemoteActor;
class TaskPool;
struct LeaveActor;

class ActorSystem final : public std::enable_shared_from_this<ActorSystem>, private CellHost {
 public:
  struct Options {
    std::string node;  // For error messages.
    int actor_threads = 1;
    // Whether a thread of actors that has nothing to do runs the transport's loop. For processes
    // that are there for their actors; elsewhere it would be in the way of threads that wait.
    bool actors_run_loop = true;
    TypeTable types;  // What can be started in this process.
    Program program;  // How more processes like this one are started,
    // and, before its path, one that loads a plugin.
    std::vector<std::string> plugin_host = {kPluginHost, kPluginFlag};
    std::shared_ptr<ActorDirectoryClient> directory_client;  // Null: no placed actors.
    std::shared_ptr<CpuLoan> loan = nullptr;  // Null: this process has no CPU to lend.
    // Told, on the loop, what has waited for room for kTellAfter, in a line; null: nobody.
    std::function<void(const std::string& line)> on_waiting = nullptr;
  };

  static std::shared_ptr<ActorSystem> Create(std::unique_ptr<Transport> transport, Options options);
  ~ActorSystem() override;
  // So that other processes can call actors of this one.
  [[nodiscard]] Status Listen(const std::string& endpoint);
  // Ends all actors, fails all calls with kCancelled, stops the transport. Idempotent.
  void Stop(Duration limit);

  // Makes the actor of a blueprint on an actor thread and takes calls for it. An empty id: a new
  // one of this process. `saved`: what an incarnation before had saved.
  [[nodiscard]] Result<ActorAddress> Host(const ActorBlueprint& blueprint, std::string id = "",
                                          uint64_t incarnation = 0, const std::string& saved = "");
  // The same with an instance that is there already.
  [[nodiscard]] Result<ActorAddress> HostInstance(std::unique_ptr<Instance> instance,
                                                  const ActorBlueprint& blueprint, std::string id,
                                                  uint64_t incarnation, const std::string& saved);
  // Ends an actor of this process. kNotFound if there is none.
  Status End(const std::string& actor, const Error& reason);
  // One that is placed in this process ends when it has done what it was called for.
  void Leave(const LeaveActor& leave);
  // Whether nobody refers to the actor of this process, if LeaveActor says so. See RefTable.
  using MayLeave = std::function<bool(uint64_t heard)>;
  void SetMayLeave(MayLeave may_leave);
  // Whether the actor is in this process; why not.
  [[nodiscard]] Status Has(const std::string& actor) const;
  // What handles refer to; the same for the same actor as long as somebody holds it.
  [[nodiscard]] std::shared_ptr<ActorRef> Refer(const ActorAddress& address);
  // The host actor of a process: methods "spawn"(ActorBlueprint) and "end"(id, reason).
  [[nodiscard]] static ActorAddress HostOf(const PeerAddress& process);

  // The ActorDirectoryClient's word: whom it knows of waits for room, or nobody.
  void SetRoomWanted(const std::vector<std::string>& waiting);
  // The ActorDirectoryClient's word.
  void SetWhereabouts(const ActorLocation& whereabouts);
  // Waits on a plain thread, which runs the transport's loop meanwhile if it may.
  void AwaitHelping(FiberEvent& event, Time until) { (void)transport_->AwaitHelping(event, until); }
  // Runs it on the transport's loop.
  void Post(std::function<void()> fn) { transport_->loop().Post(std::move(fn)); }
  void PostAfter(Duration delay, std::function<void()> fn);
  [[nodiscard]] const PeerAddress& self() const { return self_; }
  [[nodiscard]] size_t actors() const;
  [[nodiscard]] ActorDirectoryClient* directory_client() const {
    return options_.directory_client.get();
  }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] TaskPool& tasks();
  // A placement group of this process that has no place yet; the first kGroupsWatchedMax are told
  // to on_waiting.
  void WatchGroup(const std::string& group);

 private:
  friend class LaterCall;
  friend class RemoteActor;
  friend class LocalActor;
  friend class TaskPool;
  struct LocalMonitor {
    uint64_t id = 0;
    ActorRef::OnDown down;
  };

  // A call to an actor of this process.
  struct LocalCall {
    Time deadline;
    CallDone done;
    std::function<std::string()> why_late;  // Null: the actor has not answered.
    std::atomic<bool> finished{false};
    void Finish(Result<std::string> result) {
      if (!finished.exchange(true)) std::exchange(done, nullptr)(std::move(result));
    }
  };

  ActorSystem(std::unique_ptr<Transport> transport, Options options);
  // CellHost.
  void SendTo(const std::string& to, const ActorReply& reply) override;
  void SendTo(const std::string& to, const ActorMissing& missing) override;
  void SendTo(const std::string& to, const ActorFull& full) override;
  void SendTo(const std::string& to, const ActorRoom& room) override;
  void Save(const ActorAddress& actor, std::string state,
            std::function<void(Status)> done) override;
  void Exited(const ActorAddress& actor, const Error& reason) override;
  void Failed(const ActorAddress& actor, const Error& reason) override;
  Status Spawn(size_t thread, std::function<void()> fn) override;
  [[nodiscard]] const std::string& node() const override { return options_.node; }
  [[nodiscard]] CpuLoan* loan() const override { return options_.loan.get(); }

  void OnFrame(const std::string& from, const std::string& frame);
  template <class T, class F>
  void On(uint8_t type, const std::string& frame, F&& handler);
  void Unknown(const std::string& from, const std::string& actor,
               const std::vector<uint64_t>& numbers);
  void OnWatch(const std::string& from, const ActorWatch& watch);
  void Sweep();
  void Clean();
  void TellWaiting();
  void AskOfGroups();
  [[nodiscard]] Status Reach(const PeerAddress& process);
  void Activate(std::shared_ptr<RemoteActor> actor);
  void Expect(std::shared_ptr<LocalCall> call);
  void StartSweeping();
  void Forget(const std::string& actor, const std::string& followed);
  [[nodiscard]] std::shared_ptr<ActorCell> Find(const std::string& actor) const;
  [[nodiscard]] std::shared_ptr<RemoteActor> FindRemote(const std::string& actor) const;
  [[nodiscard]] Error ReasonOf(const std::string& actor) const;  // With mu_ held.

  const Options options_;
  std::unique_ptr<Transport> transport_;
  PeerAddress self_;
  std::unique_ptr<Executor> executor_;
  std::atomic<bool> stopped_{false};
  std::atomic<size_t> later_calls_{0};

  mutable BriefMutex mu_;
  std::unordered_map<std::string, std::shared_ptr<ActorCell>> cells_;
  std::unordered_map<std::string, std::vector<LocalMonitor>> monitors_;
  std::unordered_map<std::string, std::weak_ptr<RemoteActor>> remotes_;
  std::vector<std::shared_ptr<RemoteActor>> active_;  // With calls that are open.
  std::vector<std::shared_ptr<LocalCall>> local_calls_;
  std::map<std::string, PeerAddress> reached_;
  std::map<std::string, Error> ended_;
  std::deque<std::string> ended_order_;
  std::vector<std::shared_ptr<ActorCell>> ending_;  // Until nothing runs in them.
  std::unique_ptr<TaskPool> tasks_;
  MayLeave may_leave_;                         // Null: it need not be asked.
  std::map<std::string, std::string> groups_;  // That have no place, and why; empty: not known.
  WaitingNotes notes_;                         // Of the loop.
  bool sweeping_ = false;
  uint64_t next_actor_ = 1;
  uint64_t next_monitor_ = 1;
};

}  // namespace troupe::actors
