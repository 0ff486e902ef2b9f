#include "autoscaler/simulator/market_history.h"

#include <algorithm>
#include <utility>

namespace troupe::simulator {

std::vector<Duration> MarketHistory::Changes() const {
  std::vector<Duration> changes;
  for (const auto& [pool, history] : pools) {
    for (const Offer& offer : history) {
      if (offer.at < length) changes.push_back(offer.at);
    }
  }
  std::sort(changes.begin(), changes.end());
  changes.erase(std::unique(changes.begin(), changes.end()), changes.end());
  return changes;
}

Offer OfferAt(const OfferHistory& history, Duration at) {
  const auto after =
      std::upper_bound(history.begin(), history.end(), at,
                       [](Duration when, const Offer& offer) { return when < offer.at; });
  return after == history.begin() ? Offer{} : *std::prev(after);
}

OfferHistory Compact(const OfferHistory& history) {
  OfferHistory kept;
  for (const Offer& offer : history) {
    const bool same = !kept.empty() && kept.back().nodes == offer.nodes &&
                      kept.back().price_per_hour == offer.price_per_hour;
    if (!same) kept.push_back(offer);
  }
  return kept;
}

}  // namespace troupe::simulator
