#include "autoscaler/simulator/simulated_cloud.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace troupe::simulator {
namespace {

// "spot-0000017": the order of ids is that of launches.
std::string IdOf(const std::string& pool, int number) {
  char text[16];
  std::snprintf(text, sizeof text, "-%07d", number);
  return pool + text;
}

}  // namespace

SimulatedCloud::SimulatedCloud(const std::vector<PoolLimits>& pools, const MarketHistory& market,
                               Time start, Duration boot, Duration notice)
    : pools_(pools), market_(market), start_(start), boot_(boot), notice_(notice), now_(start) {}

Offer SimulatedCloud::OfferOf(const PoolLimits& pool) const {
  const auto found = market_.pools.find(pool.name);
  if (found == market_.pools.end())
    return {Duration::zero(), std::numeric_limits<int>::max(), pool.price_per_hour};
  return OfferAt(found->second, now_ - start_);
}

std::vector<std::string> SimulatedCloud::Advance(Time now) {
  now_ = now;
  std::map<const PoolLimits*, std::vector<std::map<std::string, Node>::iterator>> held;
  for (auto it = nodes_.begin(); it != nodes_.end(); ++it) {
    if (it->second.ends_at == Time::Never()) held[it->second.pool].push_back(it);
  }
  std::vector<std::string> noticed;
  for (const PoolLimits& pool : pools_) {
    const auto found = held.find(&pool);
    if (found == held.end()) continue;
    const auto room = static_cast<size_t>(OfferOf(pool).nodes);
    for (size_t i = 0; found->second.size() > room && i < found->second.size() - room; ++i) {
      found->second[i]->second.ends_at = now + notice_;
      noticed.push_back(found->second[i]->first);
      ++preemptions_;
    }
  }
  std::erase_if(nodes_, [&](const auto& entry) { return entry.second.ends_at <= now; });
  std::erase_if(noticed, [&](const std::string& id) { return !nodes_.contains(id); });
  return noticed;
}

Result<std::string> SimulatedCloud::Launch(const std::string& token, const std::string& pool) {
  for (const auto& [id, node] : nodes_) {
    if (node.token == token) return id;
  }
  const auto limits = std::find_if(pools_.begin(), pools_.end(),
                                   [&](const PoolLimits& known) { return known.name == pool; });
  if (limits == pools_.end()) return Error{ErrorCode::kNotFound, "no pool " + pool};
  const auto staying = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    return entry.second.pool == &*limits && entry.second.ends_at == Time::Never();
  });
  if (staying >= OfferOf(*limits).nodes) return Error{ErrorCode::kResourceExhausted, "no capacity"};
  const std::string id = IdOf(pool, ++launched_[pool]);
  nodes_[id] = Node{token, &*limits, now_ + boot_, Time::Never()};
  return id;
}

Status SimulatedCloud::Terminate(const std::string& id) {
  nodes_.erase(id);
  return Status::Ok();
}

Result<std::vector<ProviderNode>> SimulatedCloud::List() {
  std::vector<ProviderNode> listed;
  listed.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_)
    listed.push_back({id, node.token, node.pool->name, false, ""});
  return listed;
}

std::map<std::string, double> SimulatedCloud::TakePrices() {
  std::map<std::string, double> fresh;
  for (const PoolLimits& pool : pools_) {
    const double price = OfferOf(pool).price_per_hour;
    const auto [known, first] = told_.try_emplace(pool.name, pool.price_per_hour);
    if (std::exchange(known->second, price) != price) fresh[pool.name] = price;
  }
  return fresh;
}

double SimulatedCloud::PricePerHour() const {
  double price = 0;
  std::map<const PoolLimits*, double> of;
  for (const auto& [id, node] : nodes_) {
    const auto [known, fresh] = of.try_emplace(node.pool, 0);
    if (fresh) known->second = OfferOf(*node.pool).price_per_hour;
    price += known->second;
  }
  return price;
}

Time SimulatedCloud::NextChange() const {
  Time next = Time::Never();
  for (const auto& [id, node] : nodes_) {
    if (node.up_at > now_) next = std::min(next, node.up_at);
    next = std::min(next, node.ends_at);
  }
  return next;
}

}  // namespace troupe::simulator
