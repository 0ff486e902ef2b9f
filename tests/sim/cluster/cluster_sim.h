// A simulated cluster around the production head: network, clock, store, nodes, workers and the
// driver are virtual; HeadService with all that it is made of, and the members of the groups, are
// the production objects. One seed, one run.
//
// A run trains beside a group of actors that trains, and actors in a collective group and in
// bundles, while workers, nodes, the head and the store are killed, stopped, cut off and emptied;
// then all heals, each must have its size again and end. Checkers watch all the time.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/clock.h"

namespace troupe::daemons::sim {

// How the run ends after all has healed.
enum class Ending {
  kReturns,       // Its workers return.
  kRaises,        // The function of one of them raises an exception.
  kCancelled,     // By its driver.
  kDriverLeaves,  // The driver says so.
  kDriverSilent,  // It is gone and has said nothing.
};

// A collective group of the actors.
enum class Ring { kNone, kElastic, kFixed };

// Breaks one thing on purpose; the tests require that a checker notices.
enum class Mutation {
  kNone,
  kStateNotKept,  // The store says that it has the newest state of the run, and has the first.
  kEndNotKept,    // Likewise its end,
  kLivesNotKept,  // and what it has of the lives of actors.
  kKillsIgnored,  // Nodes kill nothing that they are told to kill.
  kDeathsUntold,  // Nodes list processes that have ended as running, and tell nobody.
  kNoStateSent,   // Members that join begin with a state of their own.
  kPidsUnknown,   // Workers do not say which process they are.
  kEventsLost,    // Of each batch of events the driver loses the last.
};

struct ClusterOptions {
  uint64_t seed = 1;
  int hosts = 2;
  uint32_t workers = 3;
  uint32_t min_workers = 1;
  uint32_t max_workers = 5;
  uint32_t spares = 1;
  uint32_t actors = 0;      // Of the driver, beside the run,
  uint32_t group = 0;       // and of its group of actors.
  Ring ring = Ring::kNone;  // Of all the actors,
  Ring pair = Ring::kNone;  // and another one of them.
  uint32_t bundles = 0;     // At most one for each actor, and one more now and then.
  // Of silence ends the actors of a node. The head gives up all nodes after half a minute.
  Duration fence = seconds(25);
  bool detached = false;
  bool large_results = false;  // They come in parts.
  Ending ending = Ending::kReturns;
  Mutation mutation = Mutation::kNone;
  Duration chaos = seconds(20);
  Duration settle = seconds(90);  // From the last fault until all is as it was asked for.
  bool tell = false;              // Print what happens.
};

struct ClusterResult {
  bool ok = true;
  std::string violation;
  uint64_t event_hash = 0;
  uint64_t epochs = 0;
  uint64_t steps = 0;
  uint64_t group_steps = 0;  // Of the group of actors,
  uint64_t ring_steps = 0;   // and of the collective groups of the others.
  int kills = 0;             // Of workers,
  int nodes_killed = 0;      // nodes
  int heads_killed = 0;      // and heads, some of them between two writes.
  int between_writes = 0;
  int cuts = 0;
  int stops = 0;
  int drains = 0;
  int resizes = 0;
  int stores_emptied = 0;
  int lost = 0;  // Times that nobody was left who trained.
};

[[nodiscard]] ClusterResult RunClusterSimulation(const ClusterOptions& options);

}  // namespace troupe::daemons::sim
