// A cloud that offers what a market's history says: launches succeed while there is room, nodes
// boot, and when the offer falls those beyond it are taken back together, the oldest first.
//
// Thread: one. A pure core: the caller hands in the time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "autoscaler/node_provider.h"
#include "autoscaler/plan.h"
#include "autoscaler/simulator/market_history.h"

namespace troupe::simulator {

class SimulatedCloud final : public NodeProvider {
 public:
  struct Node {
    std::string token;
    const PoolLimits* pool = nullptr;
    Time up_at;
    Time ends_at = Time::Never();  // Taken back then.
  };

  // `pools` and `market` outlive it. `notice`: how long a node goes on after the fall of the offer.
  SimulatedCloud(const std::vector<PoolLimits>& pools, const MarketHistory& market, Time start,
                 Duration boot, Duration notice);

  // Takes back what is due. Ids of the nodes that have just got notice.
  std::vector<std::string> Advance(Time now);

  Result<std::string> Launch(const std::string& token, const std::string& pool) override;
  Status Terminate(const std::string& id) override;
  Result<std::vector<ProviderNode>> List() override;

  [[nodiscard]] const std::map<std::string, Node>& nodes() const { return nodes_; }
  std::map<std::string, double> TakePrices() override;
  // Dollars, of all nodes, as the market is now.
  [[nodiscard]] double PricePerHour() const;
  // When a node comes up or ends next.
  [[nodiscard]] Time NextChange() const;
  [[nodiscard]] int preemptions() const { return preemptions_; }

 private:
  [[nodiscard]] Offer OfferOf(const PoolLimits& pool) const;

  const std::vector<PoolLimits>& pools_;
  std::map<std::string, double> told_;  // Prices, by pool.
  const MarketHistory& market_;
  const Time start_;
  const Duration boot_;
  const Duration notice_;
  Time now_;
  std::map<std::string, Node> nodes_;  // By id; of a pool, in the order of their launches.
  std::map<std::string, int> launched_;
  int preemptions_ = 0;
};

}  // namespace troupe::simulator
