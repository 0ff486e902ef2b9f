// Processes that make objects, pass refs to them around, put refs into other objects, read and drop
// them, and die, over a network that loses, doubles and reorders what they tell each other.
//
// After every event RF-1, RF-3 and RF-4 are checked against what the processes really hold; when
// everything has settled, RF-2.
// Thread: one; one seed, one run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors::sim {

struct RefResult {
  bool ok = true;
  std::string violation;
  uint64_t hash = 0;
  int objects = 0;
  int sent = 0;    // Messages with refs,
  int reads = 0;   // values with refs that were read,
  int freed = 0;   // objects that nobody referred to any more,
  int deaths = 0;  // of processes,
  int lost = 0;    // and objects that others could reach then.
};

[[nodiscard]] RefResult RunRefSimulation(uint64_t seed, int events = 200);

}  // namespace troupe::actors::sim
