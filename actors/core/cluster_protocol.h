// Messages between the head and processes that create, call or hold placed actors.
//
// Requests carry a number the sender chose and are repeated until answered; asking twice is asking
// once. What changes is told to those who follow it, by revision: who misses one asks again from
// where it stands, and a head that was restarted (another `log`) is told everything anew.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/api/actor_group_status.h"
#include "actors/core/collective_protocol.h"
#include "actors/core/directory_client.h"
#include "actors/core/group_protocol.h"
#include "actors/core/ref_protocol.h"

namespace troupe::actors {

inline constexpr uint8_t kFrameCreateActor = 90;
inline constexpr uint8_t kFrameActorRequest = 91;
inline constexpr uint8_t kFrameActorAnswer = 92;
inline constexpr uint8_t kFrameFollowActors = 93;
inline constexpr uint8_t kFrameActorStates = 94;
inline constexpr uint8_t kFrameSaveActor = 95;
inline constexpr uint8_t kFrameActorSaved = 96;
inline constexpr uint8_t kActorRecord = 97;
inline constexpr uint8_t kActorAssignment = 98;
inline constexpr uint8_t kFrameActorOutput = 99;
inline constexpr uint8_t kFrameOfferState = 107;
inline constexpr uint8_t kFrameSendState = 108;
inline constexpr uint8_t kFrameRoomWanted = 109;
inline constexpr uint8_t kFrameHoldActors = 112;

inline constexpr size_t kActorNameBytesMax = 256;
inline constexpr size_t kActorLabelsMax = 64;
inline constexpr size_t kActorStateBytesMax = size_t{15} << 20;   // Saved, mailbox included.
inline constexpr size_t kDirectStateBytesMax = size_t{64} << 10;  // A larger one is offered first.
inline constexpr size_t kFollowedPerFrame = 5'000;
inline constexpr size_t kRoomWantedMax = 16;  // Of those who wait, told at once.

// Where an actor may run. All of it must hold but what is said to be soft.
struct PlacementWish {
  std::map<std::string, double> resources;
  std::string strategy = "hybrid";  // "hybrid", "spread".
  std::vector<std::string> labels;  // Selectors: "zone=a", "market!=spot", "gpu in (a100,h100)".
  std::vector<std::string> prefer;  // Selectors that are nice to have.
  std::string node;                 // Only there, or
  bool node_soft = false;           // rather there.
  std::string group;                // A placement group, and
  int32_t bundle = -1;              // its bundle; -1: any.
  int32_t priority = 0;             // Higher is served first.
  template <class A>
  void Fields(A& a) {
    a(resources, strategy, labels, prefer, node, node_soft, group, bundle, priority);
  }
};

// The program that hosts the actors of plugins. Nodes start the one beside their daemon, so that
// it is of their release and need not lie where the driver has it.
inline constexpr const char* kPluginHost = "troupe-worker";
inline constexpr const char* kPluginFlag = "--plugin";

// How its processes are started; many actors share one.
struct Program {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::vector<std::string> spare_argv = {};  // See StartWorker.
  template <class A>
  void Fields(A& a) {
    a(argv, env, spare_argv);
  }
};

struct ActorSpec {
  std::string actor;  // Its id, chosen by the creator.
  std::string name;   // Unique among the living; empty: none.
  std::string type;
  std::string owner;  // Who it dies with: "driver/ID" or "actor/ID"; ignored if it is detached.
  bool detached = false;
  bool get_if_exists = false;  // A living one of this name is as good.
  std::string blueprint;       // Encoded ActorBlueprint.
  PlacementWish wish;
  Program program;
  int32_t max_restarts = 0;  // -1: as often as it dies.
  uint64_t backoff_ms = 100;
  uint64_t backoff_max_ms = 10'000;
  double start_timeout_s = 60;
  bool runs_tasks = false;  // What its tasks make belongs to its own owner.
  bool counted = false;     // It ends when nobody has a handle of it any more; see ActorHolders.
  template <class A>
  void Fields(A& a) {
    a(actor, name, type, owner, detached, get_if_exists, blueprint, wish, program, max_restarts,
      backoff_ms, backoff_max_ms, start_timeout_s, runs_tasks, counted);
  }
};

struct CreateActor {
  uint64_t request = 0;
  ActorSpec spec;
  template <class A>
  void Fields(A& a) {
    a(request, spec);
  }
};

enum class ActorVerb : uint8_t {
  kKill,
  kRestart,
  kExited,     // It has ended itself.
  kFailed,     // Its process cannot go on with it.
  kLookup,     // By name.
  kOwnerGone,  // What the owner has is to go.
  kLink,
  kUnlink,
};
constexpr ActorVerb LastValue(ActorVerb) { return ActorVerb::kUnlink; }

struct ActorRequest {
  uint64_t request = 0;
  ActorVerb verb = ActorVerb::kLookup;
  std::string actor;         // Its id; kLookup: its name; kOwnerGone: the owner.
  uint64_t incarnation = 0;  // kExited, kFailed.
  std::string reason;        // kLink, kUnlink: the other actor.
  template <class A>
  void Fields(A& a) {
    a(request, verb, actor, incarnation, reason);
  }
};

struct ActorAnswer {
  uint64_t request = 0;
  ErrorChain error;               // Empty: done.
  ActorAddress address;           // Of "create" and "lookup".
  PlacementGroupStatus group;     // Of a GroupRequest.
  CollectiveStatus collective{};  // Of a CollectiveRequest.
  ActorGroupStatus actors{};      // Of an ActorGroupRequest.
  template <class A>
  void Fields(A& a) {
    a(request, error, address, group, collective, actors);
  }
};

// Also the sender's heartbeat as an owner.
struct FollowActors {
  std::string owner;      // As in ActorSpec; empty: it owns nothing.
  std::string log;        // Of the head whose revisions it has.
  uint64_t revision = 0;  // The last it has got.
  uint64_t version = 0;   // Of the list of what it follows, with these changes:
  bool whole = false;     // `add` begins the list anew.
  std::vector<std::string> add;
  std::vector<std::string> drop;
  bool told = true;  // That head knows which handles it had when it heard of that head.
  template <class A>
  void Fields(A& a) {
    a(owner, log, revision, version, whole, add, drop, told);
  }
};

// Which handles of counted actors a process has; see ActorHolders.
struct HoldActors {
  uint64_t request = 0;
  std::string owner;  // As in FollowActors.
  std::vector<RefNote> holds;
  template <class A>
  void Fields(A& a) {
    a(request, owner, holds);
  }
};

struct ActorStates {
  std::string log;
  uint64_t before = 0;    // Who has not got this revision has missed something.
  uint64_t revision = 0;  // Has been told with this frame.
  uint64_t version = 0;   // Of the list that the head has.
  std::vector<ActorLocation> actors;
  template <class A>
  void Fields(A& a) {
    a(log, before, revision, version, actors);
  }
};

struct SaveActor {  // Repeated until ActorSaved, if it is small.
  std::string actor;
  uint64_t incarnation = 0;
  uint64_t version = 0;
  std::string state;
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, version, state);
  }
};

