// SparePolicy: which processes a node starts ahead of the actors that will live in them, and when
// it ends them.
//
// Whoever has made an actor is likely to make more of its kind: the program and its environment.
// So a node keeps as many spares as it has CPUs, most of them of the kind that was used last, and
// none of a kind that has not been used for long. Of some kinds it is told how many to keep. A
// spare is forked from a server of its kind, which costs little; where that cannot be, it is
// started by itself.
// Pure: never blocks, reads no clock.
// Invariants: SP-1 there are never more spares than `limit`. SP-2 a spare is taken once. SP-3 no
// spare is started while one that was just taken begins its work (`settle`), nor within `pace` of
// another. SP-4 a kind whose spare or server has ended by itself has none until `after_failure` has
// passed. SP-5 none is started of a kind whose server is not ready.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/clock.h"

namespace troupe::daemons {

struct SpareKind {
  std::vector<std::string> argv;  // Of a process that waits for its work.
  std::map<std::string, std::string> env;
  auto operator<=>(const SpareKind&) const = default;
};

inline constexpr Duration kSparesKept = seconds(20);  // From the last word to keep them.

struct SpareLimits {
  size_t limit = 1;
  Duration settle = milliseconds(30);  // Of those that are forked,
  Duration pace = milliseconds(10);
  Duration settle_alone = milliseconds(100);  // and those that are not.
  Duration pace_alone = milliseconds(200);
  Duration kept = seconds(300);  // Since the last use of the kind.
  Duration after_failure = seconds(60);
};

class SparePolicy {
 public:
  using Id = uint64_t;
  struct Step {
    std::vector<Id> end;
    std::optional<std::pair<Id, SpareKind>> start;
  };

  explicit SparePolicy(SpareLimits limits) : limits_(limits) {}
  // A process of the kind is needed now: its oldest spare, which is ours no more. `more_ahead`:
  // others of its kind are likely to be needed.
  [[nodiscard]] std::optional<Id> Take(Time now, const SpareKind& kind, bool more_ahead = true);
  // There are to be so many of the kind, for kSparesKept or until another word; one that is taken
  // without `more_ahead` is one of them.
  void Keep(Time now, const SpareKind& kind, size_t count);
  // It could not be started, or has ended by itself. Whether that is news: those of its kind that
  // were started with it end in the same way.
  bool Failed(Time now, Id spare);
  // A server of the kind has been started; it is ready; it has ended, and will be started again
  // when one is needed after `after_failure`; its kind cannot be forked; it is told to end; it has.
  void ServerStarts(const SpareKind& kind) { waits_.insert(kind); }
  void ServerReady(Time now, const SpareKind& kind);
  void ServerFailed(Time now, const SpareKind& kind);
  void ServerUnfit(Time now, const SpareKind& kind);
  void ServerEnds(const SpareKind& kind) { waits_.insert(kind); }
  void ServerGone(Time now, const SpareKind& kind);
  // Whether the next one of its kind is to be forked.
  [[nodiscard]] bool Forks(Time now, const SpareKind& kind) const;
  // Those there are have been given up, and nothing is known of what will be used.
  void Forget();
  // What is to be done now. What is to be started counts as started.
  [[nodiscard]] Step Next(Time now);
  // When Next has something to do, unless something happens before. Never: not known.
  [[nodiscard]] Time due() const { return due_; }
  [[nodiscard]] size_t size() const;

 private:
  struct Use {
    Time last{};
    uint64_t turn = 0;  // Of that use, among those of all kinds.
    Time not_before{};
    std::vector<Id> spares;  // Oldest first.
    size_t asked = 0;        // To be kept,
    Time asked_until{};      // so long.
  };
  using Uses = std::map<SpareKind, Use>;
  // How many of each kind there should be: those that were asked for first, then the kind that was
  // used last.
  [[nodiscard]] std::vector<std::pair<Uses::iterator, size_t>> Wanted(Time now);

  // When one may be started, as far as those before it matter.
  [[nodiscard]] Time StartAt(const SpareKind& kind) const;

  const SpareLimits limits_;
  Uses uses_;
  std::set<SpareKind> waits_;            // Those whose server is not ready, or ends.
  std::map<SpareKind, Time> no_server_;  // Until then.
  Id next_id_ = 1;
  uint64_t turns_ = 0;
  Time last_take_{};
  Time last_start_{};
  Time due_ = Time::Never();
};

}  // namespace troupe::daemons
