// A simulated cluster around the group protocol's pure cores: network, clock, store, node daemon
// and training loops are virtual; Coordinator and Member are the production objects. One seed, one
// run.
//
// After every event the invariants GM-1..GM-8 are checked. A Sabotage breaks one thing on purpose;
// the tests require that the checkers notice (a checker that never fires proves nothing).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collective_groups/coordinator.h"
#include "collective_groups/member.h"
#include "runtime/loopback_transport.h"

namespace troupe::groups::sim {

enum class Sabotage {
  kNone,
  kForgetRecord,      // GM-1/GM-2: a restarted coordinator starts from an older record.
  kDifferentMembers,  // GM-2: one member is told another list.
  kActivateEarly,     // GM-3: unprepared members are reported as prepared.
  kMixEpochs,         // GM-4: collectives match across epochs.
  kNoRepeats,         // GM-5: nothing is repeated after loss.
  kIgnoreMinimum,     // GM-6: the coordinator does not know the minimum.
  kSendBeforeStore,   // GM-7: messages leave before the record is stored.
  kNoStateTransfer,   // GM-8: members start without the newest state.
};

struct SimOptions {
  uint64_t seed = 1;
  int members = 4;
  int min_members = 2;
  int steps = 150;  // Training steps until the run is done.
  Duration chaos = milliseconds(1500);
  Duration settle = seconds(20);  // GM-5's bound after the last fault.
  Sabotage sabotage = Sabotage::kNone;
};

struct SimResult {
  bool ok = true;
  std::string violation;
  uint64_t event_hash = 0;
  Epoch epochs = 0;
  uint64_t steps = 0;
  int kills = 0;
};

[[nodiscard]] SimResult RunGroupSimulation(const SimOptions& options);

}  // namespace troupe::groups::sim
