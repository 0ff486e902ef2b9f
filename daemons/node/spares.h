// Spares: processes that a node has prepared ahead of their work, which then only lack what is
// their own: a name, a slot, devices. They are forks of a server of their kind, where that may be
// forked. SparePolicy says which and when.
//
// Thread: the transport's loop, but for the constructor.
// Owns: the processes that nobody has taken, and the servers; the destructor ends them.
// Limits: those of SparePolicy; kForkServersMax.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "daemons/node/core/spare_policy.h"
#include "daemons/node/fork_server.h"
#include "daemons/node/guarded_process.h"
#include "runtime/event_loop.h"
#include "runtime/loop_scope.h"

namespace troupe::daemons {

inline constexpr size_t kForkServersMax = 4;
// From its last use, of a server that actors have not used: runs that are over need none, and it
// may hold much.
inline constexpr Duration kRunServerKept = seconds(10);
// A module that never comes back from its import must not keep all actors of its kind waiting.
inline constexpr Duration kServerReadyLimit = seconds(30);

class Spares {
 public:
  // troupe-guard is looked for in `bin_dir`, and on PATH, when a process is started.
  Spares(EventLoop* loop, std::string bin_dir, SpareLimits limits);
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;

  // A process of the kind, which goes to work with these variables: a spare, or a new fork; nothing
  // if it is to be started by itself.
  [[nodiscard]] std::optional<GuardedProcess> Take(
      const SpareKind& kind, const std::map<std::string, std::string>& variables, bool more_ahead);
  void Keep(const SpareKind& kind, size_t count);
  // Begins and ends some; again and again.
  void Tick();
  // Of the spares, and the servers.
  [[nodiscard]] std::set<int> pids() const;
  // Whether some are to be forked yet: they are children of this process that nobody knows.
  [[nodiscard]] bool forming() const;
  [[nodiscard]] size_t size() const { return spares_.size(); }
  void GiveUp();  // Those there are end.
  [[nodiscard]] bool ending() const { return !ending_.empty(); }
  // Those there are end, and no more are started.
  void EndAll();

 private:
  struct Server {
    ForkServer process;
    Time begun{};
    Time used{};
    Duration kept = kRunServerKept;  // Since then.
    bool ready = false;
    bool given_up = false;
  };

  using Servers = std::map<SpareKind, Server>;

  void Start(SparePolicy::Id id, const SpareKind& kind);
  [[nodiscard]] Result<GuardedProcess> Make(const SpareKind& kind);
  [[nodiscard]] Result<GuardedProcess> Fork(const SpareKind& kind, const std::string& guard);
  // That of the kind, started if there is none.
  [[nodiscard]] Result<Server*> ServerOf(const SpareKind& kind);
  void MakeRoomForServer();
  // By value: what they were called by may end meanwhile.
  void OnServerReady(SpareKind kind);
  void OnServerExit(SpareKind kind);
  void EndServer(Servers::value_type& entry);
  void TickServers();
  void Watch(SparePolicy::Id id);
  void OnExit(SparePolicy::Id id);
  void TickAt(Time when);

  EventLoop* const loop_;
  const std::string bin_dir_;
  const SpareLimits limits_;
  SparePolicy policy_;
  Servers servers_;
  std::map<SparePolicy::Id, GuardedProcess> spares_;  // Those that end among them.
  std::set<SparePolicy::Id> ending_;
  Time next_tick_ = Time::Never();
  bool ended_ = false;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
