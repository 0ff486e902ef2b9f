#include "scheduler/internal/cluster.h"

#include <algorithm>
#include <utility>

#include "runtime/assert.h"

namespace troupe::sched::internal {

uint32_t NameTable::Number(std::string_view name) {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(names_.size());
  names_.emplace_back(name);
  numbers_.emplace(names_.back(), number);
  return number;
}

Need NameTable::ToNeed(const ResourceSet& resources) {
  Need need;
  for (const auto& [name, units] : resources.units()) {
    if (name == "CPU") {
      need.cpu = units;
    } else if (name == "memory") {
      need.memory = units;
    } else if (name == "GPU") {
      need.gpu = units;
    } else {
      need.custom.push_back(Amount{Number(name), units});
    }
  }
  std::sort(need.custom.begin(), need.custom.end(),
            [](const Amount& a, const Amount& b) { return a.name < b.name; });
  return need;
}

ResourceSet NameTable::ToResources(const Need& need) const {
  std::map<std::string, int64_t, std::less<>> units;
  if (need.cpu > 0) units["CPU"] = need.cpu;
  if (need.memory > 0) units["memory"] = need.memory;
  if (need.gpu > 0) units["GPU"] = need.gpu;
  for (const Amount& amount : need.custom) {
    if (amount.units > 0) units[names_[amount.name]] = amount.units;
  }
  return ResourceSet::FromUnits(std::move(units));
}

std::string Cluster::PoolKey(const LabelSelector& labels, const std::vector<uint32_t>& custom) {
  std::string key = labels.text();
  for (const uint32_t name : custom) key += "|" + std::to_string(name);
  return key;
}

Pool& Cluster::FindPool(const std::string& key, const LabelSelector& labels,
                        const std::vector<uint32_t>& custom, uint32_t& hint) {
  ++searches_;
  if (hint >= pools_.size() || pools_[hint]->key != key) {
    const auto found = std::find_if(pools_.begin(), pools_.end(),
                                    [&](const auto& pool) { return pool->key == key; });
    hint = static_cast<uint32_t>(found - pools_.begin());
  }
  if (hint < pools_.size()) {
    pools_[hint]->used = searches_;
    return *pools_[hint];
  }
  auto fresh = std::make_unique<Pool>(key, labels, custom);
  if (pools_.size() < kPoolsMax) {
    pools_.push_back(std::move(fresh));
  } else {
    const auto oldest =
        std::min_element(pools_.begin(), pools_.end(),
                         [](const auto& a, const auto& b) { return a->used < b->used; });
    hint = static_cast<uint32_t>(oldest - pools_.begin());
    *oldest = std::move(fresh);
  }
  for (uint32_t slot = 0; slot < nodes.slots(); ++slot) {
    if (!nodes.Has(slot)) continue;
    std::erase_if(nodes[slot].seats, [&](const Seat& seat) { return seat.pool == hint; });
    Join(hint, slot);
  }
  pools_[hint]->used = searches_;
  return *pools_[hint];
}

void Cluster::Join(uint32_t number, uint32_t slot) {
  Pool& pool = *pools_[number];
  Node& node = nodes[slot];
  const Need& total = node.capacity.total();
  const bool has_all = std::all_of(pool.custom.begin(), pool.custom.end(),
                                   [&](uint32_t name) { return total.Custom(name) > 0; });
  if (!has_all || !pool.labels.Matches(node.labels)) return;
  FitTree& tree = total.gpu > 0 ? pool.gpu : pool.plain;
  node.seats.push_back(Seat{number, tree.Add(slot)});
  WriteSeat(node, node.seats.back());
}

uint32_t Cluster::AddNode(Node node) {
  total.Add(node.capacity.total());
  const uint32_t slot = nodes.Add(std::move(node));
  for (uint32_t pool = 0; pool < pools_.size(); ++pool) Join(pool, slot);
  return slot;
}

void Cluster::RemoveNode(uint32_t slot) {
  const Node& node = nodes[slot];
  const Need& gone = node.capacity.total();
  for (const Seat& seat : node.seats) {
    Pool& pool = *pools_[seat.pool];
    (gone.gpu > 0 ? pool.gpu : pool.plain).Remove(seat.position);
  }
  total.cpu -= gone.cpu;
  total.memory -= gone.memory;
  total.gpu -= gone.gpu;
  for (const Amount& amount : gone.custom) {
    for (Amount& sum : total.custom) {
      if (sum.name == amount.name) sum.units -= amount.units;
    }
  }
  nodes.Remove(slot);
}

void Cluster::Changed(uint32_t slot) {
  const Node& node = nodes[slot];
  for (const Seat& seat : node.seats) WriteSeat(node, seat);
}

void Cluster::WriteSeat(const Node& node, const Seat& seat) {
  Pool& pool = *pools_[seat.pool];
  FitTree& tree = node.capacity.total().gpu > 0 ? pool.gpu : pool.plain;
  if (!node.usable()) return tree.Close(seat.position);
  room_.resize(kFixedDims + pool.custom.size());
  half_.resize(room_.size());
  node.capacity.WriteRoom(pool.custom, node.hold.on ? &node.hold.need : nullptr, room_.data(),
                          half_.data());
  // By millionths of use, then by the number of leases, so that those that need nothing spread too.
  const auto key = static_cast<int64_t>(node.capacity.Share() * 1e6) << 24;
  tree.Set(seat.position, room_.data(), half_.data(), key + node.lease_count);
}

}  // namespace troupe::sched::internal
