// Callers, mailboxes and the directory around them: windows send over a network that loses, doubles
// and reorders, incarnations die and are started again, with or without saved state.
//
// After every event AC-1..4, MB-1..4 and DR-1..6 are checked against a model that knows only what
// was asked and what has happened. Then the network heals, and all calls must complete. A Sabotage
// breaks one thing between the cores on purpose; the tests require that it is noticed.
// Thread: one; one seed, one run.
#pragma once

#include <cstdint>
#include <string>

namespace troupe::actors::sim {

enum class Sabotage {
  kNone,
  kSwapSends,       // AC-1: two calls leave in the other order, each with the other's number.
  kSettleTwice,     // AC-2: a waiter is told twice.
  kForgetSweep,     // AC-3: deadlines are not looked at.
  kHideDeath,       // AC-4: the window does not hear that an incarnation has ended.
  kRunTwice,        // MB-1: a call runs again.
  kRunLast,         // MB-1: the queue is taken from its end.
  kDeepMailbox,     // MB-2: the mailbox is larger than it says.
  kOtherReply,      // MB-3: a repeated reply has other bytes.
  kRunLate,         // MB-4: deadlines do not arrive.
  kLoseState,       // MB-1: the mailbox is not saved with the state.
  kReplyUnsaved,    // AL-1: replies do not wait for the state.
  kOldIncarnation,  // DR-1: an incarnation that is over is heard as the current one.
  kForgetName,      // DR-2: names are not told.
  kRaiseDead,       // DR-3: a dead actor is restored as living.
  kMoreRestarts,    // DR-4: more deaths are allowed than asked for.
  kForgetOwner,     // DR-5: owners are not told.
  kRestartTwice,
  kForgetLink,  // DR-6: a repeated request looks like another.
};

struct SimOptions {
  uint64_t seed = 1;
  int events = 250;
  Sabotage sabotage = Sabotage::kNone;
};

struct SimResult {
  bool ok = true;
  std::string violation;
  uint64_t hash = 0;
  int completed = 0;  // Calls with a value,
  int failed = 0;     // and with an error.
  int deaths = 0;
  int repeats = 0;  // Calls that were sent to a second incarnation.
  int full = 0;
  int saves = 0;
};

// Callers, windows, mailboxes, incarnations.
[[nodiscard]] SimResult RunCallSimulation(const SimOptions& options);
// The directory, with requests, news and ticks in any order, each perhaps twice.
[[nodiscard]] SimResult RunDirectorySimulation(const SimOptions& options);

}  // namespace troupe::actors::sim
