// A simulated cluster around the group protocol's pure cores: network, clock, store, node daemon
// and training loops are virtual; Coordinator, Member and SampleLedger are the production objects.
// One seed, one run.
//
// Whenever something changes, the invariants GM-1..GM-16 are checked. A Sabotage breaks one thing
// on purpose; the tests require that the checkers notice (a checker that never fires proves
// nothing).
#pragma once

#include <cstdint>
#include <string>

#include "collective_groups/membership/view.h"
#include "runtime/clock.h"

namespace troupe::groups::sim {

enum class Sabotage {
  kNone,
  kForgetRecord,      // GM-1/GM-2: a restarted coordinator starts from an older record.
  kDifferentMembers,  // GM-2: one member is told another list.
  kActivateEarly,     // GM-3: unprepared members are reported as prepared.
  kTrustLinks,        // GM-3: what links are cut short in is taken for memory.
  kMixEpochs,         // GM-4: collectives match across epochs.
  kNoRepeats,         // GM-5: nothing is repeated after loss.
  kIgnoreMinimum,     // GM-6: the coordinator does not know the minimum.
  kSendBeforeStore,   // GM-7: messages leave before the record is stored.
  kNoStateTransfer,   // GM-8: members start without the newest state.
  kOldestIsSource,    // GM-8: the oldest member's state counts, not the newest.
  kCommitOnAbort,     // GM-9: a step that was aborted is committed.
  kForgetLedger,      // GM-9: state is sent without its ledger.
  kHideProgress,      // GM-10: reports do not tell who waits.
  kSwapProgress,      // GM-10: who waits is taken for who does not.
  kHideSignatures,    // GM-11: reports do not tell what is called.
  kForgetVerdict,     // GM-11: a verdict is told once, to half of the members.
  kWaitForReturned,   // GM-10: who waits for a member that has returned goes on waiting.
  kGiveUpLastHolder,  // GM-12: who alone holds the state has no more time than others.
  kHideUnreachable,   // GM-13: a peer that cannot be connected is taken for one that can.
  kRetryAtOnce,       // GM-13: the same members try again without a delay.
  kStrangerFinishes,  // GM-14: one that was sent away counts as a member that has finished.
  kStaleDeadline,     // GM-16: a deadline that has passed is kept.
};

struct SimOptions {
  uint64_t seed = 1;
  int members = 4;
  int min_members = 2;
  int hosts = 2;
  bool only_cut = false;  // A route is cut for ever while all train, and nothing else goes wrong.
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
  int carriers = 0;    // Joiners that came with state.
  int hangs = 0;       // Members put aside because they kept the others waiting.
  int mismatches = 0;  // Epochs that failed by a verdict.
  int cuts = 0;        // Routes between members that were cut,
  int left_out = 0;    // and members that were left out of an epoch for it.
  int store_losses = 0;
  int returns = 0;   // Members whose function returned before the data were used up.
  int released = 0;  // Members with the state of the last epoch that were let go.
  int busiest = 0;   // Epochs stored within a second.
};

[[nodiscard]] SimResult RunGroupSimulation(const SimOptions& options);

}  // namespace troupe::groups::sim
