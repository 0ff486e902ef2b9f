// A simulated cluster around the scheduler: random nodes, requests, gangs, groups, resizes, deaths,
// drains, lost confirmations, CPU that is lent and taken back, restarts with claims, and a repeat
// of every kind of event. One seed, one run.
//
// After every event SC-1..SC-11 are checked against a model that knows only what was asked and what
// was answered. A Sabotage breaks one thing between the two on purpose; the tests require that the
// checkers notice (a checker that never fires proves nothing).
#pragma once

#include <cstdint>
#include <string>

namespace troupe::sched::sim {

enum class Sabotage {
  kNone,
  kMoreCpu,        // SC-1: nodes are reported with more CPU than they have.
  kMoreDevices,    // SC-1: and with a GPU too many.
  kSmallBundles,   // view: bundles are reported larger than they are.
  kSwapDevices,    // SC-1: a process is told of other devices than it was given.
  kForgetLabels,   // SC-2: requests are told without their labels.
  kForgetDrain,    // SC-2: drains are not told.
  kGrantTwice,     // SC-2: a lease that runs is requested again under another name.
  kHalfGroups,     // SC-3: a group is told as two.
  kPackAll,        // SC-3: strict spreading is told as packing.
  kForgetRelease,  // SC-4: some releases are not told.
  kForgetAlive,    // SC-4: a suspect is not told to be alive again.
  kRaisePriority,  // SC-5: late requests are told with a higher priority than they have.
  kLastFirst,      // SC-6: priorities are told the other way round.
  kLeak,           // SC-7: one release is never told.
  kNoPromises,     // SC-9: nobody is ever found to starve.
  kLateConfirm,    // SC-10: grants have longer to be confirmed than they should.
  kLendOther,      // SC-11: another lease is told to lend than the one that does.
};

struct SimOptions {
  uint64_t seed = 1;
  int events = 120;
  Sabotage sabotage = Sabotage::kNone;
};

struct SimResult {
  bool ok = true;
  std::string violation;
  uint64_t hash = 0;  // Of all decisions.
  int granted = 0;
  int revoked = 0;
  int groups_placed = 0;
  int rescheduled = 0;
  int promises = 0;
  int restarts = 0;
  int gangs_granted = 0;
  int lent = 0;
  int overcommitted = 0;  // Takings back that left too little.
};

[[nodiscard]] SimResult RunSchedulerSimulation(const SimOptions& options);

}  // namespace troupe::sched::sim
