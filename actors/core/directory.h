// Directory: all placed actors of the cluster, their names, owners and lives, as a pure state
// machine.
//
//   Create --> pending --Placed--> starting --Ready--> alive
//                 ^                   |                  |
//                 |  back-off over    +------ death -----+
//                 +-- restarting <--- restarts left? ----+--- none left, killed, exited --> dead
//
// An incarnation is one life of an actor in one process. Whoever learns that one is over says so
// with its number, so late and repeated news are harmless.
// Thread: one. Reads no clock.
// Invariants: DR-1 incarnations of an actor only grow, and at most one of them is placed. DR-2 no
// two living actors that somebody refers to have one name. DR-3 dead is for ever. DR-4 no more than
// max_restarts deaths are followed by another life; a drain is no death. DR-5 an actor whose owner
// is gone is dead, unless it is detached; so is what it owns. What a task makes belongs to the
// owner of the task's process, which may end at any time. DR-6 asking twice for the same is asking
// once. DR-7 of two linked actors both live or both are dead. DR-8 an actor that nobody refers to
// is not started again, and its name is free.
// Limits: kActorsMax; kLinksMax of one actor; the dead are forgotten after kDeadKept.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "actors/core/directory_actions.h"
#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::actors {

inline constexpr size_t kActorsMax = 1'000'000;
inline constexpr size_t kLinksMax = 1'000;
inline constexpr const char* kActorOwner = "actor/";  // What owners that are actors begin with.
inline constexpr Duration kDeadKept = seconds(300);
inline constexpr Duration kLeaveRepeat = seconds(2);
inline constexpr Duration kProvenLife = seconds(60);  // Lived so long: the back-off begins anew.

// What is durable of an actor, beside its spec.
struct ActorLife {
  ActorState state = ActorState::kPending;
  uint64_t incarnation = 1;
  std::string node;
  std::string process;
  int32_t restarts = 0;   // Deaths that counted.
  uint32_t failures = 0;  // In a row, for the back-off.
  PeerAddress address;
  ErrorChain reason;
  std::string restart;             // The last request for one that was done.
  std::vector<std::string> links;  // Actors that end with it, and it with them.
  template <class A>
  void Fields(A& a) {
    a(state, incarnation, node, process, restarts, failures, address, reason, restart, links);
  }
};

struct PlacedActor {
  ActorSpec spec;
  std::shared_ptr<const Program> program;  // spec.program is empty: it is shared.
  ActorLife life;
  Time since{};               // In this state.
  Time wake = Time::Never();  // Restarting: the end of the back-off. Starting: its limit.
  bool draining = false;      // Its next death is no failure.
  bool held = false;          // No other life of it begins for now.
  bool unheld = false;        // Nobody refers to it: it is to end when its calls have run.
  std::string freed_name;     // That it had until then.
  [[nodiscard]] bool dead() const { return life.state == ActorState::kDead; }
  // It is not started again when its process ends.
  [[nodiscard]] bool in_last_life() const {
    const bool none_left = spec.max_restarts >= 0 && life.restarts >= spec.max_restarts;
    return !dead() && (unheld || (!draining && none_left));
  }
};