// In place of SaveActor for a state that is not small: the head says when there is room for it.
struct OfferState {  // Repeated until ActorSaved.
  std::string actor;
  uint64_t incarnation = 0;
  uint64_t version = 0;
  uint64_t bytes = 0;
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, version, bytes);
  }
};

struct SendState {  // The answer, as often as the state is offered.
  std::string actor;
  uint64_t version = 0;
  template <class A>
  void Fields(A& a) {
    a(actor, version);
  }
};

struct ActorSaved {
  std::string actor;
  uint64_t version = 0;
  ErrorChain error;  // It will never be: the incarnation is over, or the state is too large.
  template <class A>
  void Fields(A& a) {
    a(actor, version, error);
  }
};

// What an actor has printed, for its owner. At most once.
struct ActorOutput {
  std::string actor;
  std::string type;
  std::string node;
  int64_t pid = 0;
  bool is_stderr = false;
  std::vector<std::string> lines;
  uint64_t dropped = 0;
  template <class A>
  void Fields(A& a) {
    a(actor, type, node, pid, is_stderr, lines, dropped);
  }
};

// To the process that is to host it.
struct ActorAssignment {
  std::string actor;
  uint64_t incarnation = 0;
  std::string blueprint;
  std::string saved;
  bool has_cpu = false;  // So that it can lend it.
  template <class A>
  void Fields(A& a) {
    a(actor, incarnation, blueprint, saved, has_cpu);
  }
};

// To who has processes for tasks: something waits for room that idle ones may be in. Again several
// times a second while that is so, and once with nobody. At most once.
struct RoomWanted {
  std::vector<std::string> waiting;  // Actors, groups, runs; the first kRoomWantedMax.
  template <class A>
  void Fields(A& a) {
    a(waiting);
  }
};

}  // namespace troupe::actors
