// Processes that make actors, pass handles of them around, drop them and die, a head that counts
// who holds which, and is restarted, over a network that loses, doubles and reorders what they tell
// each other. Some actors are started again, and find what they have held in their saved state.
//
// An actor that ends must be one that nobody can reach at that moment (HC-1), late notes change
// nothing (HC-3); when all has settled, nothing lives that nobody can reach (HC-2).
// Thread: one; one seed, one run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors::sim {

struct HolderResult {
  bool ok = true;
  std::string violation;
  uint64_t hash = 0;
  int actors = 0;
  int sent = 0;      // Messages with handles,
  int own = 0;       // of those with that of the actor that sends it,
  int ended = 0;     // actors that nobody could reach any more,
  int refused = 0;   // of which it showed just in time that somebody can,
  int deaths = 0;    // of processes,
  int returns = 0;   // of which actors came back,
  int restarts = 0;  // and heads.
};

[[nodiscard]] HolderResult RunHolderSimulation(uint64_t seed, int events = 200);

}  // namespace troupe::actors::sim