class Directory {
 public:
  // The address of the actor, or of the living one of that name. kAlreadyExists: the name is taken.
  Result<ActorAddress> Create(Time now, ActorSpec spec, DirectoryActions& actions);
  // From the store, when the head starts.
  void Restore(Time now, ActorSpec spec, ActorLife life);
  void Placed(Time now, const std::string& actor, uint64_t incarnation, const std::string& node,
              const std::string& process, DirectoryActions& actions);
  // Why it has no place yet; `never`: it cannot have one.
  void Unplaced(Time now, const std::string& actor, uint64_t incarnation, const Error& why,
                bool never, DirectoryActions& actions);
  void Ready(Time now, const std::string& actor, uint64_t incarnation, const PeerAddress& address,
             DirectoryActions& actions);
  // Its constructor failed, or its process has ended; `planned`: nobody's fault.
  void Died(Time now, const std::string& actor, uint64_t incarnation, const Error& how,
            bool constructor, DirectoryActions& actions);
  // It has ended itself.
  void Exited(Time now, const std::string& actor, uint64_t incarnation, const Error& reason,
              DirectoryActions& actions);
  // `request` tells a restart that is asked for again from another one. Who is not known is dead.
  Status Kill(Time now, const std::string& actor, bool restart, const std::string& reason,
              const std::string& request, DirectoryActions& actions);
  // Nobody refers to it any more: it ends when it has done what it was called for.
  void Unheld(Time now, const std::string& actor, DirectoryActions& actions);
  // Somebody does, after all.
  void Held(const std::string& actor, DirectoryActions& actions);
  // Two that end together from now on, or no more. kPeerGone: one has ended already.
  Status Link(const std::string& one, const std::string& other, DirectoryActions& actions);
  Status Unlink(const std::string& one, const std::string& other, DirectoryActions& actions);
  // The order to start its process never arrived.
  void Lost(Time now, const std::string& actor, uint64_t incarnation, const Error& how,
            DirectoryActions& actions);
  // What only those know that it works for. It has proven itself: its next death is the first one.
  void Proven(const std::string& actor);
  // The death of this life was no fault of its own: it does not count for the back-off.
  void Forgive(Time now, const std::string& actor, uint64_t incarnation);
  // No life of it begins from now on, and it waits for no place; until it may again.
  void Hold(Time now, const std::string& actor, DirectoryActions& actions);
  void Release(Time now, const std::string& actor);
  void OwnerGone(Time now, const std::string& owner, const std::string& reason,
                 DirectoryActions& actions);
  // Its node will go: who can be started again is, elsewhere, unless somebody else takes care of
  // it.
  void Drain(Time now, const std::string& node, const std::string& reason,
             DirectoryActions& actions,
             const std::function<bool(const std::string& actor)>& cared_for = nullptr);
  void Tick(Time now, DirectoryActions& actions);
  [[nodiscard]] Time next_wake() const;

  [[nodiscard]] const PlacedActor* Find(const std::string& actor) const;
  // By name, among the living.
  [[nodiscard]] const PlacedActor* Named(const std::string& name) const;
  [[nodiscard]] ActorLocation Where(const std::string& actor) const;
  [[nodiscard]] const std::map<std::string, PlacedActor>& actors() const { return actors_; }

 private:
  PlacedActor* Living(const std::string& actor, uint64_t incarnation);
  void Set(Time now, PlacedActor& actor, ActorState state, const Error* why,
           DirectoryActions& actions);
  void Schedule(PlacedActor& actor, Time wake);
  void End(Time now, PlacedActor& actor, const Error& reason, DirectoryActions& actions);
  using Ending = std::vector<std::pair<std::string, Error>>;
  void EndAll(Time now, Ending ending, DirectoryActions& actions);
  void Ask(Time now, const PlacedActor& actor, DirectoryActions& actions);
  void EndOne(Time now, PlacedActor& actor, const Error& reason, DirectoryActions& actions);
  void AddOwned(const std::string& owner, const std::string& reason, Ending& ending) const;
  void CheckLinks(Time now, DirectoryActions& actions);
  void Adopt(PlacedActor& actor);
  [[nodiscard]] std::string OwnerOf(const ActorSpec& spec) const;

  std::map<std::string, PlacedActor> actors_;
  std::map<std::string, std::string> names_;            // Of the living.
  std::map<std::string, std::set<std::string>> owned_;  // By owner: living and not detached.
  std::map<std::string, Time> unheld_;                  // And when each is asked to leave again.
  std::set<std::pair<Time, std::string>> wakes_;
  bool restored_ = false;  // Since the last Tick.
  std::map<Program, std::weak_ptr<const Program>, bool (*)(const Program&, const Program&)>
      programs_{[](const Program& a, const Program& b) {
        return std::tie(a.argv, a.env, a.spare_argv) < std::tie(b.argv, b.env, b.spare_argv);
      }};
};

}  // namespace troupe::actors
