// Messages of the group protocol.
//
// A member speaks in Reports, each all that the coordinator needs to know of it; a coordinator in
// Commands, each idempotent within its epoch. Repeating the latest Report and the outstanding
// Command heals loss, sequence numbers and epochs heal reordering. Thread: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective_groups/membership/progress.h"
#include "collective_groups/membership/view.h"

namespace troupe::groups {

enum class MemberState : uint8_t {
  kIdle = 0,      // The user's code has not asked to take part yet (it builds its model).
  kReady = 1,     // Outside any epoch, state version known, waiting to be admitted.
  kLeaving = 2,   // Told to leave its epoch; the user's thread has not come out yet.
  kPrepared = 3,  // Out of the old epoch, offers for new links made.
  kLinked = 4,    // Links of the epoch are up.
  kActive = 5,    // In the epoch.
  kFinished = 6,  // The user's function returned.
};
[[nodiscard]] const char* MemberStateName(MemberState state);
constexpr MemberState LastValue(MemberState) { return MemberState::kFinished; }

// An address at which one side of a link waits for the other; opaque to the protocol.
struct LinkOffer {
  uint32_t slot = 0;     // In a Report: whom it is for. In a Command: who made it.
  uint64_t attempt = 0;  // Ahead-of-time links only: which round of offers this belongs to.
  std::string address;

  template <class A>
  void Fields(A& a) {
    a(slot, attempt, address);
  }
};

struct Report {
  MemberId id;
  uint64_t sequence = 0;  // Grows with every report of this incarnation.
  std::string host;
  std::string memory;  // See ViewMember.
  MemberState state = MemberState::kIdle;
  Epoch epoch = 0;       // That the state refers to (kPrepared and later), or the last one.
  Epoch newest = 0;      // The highest that it was told of.
  uint64_t version = 0;  // Newest committed state.
  bool has_state = false;
  bool founder = false;  // kReady: only for the first epoch of the group; see kBuildFirst.
  bool broken = false;   // kActive or kPrepared: a link of this epoch failed.
  std::string problem;   // Why it is broken.
  // kPrepared and broken: slots of the peers that could not be connected to.
  std::vector<uint32_t> unreachable;
  // If blocked: bytes that have moved over its connections so far; 0: unknown.
  uint64_t moved = 0;
  uint64_t boundary = 0;  // Step boundaries passed in this epoch.
  uint64_t plan = 0;      // The last plan seen, and whether its boundary is still ahead.
  bool plan_accepted = false;
  uint64_t pause_us = 0;          // kActive: how long the user's thread stood still for this epoch.
  std::vector<LinkOffer> offers;  // kPrepared, kLinked: for the peers to be re-linked.
  std::vector<LinkOffer> prelinks;  // Offers for joiners (and by joiners) made ahead of the epoch.
  std::vector<LinkOffer> linked;    // Ahead-of-time links that are up (slot and attempt).
  Progress progress;                // kActive.
  bool blocked = false;             // The collective of `progress` still runs.
  std::vector<Progress> recent;     // If blocked or somebody has joined: the last ones before.

  template <class A>
  void Fields(A& a) {
    a(id, sequence, host, memory, state, epoch, newest, version, has_state, founder, broken,
      problem, unreachable, moved, boundary, plan, plan_accepted, pause_us, offers, prelinks,
      linked, progress, blocked, recent);
  }
};

enum class CommandKind : uint8_t {
  // Will you stop at `boundary` of `epoch`? boundary 0 withdraws the plan.
  kPlan = 1,
  // `epoch` comes with these members: leave the old one, at `boundary` if planned, else at once.
  kPrepare = 2,
  // Everybody is prepared: connect `offers`, then report kLinked, or go if `at_once`.
  kInstall = 3,
  // Everybody is linked: go.
  kActivate = 4,
  kHalt = 5,   // Leave epoch `epoch` and wait: the group is below its minimum.
  kExpel = 6,  // You are no member any more: see `expel`.
  // Make an offer to these peers ahead of time, and connect those offers that are given.
  kPrelink = 7,
  // Draining: leave `epoch` at `boundary`, then wait for kExpel.
  kLeave = 8,
  // A founder came too late: the group trains. Build the model first, so that nobody waits for it,
  // and be ready again.
  kBuildFirst = 9,
  // These ahead-of-time links (`relink`, of attempt `plan` or older) will not be used: their other
  // end is gone.
  kCancelPrelink = 10,
  // The collectives of `epoch` do not match (`reason`): they fail, on every member alike.
  kFail = 11,
  // Somebody has run out of data: `progress` is the collective to take part in without a share; its
  // sequence 0: tell at once of every collective from now on. See Progress::joined.
  kAssist = 12,
};
constexpr CommandKind LastValue(CommandKind) { return CommandKind::kAssist; }

enum class ExpelKind : uint8_t { kNone = 0, kDrained = 1, kFenced = 2, kEnded = 3 };
constexpr ExpelKind LastValue(ExpelKind) { return ExpelKind::kEnded; }

struct Command {
  CommandKind kind = CommandKind::kPlan;
  Epoch epoch = 0;
  uint64_t plan = 0;  // Its number. k(Cancel)Prelink: the attempt's. kExpel: incarnation, 0: any.
  uint64_t boundary = 0;
  bool planned = false;
  bool at_once = false;          // kInstall: nobody has anything to link, so nobody is waited for.
  View view;                     // kPrepare: without versions; kInstall: complete.
  uint32_t slot = 0;             // The receiver's own slot.
  std::vector<uint32_t> relink;  // Slots. kPrepare: to link afresh. k*Prelink: to offer to.
  std::vector<std::string> memories;  // Of the members that `relink` names.
  std::vector<LinkOffer> offers;      // kInstall, kPrelink: made by the peers for the receiver.
  ExpelKind expel = ExpelKind::kNone;
  std::string reason;
  Progress progress;  // kAssist.
  // kPrepare, kHalt: the epoch that is left has failed; who missed kFail learns it here.
  Epoch failed = 0;
  std::string verdict;

  template <class A>
  void Fields(A& a) {
    a(kind, epoch, plan, boundary, planned, at_once, view, slot, relink, memories, offers, expel,
      reason, progress, failed, verdict);
  }
};

// What the store holds for a group; written by compare-and-set before the first message of the
// epoch (GM-7).
struct EpochRecord {
  std::string owner;  // The coordinator that wrote it,
  uint64_t term = 0;  // and its term: every start has a higher one, the highest owns the group.
  View view;
  uint64_t next_seniority = 1;
  bool ended = false;
  bool finishing = false;  // A member had finished, of this view or of one before.
  template <class A>
  void Fields(A& a) {
    a(owner, term, view, next_seniority, ended, finishing);
  }
};

}  // namespace troupe::groups
