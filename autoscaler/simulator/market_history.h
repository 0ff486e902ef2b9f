// What a spot market offered over time, pool by pool: how many nodes could be held, and for how
// much each.
//
// A pool without a history is one whose nodes can always be had, at the price of the cluster file:
// on-demand ones, as a rule.
// Thread: value types.
// Limits: kOffersMax changes per pool.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/clock.h"

namespace troupe::simulator {

inline constexpr size_t kOffersMax = 2'000'000;

struct Offer {
  Duration at = Duration::zero();  // Since the start.
  int nodes = 0;                   // That can be held at once.
  double price_per_hour = 0;       // Of one.
};
// By time, without two for one instant; before the first there is nothing.
using OfferHistory = std::vector<Offer>;

struct MarketHistory {
  Duration length = Duration::zero();
  std::map<std::string, OfferHistory> pools;  // By the pool's name.

  // When something changes, each instant once, in order, before `length`.
  [[nodiscard]] std::vector<Duration> Changes() const;
};

// What holds at `at`.
[[nodiscard]] Offer OfferAt(const OfferHistory& history, Duration at);
// Leaves out what changes nothing.
[[nodiscard]] OfferHistory Compact(const OfferHistory& history);

}  // namespace troupe::simulator
