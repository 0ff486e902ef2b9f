// ActorHolders: which processes have handles of the actors whose handles are counted, on the head,
// as a pure state machine.
//
// A process says what it holds by notes, each with a version (RefTable), and who has made an actor
// holds it from the start. An actor that nobody holds any more is told once, by TakeUnheld. A
// handle on its way is held by its sender until its receiver has been heard here, so that there is
// no moment at which an actor that somebody can reach has no holder.
//
// A head that was restarted knows of no holder. It tells nothing until all who may hold something
// have said so: those that it expects, when no more are found.
// Thread: one. Reads no clock.
// Invariants: HC-1 an actor that somebody can reach is not told, if what a process that died has
// passed on settles within kRefSettle, and its own process did not die just as it passed the first
// handle of its actor on that this head does not know of. HC-2 one that nobody can reach is told
// when the notes have settled. HC-3 a note that comes twice, or late, changes nothing.
// Limits: kHoldsMax; an actor that has more holders than there is room for is not counted any
// more: it lives as long as its owner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/core/ref_protocol.h"
#include "runtime/clock.h"

namespace troupe::actors {

inline constexpr size_t kHoldsMax = 4'000'000;  // A process and an actor each.
inline constexpr Duration kHeirsMost = seconds(60);

// As what RefTable knows an actor; nothing: such an id is none of a counted actor.
[[nodiscard]] std::optional<uint64_t> HandleOf(const std::string& actor);
[[nodiscard]] std::string ActorOfHandle(uint64_t number);

class ActorHolders {
 public:
  // `by` makes it, and holds it until it says otherwise; again changes nothing.
  void Made(uint64_t actor, const std::string& by);
  // It was made before this head began.
  void Restored(uint64_t actor);
  void Ended(uint64_t actor);

  void OnNotes(const std::string& from, const std::vector<RefNote>& notes);
  // It has ended. What it held counts until that has settled; or, with an heir, until that one,
  // which takes its place, is Back and has settled, if that does not take longer than kHeirsMost.
  void Gone(Time now, const std::string& process, const std::string& heir = "");
  void Back(Time now, const std::string& heir);
  void Tick(Time now);

  // After a restart: `who`, a process, a driver or an heir, is still to say what it holds; it has;
  // no more will be expected.
  void Expect(const std::string& who, Time until = Time::Never());
  void Heard(const std::string& who) { expected_.erase(who); }
  void ExpectNoMore() { complete_ = true; }

  // Those that nobody holds any more, since the last time.
  [[nodiscard]] std::vector<uint64_t> TakeUnheld();
  [[nodiscard]] bool Counts(uint64_t actor) const { return actors_.contains(actor); }
  // What a process says of an actor; nothing: it has said nothing.
  [[nodiscard]] std::optional<bool> Held(uint64_t actor, const std::string& by) const;
  // The version of its last note on it; 0: there was none.
  [[nodiscard]] uint64_t Heard(uint64_t actor, const std::string& from) const;
  [[nodiscard]] size_t holds() const { return holds_; }
  [[nodiscard]] size_t counted() const { return actors_.size(); }

 private:
  struct Hold {
    uint64_t version = 0;
    bool held = false;
  };
  struct Counted {
    std::map<std::string, Hold> processes;  // That have said something of it.
    size_t holders = 0;                     // Of those.
  };
  struct Process {
    std::set<uint64_t> actors;  // That it has said something of.
    Time gone = Time::Never();
  };

  Hold& HoldOf(uint64_t actor, const std::string& process);
  void Set(uint64_t actor, Hold& hold, bool held);
  void Forget(const std::string& process);
  void Settle(Time now, const std::string& who);

  std::map<uint64_t, Counted> actors_;
  std::map<std::string, Process> processes_;
  std::set<uint64_t> unheld_;  // Not told yet.
  size_t holds_ = 0;
  std::map<std::string, Time> expected_;  // And until when at most.
  bool complete_ = true;
};

}  // namespace troupe::actors
