// SC-1..SC-11, looked at the slow way.
#include <algorithm>
#include <cmath>

#include "tests/sim/scheduler/sim_model.h"

namespace troupe::sched::sim {

void Model::CheckAll(Time now, const Scheduler& scheduler) {
  CheckLending();
  CheckCapacity();
  CheckBatches();
  CheckStrategies();
  CheckPromises(scheduler);
  CheckNobodyFits(now);
  CheckOrder();
  CheckStarving(now);
  CheckConfirmed(now);
  CheckViews(scheduler);
  lost_now_.clear();
}

// Nothing that needs CPU comes to where too much is in use; what was lent explains no such thing.
void Model::CheckLending() {
  if (claiming) return;
  const auto lends = [&](const std::string& node) {
    return std::any_of(leases.begin(), leases.end(), [&](const auto& entry) {
      return entry.second.node == node && (entry.second.lent || entry.second.uninvited);
    });
  };
  const auto check = [&](const std::string& node, const Ask& ask, const Room& free) {
    const auto wanted = ask.units.find("CPU");
    if (wanted == ask.units.end() || wanted->second == 0 || !lends(node)) return;
    if (free.units.at("CPU") < 0) Fail("SC-11: " + node + " gives CPU that is not lent");
  };
  for (const std::string& id : granted_now_) {
    const ModelLease& lease = leases.at(id);
    const bool inside = !lease.group.empty();
    check(lease.node, lease.ask,
          inside ? FreeIn(groups.at(lease.group), lease.group, static_cast<uint32_t>(lease.given))
                 : FreeOf(lease.node));
  }
  for (const auto& [id, number] : placed_now_) {
    const ModelBundle& bundle = groups.at(id).bundles.at(number);
    check(bundle.node, bundle.ask, FreeOf(bundle.node));
  }
}

// CPU that was taken back or claimed may be too much; without it there is enough.
void Model::CheckCapacity() {
  std::map<std::string, Room> rooms;
  for (const auto& [id, node] : nodes) rooms[id] = node.Whole();
  for (const auto& [id, group] : groups) {
    for (const auto& [number, bundle] : group.bundles) {
      if (bundle.node.empty()) continue;
      if (!rooms.contains(bundle.node)) return Fail("SC-2: a bundle is on a node that is gone");
      if (!rooms[bundle.node].Take(bundle.ask, bundle.devices)) {
        Fail("SC-1: node " + bundle.node + " is given more than it has");
      }
    }
  }
  std::map<std::pair<std::string, int>, Room> inside;
  for (const auto& [id, lease] : leases) {
    if (lease.node.empty()) continue;
    Ask held = lease.Held();
    if (lease.uninvited) held.units.erase("CPU");
    if (!rooms.contains(lease.node)) return Fail("SC-2: " + id + " is on a node that is gone");
    if (lease.group.empty()) {
      if (rooms[lease.node].Take(held, lease.devices)) continue;
      return Fail("SC-1: node " + lease.node + " is given more than it has");
    }
    const auto& bundles = groups.at(lease.group).bundles;
    const auto at = bundles.find(static_cast<uint32_t>(lease.given));
    if (at == bundles.end()) return Fail("SC-2: " + id + " is in a bundle that is gone");
    const auto [room, is_new] = inside.try_emplace({lease.group, lease.given});
    if (is_new) {
      room->second.units = at->second.ask.units;
      for (const uint32_t device : at->second.devices) {
        room->second.devices[device] = std::min(at->second.ask.gpu, kUnit);
      }
    }
    if (room->second.Take(held, lease.devices)) continue;
    Fail("SC-1: a bundle of " + lease.group + " is given more than it has");
  }
}

void Model::CheckBatches() {
  for (const auto& [id, group] : groups) {
    std::map<uint64_t, std::pair<int, int>> counts;
    for (const auto& [number, bundle] : group.bundles) {
      auto& [placed, waits] = counts[bundle.batch];
      ++(bundle.node.empty() ? waits : placed);
    }
    for (const auto& [batch, count] : counts) {
      if (count.first > 0 && count.second > 0)
        Fail("SC-3: half of a batch of " + id + " is placed");
    }
    const bool first_waits = counts.contains(1) && counts[1].second > 0;
    if (first_waits && counts.size() > 1) Fail("SC-3: half of " + id + " is placed");
  }
  for (const uint64_t gang : met_now_) {
    if (gangs.at(gang).met) continue;
    size_t placed = 0;
    size_t members = 0;
    for (const auto& [id, lease] : leases) {
      if (lease.gang != gang) continue;
      ++members;
      placed += lease.node.empty() ? 0 : 1;
    }
    if (placed < std::min(gangs.at(gang).at_least, members)) {
      Fail("SC-3: too few of a gang were granted");
    }
  }
  for (const uint64_t gang : met_now_) gangs.at(gang).met = true;
  met_now_.clear();
}

void Model::CheckStrategies() {
  const auto check = [&](PlacementStrategy strategy, std::vector<std::string> places) {
    std::sort(places.begin(), places.end());
    const auto distinct =
        static_cast<size_t>(std::unique(places.begin(), places.end()) - places.begin());
    if (strategy == PlacementStrategy::kStrictSpread && distinct < places.size()) {
      Fail("SC-3: strictly spread, but two are on one node");
    }
    if (strategy == PlacementStrategy::kStrictPack && distinct > 1) {
      Fail("SC-3: strictly packed, but on two nodes");
    }
  };
  for (const auto& [id, group] : groups) {
    std::vector<std::string> places;
    for (const auto& [number, bundle] : group.bundles) {
      if (!bundle.node.empty()) places.push_back(bundle.node);
    }
    check(group.strategy, places);
  }
  for (const auto& [number, gang] : gangs) {
    std::vector<std::string> places;
    for (const auto& [id, lease] : leases) {
      if (lease.gang == number && !lease.node.empty()) places.push_back(lease.node);
    }
    check(gang.strategy, places);
  }
}

std::vector<Model::Promised> Model::Read(const std::vector<PromiseStatus>& list) const {
  std::vector<Promised> promised;
  for (const PromiseStatus& status : list) {
    Promised one;
    if (status.lease.empty()) {
      const ModelGroup& group = groups.at(status.group);
      one.order = {-group.priority, group.number};
    } else {
      const ModelLease& lease = leases.at(status.lease);
      one.order = lease.order();
      if (lease.gang != 0) one.order.second = gangs.at(lease.gang).number;
    }
    one.node = status.node;
    one.group = status.in_group;
    one.bundle = status.bundle;
    for (const auto& [name, units] : status.resources.units()) {
      (name == "GPU" ? one.held.gpu : one.held.units[name]) = units;
    }
    promised.push_back(std::move(one));
  }
  return promised;
}

const Model::Promised* Model::Binding(const std::string& node, const std::string& group, int bundle,
                                      std::pair<int, uint64_t> order) const {
  for (const Promised& one : promised_) {
    const bool here = group.empty() ? one.group.empty() && one.node == node
                                    : one.group == group && one.bundle == bundle;
    if (here && one.order < order) return &one;
  }
  return nullptr;
}

// Whoever was placed where a promise held before and still holds must have left what is promised.
void Model::CheckPromises(const Scheduler& scheduler) {
  const std::vector<Promised> old = std::move(promised_);
  promised_ = Read(scheduler.Promises());
  for (const Promised& one : promised_) {
    const bool kept = std::any_of(old.begin(), old.end(), [&](const Promised& before) {
      return before.order == one.order && before.node == one.node && before.bundle == one.bundle;
    });
    // With one of its nodes a promise of several is void, until it is made anew.
    const bool broken = std::any_of(old.begin(), old.end(), [&](const Promised& before) {
      return before.order == one.order && lost_now_.contains(before.node);
    });
    if (!kept || claiming || broken) continue;
    std::vector<std::pair<std::pair<int, uint64_t>, Ask>> placed;
    for (const std::string& id : granted_now_) {
      const ModelLease& lease = leases.at(id);
      const bool here = lease.group == one.group && lease.node == one.node &&
                        (one.group.empty() || lease.given == one.bundle);
      if (!here) continue;
      auto order = lease.order();
      if (lease.gang != 0) order.second = gangs.at(lease.gang).number;
      placed.emplace_back(order, lease.ask);
    }
    for (const auto& [id, number] : placed_now_) {
      const ModelGroup& group = groups.at(id);
      const ModelBundle& bundle = group.bundles.at(number);
      if (!one.group.empty() || bundle.node != one.node) continue;
      placed.emplace_back(std::pair(-group.priority, group.number), bundle.ask);
    }
    const bool by_right = std::any_of(placed.begin(), placed.end(),
                                      [&](const auto& p) { return p.first <= one.order; });
    if (by_right) continue;
    const Room left = one.group.empty() ? FreeOf(one.node)
                                        : FreeIn(groups.at(one.group), one.group,
                                                 static_cast<uint32_t>(one.bundle));
    for (const auto& [order, ask] : placed) {
      for (const auto& [name, amount] : ask.units) {
        const auto held = one.held.units.find(name);
        if (amount == 0 || held == one.held.units.end()) continue;
        if (left.units.at(name) < held->second)
          Fail("SC-5: " + name + " that is promised was taken");
      }
      const bool gpus = ask.gpu > 0 && one.held.gpu > 0;
      if (gpus && left.WholeDevices() < std::max<int64_t>(1, one.held.devices())) {
        Fail("SC-5: a GPU that is promised was taken");
      }
    }
  }
}

void Model::CheckNobodyFits(Time now) {
  if (claiming) return;
  std::map<std::string, Room> rooms;
  for (const auto& [id, node] : nodes) rooms[id] = FreeOf(id);
  const auto fits = [&](const Room& room, const Ask& ask, const Promised* bound) {
    return bound == nullptr ? room.Fits(ask) : room.FitsBeside(ask, bound->held);
  };
  std::map<uint64_t, std::vector<Ask>> waiting_gangs;
  for (const auto& [id, lease] : leases) {
    if (!lease.node.empty()) continue;
    if (lease.gang != 0) {
      waiting_gangs[lease.gang].push_back(lease.ask);
      continue;
    }
    if (lease.group.empty()) {
      for (const auto& [name, node] : nodes) {
        if (!node.Usable(now) || !node.Accepts(lease.ask)) continue;
        if (!fits(rooms[name], lease.ask, Binding(name, "", -1, lease.order()))) continue;
        Fail("SC-4: " + id + " waits though it fits node " + name);
      }
      continue;
    }
    const ModelGroup& group = groups.at(lease.group);
    for (const auto& [number, bundle] : group.bundles) {
      if (lease.bundle != kAnyBundle && lease.bundle != static_cast<int>(number)) continue;
      if (bundle.node.empty() || !nodes.at(bundle.node).Usable(now)) continue;
      const Promised* bound = Binding("", lease.group, static_cast<int>(number), lease.order());
      if (!fits(FreeIn(group, lease.group, number), lease.ask, bound)) continue;
      Fail("SC-4: " + id + " waits though it fits bundle " + std::to_string(number));
    }
  }
  if (!promised_.empty()) return;  // Counting copies knows nothing of promises.
  for (const auto& [number, asks] : waiting_gangs) {
    const ModelGang& gang = gangs.at(number);
    std::set<std::string> beside;
    for (const auto& [id, lease] : leases) {
      if (lease.gang == number && !lease.node.empty()) beside.insert(lease.node);
    }
    const bool whole = gang.strategy == PlacementStrategy::kStrictPack;
    const size_t enough = gang.met && !whole ? 1 : std::min(gang.at_least, asks.size());
    CheckBatchFits(now, rooms, "a gang", asks, gang.strategy, whole ? asks.size() : enough, beside);
  }
  for (const auto& [id, group] : groups) {
    std::map<uint64_t, std::vector<Ask>> batches;
    std::set<std::string> beside;
    for (const auto& [number, bundle] : group.bundles) {
      if (bundle.node.empty()) {
        batches[bundle.batch].push_back(bundle.ask);
      } else {
        beside.insert(bundle.node);
      }
    }
    for (const auto& [batch, asks] : batches) {
      CheckBatchFits(now, rooms, id, asks, group.strategy, asks.size(), beside);
    }
  }
}

// Exact for equal ones; others are left alone.
void Model::CheckBatchFits(Time now, const std::map<std::string, Room>& rooms,
                           const std::string& who, const std::vector<Ask>& asks,
                           PlacementStrategy strategy, size_t enough,
                           const std::set<std::string>& beside) {
  if (std::any_of(asks.begin(), asks.end(), [&](const Ask& ask) { return ask != asks[0]; })) return;
  size_t all = 0;
  size_t most = 0;
  size_t apart = 0;
  for (const auto& [id, node] : nodes) {
    if (!node.Usable(now) || !node.Accepts(asks[0])) continue;
    const size_t copies = rooms.at(id).Copies(asks[0], asks.size());
    all += copies;
    if (beside.empty() || beside.contains(id)) most = std::max(most, copies);
    apart += copies > 0 && !beside.contains(id) ? 1 : 0;
  }
  const size_t fit = strategy == PlacementStrategy::kStrictPack     ? most
                     : strategy == PlacementStrategy::kStrictSpread ? apart
                                                                    : all;
  if (fit >= enough) Fail("SC-4: " + who + " waits though it fits");
}

void Model::CheckOrder() {
  if (claiming) return;
  for (const std::string& id : granted_now_) {
    const ModelLease& granted = leases.at(id);
    if (granted.gang != 0) continue;
    for (const auto& [other, lease] : leases) {
      const bool passed = lease.node.empty() && lease.gang == 0 &&
                          lease.order() < granted.order() && lease.shape() == granted.shape();
      if (passed) Fail("SC-6: " + id + " was granted before " + other);
    }
  }
}

// Whoever comes before all others, if it is a single request.
void Model::CheckStarving(Time now) {
  if (claiming) return;
  const ModelLease* first = nullptr;
  std::pair<int, uint64_t> order{1 << 30, 0};
  for (const auto& [id, lease] : leases) {
    if (!lease.node.empty()) continue;
    auto here = lease.order();
    if (lease.gang != 0) here.second = gangs.at(lease.gang).number;
    if (here >= order) continue;
    order = here;
    first = &lease;
  }
  for (const auto& [id, group] : groups) {
    for (const auto& [number, bundle] : group.bundles) {
      const std::pair here(-group.priority, group.number);
      if (bundle.node.empty() && here < order) return;
    }
  }
  if (first == nullptr || first->gang != 0 || !first->group.empty()) return;
  if (first->since + kStarvationAfter > now) return;
  std::set<std::pair<int, uint64_t>> owners;
  for (const Promised& one : promised_) owners.insert(one.order);
  result->promises += static_cast<int>(owners.size());
  if (owners.contains(order) || owners.size() >= kSchedulerPromisesMax) return;
  std::set<std::string> held_nodes;
  for (const Promised& one : promised_) {
    if (one.group.empty()) held_nodes.insert(one.node);
  }
  for (const auto& [id, node] : nodes) {
    const bool held = held_nodes.contains(id);
    if (held || !node.Usable(now) || !node.Accepts(first->ask)) continue;
    if (node.Whole().Fits(first->ask)) Fail("SC-9: who has waited long is promised nothing");
  }
}

void Model::CheckConfirmed(Time now) {
  for (const auto& [id, lease] : leases) {
    if (lease.node.empty() || lease.confirmed || lease.since + kConfirmWithin > now) continue;
    Fail("SC-10: " + id + " is not confirmed in time and not revoked");
  }
}

void Model::CheckViews(const Scheduler& scheduler) {
  for (const NodeStatus& status : scheduler.Nodes()) {
    if (!nodes.contains(status.id)) return Fail("view: a node that is not there");
    const Room free = FreeOf(status.id);
    for (const auto& [name, amount] : nodes.at(status.id).units) {
      const auto used = status.used.units().find(name);
      const int64_t units = used == status.used.units().end() ? 0 : used->second;
      if (free.units.at(name) != amount - units)
        Fail("view: another amount of " + name + " is used");
    }
    for (const auto& [index, units] : free.devices) {
      const double shown = status.devices_free[index] * kUnit;
      if (std::llround(shown) != units) Fail("view: another share of a GPU is free");
    }
  }
  if (++checks_ % 4 != 0) return;  // Reasons are dear.
  const std::vector<LeaseStatus> list = scheduler.Leases();
  if (list.size() != leases.size()) Fail("view: another number of leases");
  for (const LeaseStatus& status : list) {
    const auto lease = leases.find(status.id);
    if (lease == leases.end()) return Fail("view: a lease that is over");
    if (lease->second.node != status.node) Fail("view: a lease is elsewhere");
    if (status.node.empty() == status.reason.empty()) Fail("view: a reason is missing");
  }
}

void Model::CheckEnd(const Scheduler& scheduler) {
  for (const NodeStatus& node : scheduler.Nodes()) {
    if (!node.used.empty() || node.leases > 0) Fail("SC-7: " + node.id + " is used by nobody");
    for (const double free : node.devices_free) {
      if (free != 1) Fail("SC-7: a GPU of " + node.id + " is used by nobody");
    }
  }
  if (!scheduler.Leases().empty() || !scheduler.Groups().empty()) Fail("SC-7: something is left");
  if (!scheduler.Promises().empty()) Fail("SC-7: something is promised to nobody");
}

}  // namespace troupe::sched::sim
