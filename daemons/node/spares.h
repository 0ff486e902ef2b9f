// Spares: processes that a node has started ahead of their work, which then only lack what is their
// own: a name, a slot, devices. SparePolicy says which and when.
//
// Thread: the transport's loop, but for the constructor.
// Owns: the processes that nobody has taken; the destructor ends them.
// Limits: those of SparePolicy.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "daemons/node/core/spare_policy.h"
#include "daemons/node/guarded_process.h"
#include "runtime/event_loop.h"
#include "runtime/loop_scope.h"

namespace troupe::daemons {

class Spares {
 public:
  // troupe-guard is looked for in `bin_dir`, and on PATH, when a process is started.
  Spares(EventLoop* loop, std::string bin_dir, SpareLimits limits);
  Spares(const Spares&) = delete;
  Spares& operator=(const Spares&) = delete;

  // A spare of the kind, which goes to work with these variables; nothing if there is none.
  [[nodiscard]] std::optional<GuardedProcess> Take(
      const SpareKind& kind, const std::map<std::string, std::string>& variables, bool more_ahead);
  void Keep(const SpareKind& kind, size_t count);
  // Begins and ends some; again and again.
  void Tick();
  [[nodiscard]] std::set<int> guard_pids() const;
  [[nodiscard]] size_t size() const { return spares_.size(); }
  void GiveUp();  // Those there are end.
  [[nodiscard]] bool ending() const { return !ending_.empty(); }
  // Those there are end, and no more are started.
  void EndAll();

 private:
  void Start(SparePolicy::Id id, const SpareKind& kind);
  void OnExit(SparePolicy::Id id);
  void TickAt(Time when);

  EventLoop* const loop_;
  const std::string bin_dir_;
  SparePolicy policy_;
  std::map<SparePolicy::Id, GuardedProcess> spares_;  // Those that end among them.
  std::set<SparePolicy::Id> ending_;
  Time next_tick_ = Time::Never();
  bool ended_ = false;
  LoopScope scope_{loop_};  // Last.
};

}  // namespace troupe::daemons
