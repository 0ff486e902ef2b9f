// ActorDirectoryClient: what a process asks of the cluster about actors that are placed: where they
// are, and to end them. Implemented over the head; faked in tests.
// Thread: any; must not block.
#pragma once

#include <functional>
#include <string>

#include "actors/core/call_window.h"
#include "actors/core/protocol.h"

namespace troupe {
struct PlacementGroupStatus;  // actors/core/group_protocol.h
struct ActorGroupStatus;      // actors/api/actor_group_status.h
}  // namespace troupe

namespace troupe::actors {

enum class ActorState : uint8_t {
  kPending,     // Waits for a place.
  kStarting,    // Its process starts, or its constructor runs.
  kAlive,       // It can be called.
  kRestarting,  // It has died and will be started again.
  kDead,        // For good.
};
constexpr ActorState LastValue(ActorState) { return ActorState::kDead; }
// "pending", "starting", "alive", "restarting", "dead".
[[nodiscard]] const char* ActorStateName(ActorState state);

// What the cluster says of one actor.
struct ActorLocation {
  std::string actor;
  ActorState state = ActorState::kPending;
  uint64_t incarnation = 0;
  PeerAddress process;  // While alive.
  ErrorChain reason;    // Why it waits, restarts or is dead.
  template <class A>
  void Fields(A& a) {
    a(actor, state, incarnation, process, reason);
  }
};

// Followed as "process/NAME": it is kAlive or kDead.
inline constexpr const char* kProcessPrefix = "process/";
// A process's actors are called at the name of its connection to the head with this.
inline constexpr const char* kCallsSuffix = "-calls";

struct ActorSpec;          // actors/core/cluster_protocol.h
struct GroupRequest;       // actors/core/group_protocol.h
struct CollectiveRequest;  // actors/core/collective_protocol.h
struct CollectiveStatus;
struct ActorGroupRequest;  // actors/core/actor_group_protocol.h
struct RefNotes;           // actors/core/ref_protocol.h

class ActorDirectoryClient {
 public:
  using OnAddress = std::function<void(Result<ActorAddress>)>;
  using OnGroup = std::function<void(Result<PlacementGroupStatus>)>;
  using OnCollective = std::function<void(Result<CollectiveStatus>)>;

  using OnActorGroup = std::function<void(Result<ActorGroupStatus>)>;

  virtual ~ActorDirectoryClient() = default;
  // Starts the actor of `spec` somewhere; `done` as soon as that is decided, with its address or,
  // for a name that is taken and get_if_exists, the other's.
  virtual void Create(ActorSpec spec, OnAddress done) = 0;
  virtual void Lookup(const std::string& name, Duration limit, OnAddress done) = 0;
  // Asks for something about a placement group.
  virtual void Group(GroupRequest request, Duration limit, OnGroup done) = 0;
  // Asks for something about a collective group.
  virtual void Collective(CollectiveRequest request, Duration limit, OnCollective done) = 0;
  // Asks for something about a group of actors.
  virtual void Actors(ActorGroupRequest request, Duration limit, OnActorGroup done) = 0;
  // As what this process owns the actors that it creates.
  [[nodiscard]] virtual const std::string& owner() const = 0;
  // From now on, and after every change, ActorSystem::SetWhereabouts is called.
  virtual void Follow(const std::string& actor) = 0;
  virtual void Unfollow(const std::string& actor) = 0;
  // Which handles of counted actors this process has. Once at most.
  virtual void Hold(const RefNotes&, Duration, const CallDone& done) {
    done(Error{ErrorCode::kUnavailable, "no handles are counted here"});
  }
  // Who counts them: `anew` is called when a head has begun that knows nothing of them; `told` says
  // whether it has heard of all that there were then. Null: nobody. On the loop.
  virtual void SetHandles(const std::function<void()>& /*anew*/,
                          const std::function<bool()>& /*told*/) {}
  virtual void Kill(const std::string& actor, bool restart, const std::string& reason,
                    CallDone done) = 0;
  // Two actors that end together from now on; or, if not `on`, no more.
  virtual void Link(const std::string& one, const std::string& other, bool on, Duration limit,
                    CallDone done) = 0;
  // Keeps the state of an incarnation that runs here; `done` when it is safe.
  virtual void Save(const std::string& actor, uint64_t incarnation, std::string state,
                    std::function<void(Status)> done) = 0;
  // An incarnation that runs here cannot go on; it may be started again, as after a crash.
  virtual void Failed(const std::string& actor, uint64_t incarnation, const Error& reason) = 0;
  // An actor that runs here has ended itself and is not to be started again.
  virtual void Exited(const std::string& actor, uint64_t incarnation, const Error& reason) = 0;
};

}  // namespace troupe::actors
