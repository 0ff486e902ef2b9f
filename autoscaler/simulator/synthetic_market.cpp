#include "autoscaler/simulator/synthetic_market.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>

namespace troupe::simulator {
namespace {

// [begin, end) without offers.
using Outages = std::vector<std::pair<Duration, Duration>>;

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // Exponential, with that mean, in whole seconds from 1 on.
  Duration Span(Duration mean) {
    const double u = (static_cast<double>(random_() >> 11) + 0.5) / 9007199254740992.0;
    return seconds(1 + static_cast<int64_t>(-std::log(u) * ToSeconds(mean)));
  }
  int Below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

 private:
  std::mt19937_64 random_;
};

Outages RegionOutages(const SyntheticOptions& options, Dice& dice) {
  Outages outages;
  for (Duration at = dice.Span(options.region_up); at < options.length;) {
    const Duration end = at + dice.Span(options.region_out);
    outages.emplace_back(at, end);
    at = end + dice.Span(options.region_up);
  }
  return outages;
}

OfferHistory ZoneOffers(const SyntheticOptions& options, int nodes, double price, Dice& dice) {
  OfferHistory offers;
  bool up = dice.Below(4) != 0;
  for (Duration at = Duration::zero(); at < options.length; up = !up) {
    const bool part = dice.Below(100) < options.partial_percent;
    const int some = part ? std::max(1, nodes * (25 + dice.Below(51)) / 100) : nodes;
    offers.push_back({at, up ? some : 0, price});
    at += dice.Span(up ? options.zone_up : options.zone_out);
  }
  return offers;
}

// Nothing is offered while the region is out.
OfferHistory Overlaid(const OfferHistory& zone, const Outages& outages) {
  std::map<Duration, Offer> all;
  for (const Offer& offer : zone) all[offer.at] = offer;
  for (const auto& [begin, end] : outages) {
    all[begin] = OfferAt(zone, begin);
    all[end] = OfferAt(zone, end);
    all[begin].at = begin;
    all[end].at = end;
  }
  OfferHistory offers;
  for (auto& [at, offer] : all) {
    const bool out = std::any_of(outages.begin(), outages.end(), [&](const auto& outage) {
      return at >= outage.first && at < outage.second;
    });
    if (out) offer.nodes = 0;
    offers.push_back(offer);
  }
  return Compact(offers);
}

}  // namespace

MarketHistory MakeMarket(const SyntheticOptions& options, const std::vector<PoolLimits>& pools) {
  MarketHistory market;
  market.length = options.length;
  Dice dice(options.seed);
  std::map<std::string, Outages> regions;
  for (const PoolLimits& pool : pools) {
    if (pool.market != Market::kSpot) continue;
    const std::string region = RegionOf(pool.zone.empty() ? pool.name : pool.zone);
    if (!regions.contains(region)) regions[region] = RegionOutages(options, dice);
    const int nodes = std::max(1, pool.max_workers / pool.workers_per_node);
    market.pools[pool.name] =
        Overlaid(ZoneOffers(options, nodes, pool.price_per_hour, dice), regions[region]);
  }
  return market;
}

}  // namespace troupe::simulator
