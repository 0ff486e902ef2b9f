// Messages about collective groups of actors, between the head and processes of the cluster.
//
// Requests are answered and repeated as those of actors (cluster_protocol.h); asking twice is
// asking once. Reports and commands of their members are those of every collective group.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

inline constexpr uint8_t kFrameCollectiveRequest = 102;
inline constexpr uint8_t kCollectiveRecord = 103;
inline constexpr uint32_t kCollectiveMembersMax = 64;
// What the names of such groups begin with where all collective groups are meant.
inline constexpr const char* kCollectivePrefix = "actors/";
inline std::string CollectiveGroupName(const std::string& name) { return kCollectivePrefix + name; }

struct CollectiveSpec {
  std::string name;   // Unique in the cluster.
  std::string owner;  // It ends with it, as in ActorSpec; empty: with its last member.
  // A fixed group has so many ranks, and every collective needs all of them. An elastic one goes on
  // with those that there are, from min_size on.
  uint32_t size = 0;
  bool elastic = false;
  uint32_t min_size = 1;
  std::vector<std::string> actors;  // By rank. Empty: actors say which rank they take.
  // Its members hold a state and take themselves from epoch to epoch, in a training loop. So do all
  // members of a group, or none.
  bool trains = false;
  template <class A>
  void Fields(A& a) {
    a(name, owner, size, elastic, min_size, actors, trains);
  }
};

enum class CollectiveVerb : uint8_t {
  kCreate,  // `spec` whole.
  // `actor`, in its life `incarnation`, takes `rank` (-1: the one that is meant for it) in the
  // group spec.name, which is made if spec.size says how.
  kJoin,
  kLeave,  // `actor` does.
  kDestroy,
  kStatus,
};
constexpr CollectiveVerb LastValue(CollectiveVerb) { return CollectiveVerb::kStatus; }

struct CollectiveRequest {
  uint64_t request = 0;
  CollectiveVerb verb = CollectiveVerb::kStatus;
  CollectiveSpec spec;
  std::string actor;
  uint64_t incarnation = 0;
  int32_t rank = -1;
  template <class A>
  void Fields(A& a) {
    a(request, verb, spec, actor, incarnation, rank);
  }
};

// How a collective group stands.
struct CollectiveStatus {
  struct Seat {
    std::string actor;    // Empty: nobody has taken this rank yet.
    uint64_t number = 0;  // Of the membership; 0: the actor has not joined, or has died since.
    std::string state;    // For people: "member", "awaited", "restarting", ...
    template <class A>
    void Fields(A& a) {
      a(actor, number, state);
    }
  };
  CollectiveSpec spec;
  std::vector<Seat> seats;  // By rank if the group is fixed.
  uint64_t number = 0;      // kJoin: of this membership.
  uint64_t life = 0;        // Another group of the same name has another one.
  uint64_t epoch = 0;       // The last that all were in; 0: none yet.
  std::string phase;        // "forming", "active", "parked", ...
  std::string reason;       // Why it waits.
  template <class A>
  void Fields(A& a) {
    a(spec, seats, number, life, epoch, phase, reason);
  }
};

}  // namespace troupe::actors
