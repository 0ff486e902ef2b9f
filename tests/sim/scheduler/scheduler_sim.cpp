// The scenario of the scheduler simulation.
#include "tests/sim/scheduler/scheduler_sim.h"

#include <algorithm>
#include <random>

#include "tests/sim/scheduler/sim_model.h"

namespace troupe::sched::sim {
namespace {

constexpr size_t kNodesInSim = 6;
constexpr size_t kLeasesInSim = 30;
constexpr size_t kGroupsInSim = 4;
constexpr uint64_t kWaitedBatch = 999'999;  // Of bundles that waited through a restart.

class World {
 public:
  explicit World(const SimOptions& options)
      : options_(options), random_(options.seed), scheduler_(SchedulerOptionsFor(options)) {
    model_.result = &result_;
  }

  SimResult Run() {
    for (int i = 0; i < 3; ++i) AddNode();
    for (int i = 0; i < options_.events && model_.violation.empty(); ++i) {
      if (Up(2) == 0) Pass();
      Happen();
    }
    if (model_.violation.empty()) Finish();
    result_.ok = model_.violation.empty();
    result_.violation = model_.violation;
    return result_;
  }

 private:
  [[nodiscard]] bool Sabotaged(Sabotage how) const { return options_.sabotage == how; }
  int Up(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  std::string NewId(const char* kind) { return kind + std::to_string(++last_id_); }

  // One event, sometimes twice, and all checks.
  void Do(const SchedulerEvent& event, const std::set<std::string>& ends = {}) {
    Tell(event, ends);
    if (!model_.violation.empty() || Up(4) != 0) return;
    const auto before = model_.leases.size();
    const SchedulerDecision again = Tell(event, {});
    if (!again.revoked.empty() || model_.leases.size() != before) {
      model_.Fail("repeat: a repeated event had an effect");
    }
  }

  SchedulerDecision Tell(const SchedulerEvent& event, const std::set<std::string>& ends) {
    SchedulerDecision decision = scheduler_.Step(now_, event);
    Distort(decision);
    model_.Hash(decision);
    model_.Apply(now_, decision, ends);
    if (model_.violation.empty()) model_.CheckAll(now_, scheduler_);
    return decision;
  }

  void Distort(SchedulerDecision& decision) {
    for (Granted& granted : decision.granted) {
      for (DeviceShare& device : granted.devices) {
        if (Sabotaged(Sabotage::kSwapDevices)) device.index = 0;
      }
      if (Sabotaged(Sabotage::kGrantTwice) && Up(10) == 0) {
        for (const auto& [id, node] : model_.nodes) granted.node = id;
      }
    }
  }

  void Pass() {
    const Time end = now_ + milliseconds(Up(8000));
    while (scheduler_.next_wake() <= end && model_.violation.empty()) {
      now_ = std::max(now_, scheduler_.next_wake());
      Tell(Wake{}, {});
    }
    now_ = end;
    if (model_.violation.empty()) Tell(Wake{}, {});
  }

  void Happen() {
    const int dice = Up(112);
    if (dice < 5) {
      AddNode();
    } else if (dice < 9) {
      LoseNode();
    } else if (dice < 16) {
      ChangeHealth();
    } else if (dice < 44) {
      AskOne();
    } else if (dice < 49) {
      AskGang();
    } else if (dice < 62) {
      Confirm();
    } else if (dice < 79) {
      Release();
    } else if (dice < 81) {
      Cancel();
    } else if (dice < 87) {
      AddGroup();
    } else if (dice < 93) {
      ResizeOne();
    } else if (dice < 96) {
      RemoveOne();
    } else if (dice < 98) {
      Restart();
    } else if (dice < 110) {
      LendOrTakeBack();
    } else {
      Nonsense();
    }
  }

  // ---- nodes ----

  NodeUp Describe(const std::string& id) {
    const ModelNode& node = model_.nodes.at(id);
    Ask total{node.units, node.devices * kUnit, "", ""};
    if (Sabotaged(Sabotage::kMoreCpu)) total.units["CPU"] += 2 * kUnit;
    if (Sabotaged(Sabotage::kMoreDevices)) total.gpu += kUnit;
    return NodeUp{id, node.incarnation, total.ToResources(), {{"zone", node.zone}}};
  }

  void AddNode() {
    if (model_.nodes.size() >= kNodesInSim) return;
    const std::string id = "n" + std::to_string(Up(static_cast<int>(kNodesInSim)));
    if (model_.nodes.contains(id)) return;
    ModelNode node;
    node.incarnation = ++last_id_;
    node.units = {{"CPU", (1 + Up(8)) * kUnit}, {"memory", Up(3) * (10 * kUnit)}};
    if (Up(3) == 0) node.units["licence"] = (1 + Up(2)) * kUnit;
    node.devices = Up(2) == 0 ? 0 : 1 + Up(4);
    node.zone = Up(2) == 0 ? "x" : "y";
    model_.nodes[id] = node;
    Do(Describe(id));
  }

  template <class M>
  const std::string* Pick(const M& map) {
    if (map.empty()) return nullptr;
    return &std::next(map.begin(), Up(static_cast<int>(map.size())))->first;
  }

  std::set<std::string> On(const std::string& node) {
    std::set<std::string> ids;
    for (const auto& [id, lease] : model_.leases) {
      if (lease.node == node) ids.insert(id);
    }
    return ids;
  }

  void LoseNode() {
    const std::string* picked = Pick(model_.nodes);
    if (picked == nullptr) return;
    const std::string id = *picked;
    const std::set<std::string> ends = On(id);
    ModelNode old = model_.nodes.at(id);
    model_.LoseNode(id);
    if (Up(3) != 0) return Do(NodeGone{id, "power"}, ends);
    old = ModelNode{++last_id_, old.units, old.devices, old.zone, true, false, {}, 0};
    model_.nodes[id] = old;  // It is back as the next incarnation before anybody noticed.
    Do(Describe(id), ends);
  }

  void ChangeHealth() {
    const std::string* id = Pick(model_.nodes);
    if (id == nullptr) return;
    ModelNode& node = model_.nodes.at(*id);
    const bool was_alive = node.alive;
    node.alive = Up(3) != 0;
    node.draining = Up(3) == 0;
    NodeHealth health{*id, node.alive, node.draining, now_ + seconds(30)};
    if (Sabotaged(Sabotage::kForgetDrain)) health.draining = false;
    if (Sabotaged(Sabotage::kForgetAlive) && !was_alive) health.alive = false;
    Do(health);
  }

  // ---- leases and gangs ----

  Ask Draw() {
    Ask ask;
    ask.units["CPU"] = Up(5) * kUnit;
    if (Up(3) == 0) ask.units["memory"] = Up(12) * kUnit;
    if (Up(6) == 0) ask.units["licence"] = kUnit / 2;
    constexpr int64_t kGpus[] = {0, 0, 0, 2500, 3000, 5000, 10'000, 20'000};
    ask.gpu = kGpus[Up(8)];
    if (Up(4) == 0) (Up(2) == 0 ? ask.zone : ask.not_zone) = Up(2) == 0 ? "x" : "y";
    return ask;
  }

  ModelLease DrawLease() {
    ModelLease lease;
    if (!asks_.empty() && Up(2) == 0) {
      lease.ask = asks_[static_cast<size_t>(Up(static_cast<int>(asks_.size())))];
    } else {
      lease.ask = Draw();
      asks_.push_back(lease.ask);
    }
    lease.priority = Up(3) == 0 ? Up(4) - 1 : 0;
    if (Up(3) == 0) {
      lease.strategy = Up(2) == 0 ? PlacementStrategy::kSpread : PlacementStrategy::kPack;
    }
    lease.since = now_;
    return lease;
  }

  LeaseRequest Told(const ModelLease& lease, const std::string& id) {
    LeaseRequest request = lease.ToRequest(id);
    if (Sabotaged(Sabotage::kForgetLabels)) request.labels = {};
    if (Sabotaged(Sabotage::kLastFirst)) request.priority = -request.priority;
    if (Sabotaged(Sabotage::kRaisePriority) && lease.number % 3 == 0) request.priority += 5;
    return request;
  }

  void AskOne() {
    if (model_.leases.size() >= kLeasesInSim) return;
    ModelLease lease = DrawLease();
    const std::string* group = Pick(model_.groups);
    if (group != nullptr && Up(3) == 0) {
      const auto& bundles = model_.groups.at(*group).bundles;
      lease.group = *group;
      lease.strategy = PlacementStrategy::kHybrid;
      lease.ask.zone = lease.ask.not_zone = "";
      if (!bundles.empty()) {
        const auto bundle = std::next(bundles.begin(), Up(static_cast<int>(bundles.size())));
        if (Up(2) == 0) lease.bundle = static_cast<int>(bundle->first);
        if (Up(2) == 0) lease.ask = bundle->second.ask;
        lease.ask.zone = lease.ask.not_zone = "";
      }
    }
    lease.number = ++last_number_;
    const std::string id = NewId("l");
    if (!lease.group.empty() && !model_.FitsItsGroup(lease)) {
      const bool refused = !Tell(Request{Told(lease, id)}, {}).refused.empty();
      if (!refused) model_.Fail("SC-4: " + id + " waits though it can never fit its group");
      return;
    }
    model_.leases[id] = lease;
    Do(Request{Told(lease, id)});
  }

  void AskGang() {
    const auto size = 1 + static_cast<size_t>(Up(4));
    if (model_.leases.size() + size > kLeasesInSim) return;
    constexpr PlacementStrategy kAll[] = {
        PlacementStrategy::kHybrid, PlacementStrategy::kPack, PlacementStrategy::kSpread,
        PlacementStrategy::kStrictPack, PlacementStrategy::kStrictSpread};
    ModelGang gang{kAll[Up(5)], 1 + static_cast<size_t>(Up(static_cast<int>(size))), ++last_number_,
                   false};
    if (gang.strategy == PlacementStrategy::kStrictPack) gang.at_least = size;
    const uint64_t key = ++last_id_;
    RequestGang event{{}, gang.strategy, gang.at_least};
    const ModelLease first = DrawLease();
    for (size_t i = 0; i < size; ++i) {
      ModelLease lease = first;
      if (Up(6) == 0) lease.ask = Draw();
      lease.gang = key;
      lease.number = ++last_number_;
      const std::string id = NewId("g");
      model_.leases[id] = lease;
      event.leases.push_back(lease.ToRequest(id));
    }
    model_.gangs[key] = gang;
    Do(event);
  }

  void Confirm() {
    for (auto& [id, lease] : model_.leases) {
      if (lease.node.empty() || lease.confirmed || Up(3) == 0) continue;
      lease.confirmed = true;
      model_.nodes.at(lease.node).failures = 0;
      return Do(sched::Confirm{id, lease.node});
    }
  }

  void LendOrTakeBack() {
    Tell(Wake{}, {});  // What time alone grants comes before, so that it is told apart.
    const std::string* picked = Pick(model_.leases);
    if (picked == nullptr || !model_.violation.empty()) return;
    const std::string id = *picked;
    ModelLease& lease = model_.leases.at(id);
    const bool lends = !lease.lent;
    if (!lease.node.empty()) {
      lease.lent = lends;
      lease.uninvited = true;
      ++result_.lent;
      const int64_t free = model_.FreeOf(lease.node).units.at("CPU");
      if (!lends && lease.group.empty() && free < 0) ++result_.overcommitted;
    }
    if (!lends) return Do(sched::TakeBack{id});
    if (Sabotaged(Sabotage::kLendOther)) {
      for (const auto& [other, its] : model_.leases) {
        if (other != id && its.node == lease.node) return Do(sched::Lend{other});
      }
    }
    Do(sched::Lend{id});
  }

  void Release() {
    const std::string* picked = Pick(model_.leases);
    if (picked == nullptr) return;
    const std::string id = *picked;
    model_.EndLease(id);
    if (Sabotaged(Sabotage::kForgetRelease) && Up(3) == 0) return;
    Do(sched::Release{id});
  }

  void Cancel() {
    const std::string* picked = Pick(model_.leases);
    if (picked == nullptr) return;
    const std::string id = *picked;
    if (!model_.leases.at(id).confirmed) model_.EndLease(id);
    Do(sched::Cancel{id});
  }

  // ---- groups ----

  void AddGroup() {
    if (model_.groups.size() >= kGroupsInSim) return;
    constexpr PlacementStrategy kAll[] = {PlacementStrategy::kPack, PlacementStrategy::kSpread,
                                          PlacementStrategy::kStrictPack,
                                          PlacementStrategy::kStrictSpread};
    ModelGroup group;
    group.strategy = kAll[Up(4)];
    group.priority = Up(3) == 0 ? Up(4) - 1 : 0;
    group.number = ++last_number_;
    const std::string id = NewId("p");
    CreateGroup event{id, {}, group.strategy, group.priority};
    const Ask ask = Draw();
    for (int i = 1 + Up(4); i > 0; --i) AddBundle(group, Up(6) == 0 ? Draw() : ask, event.bundles);
    if (Sabotaged(Sabotage::kPackAll)) event.strategy = PlacementStrategy::kPack;
    model_.groups[id] = group;
    if (Sabotaged(Sabotage::kHalfGroups) && event.bundles.size() > 1) {
      std::vector<BundleSpec> rest(event.bundles.begin() + 1, event.bundles.end());
      event.bundles.resize(1);
      (void)scheduler_.Step(now_, event);
      return Do(ResizeGroup{id, 1, rest, {}});
    }
    Do(event);
  }

  void AddBundle(ModelGroup& group, const Ask& ask, std::vector<BundleSpec>& specs) {
    ModelBundle bundle;
    bundle.ask = ask;
    bundle.batch = group.was_placed ? 1 + group.resized : 1;
    group.bundles[group.next++] = bundle;
    specs.push_back(ToSpec(ask));
  }

  BundleSpec ToSpec(Ask ask) {
    const LabelSelector labels = ask.ToSelector();
    // Told to be smaller: so it is given more inside than it has.
    if (Sabotaged(Sabotage::kSmallBundles)) ask.units["CPU"] += kUnit;
    return {ask.ToResources(), labels};
  }

  std::set<std::string> Inside(const std::string& group, const std::set<int>& bundles, bool all) {
    std::set<std::string> ids;
    for (const auto& [id, lease] : model_.leases) {
      const bool hit = all || bundles.contains(lease.node.empty() ? lease.bundle : lease.given);
      if (lease.group == group && hit) ids.insert(id);
    }
    return ids;
  }

  void ResizeOne() {
    const std::string* id = Pick(model_.groups);
    if (id == nullptr) return;
    ModelGroup& group = model_.groups.at(*id);
    ResizeGroup event;
    event.group = *id;
    event.number = ++group.resized;
    const Ask ask = group.bundles.empty() ? Draw() : group.bundles.begin()->second.ask;
    std::set<int> removed;
    for (const auto& [number, bundle] : group.bundles) {
      if (Up(3) != 0) continue;
      event.remove.push_back(number);
      removed.insert(static_cast<int>(number));
    }
    std::set<std::string> ends = Inside(*id, removed, false);
    for (const uint32_t number : event.remove) group.bundles.erase(number);
    for (int i = Up(3); i > 0; --i) AddBundle(group, ask, event.add);
    for (const auto& [name, lease] : model_.leases) {
      if (lease.group == *id && !model_.FitsItsGroup(lease)) ends.insert(name);
    }
    Do(event, ends);
  }

  void RemoveOne() {
    const std::string* picked = Pick(model_.groups);
    if (picked == nullptr) return;
    const std::string id = *picked;
    const std::set<std::string> ends = Inside(id, {}, true);
    const SchedulerDecision decision = scheduler_.Step(now_, RemoveGroup{id});
    SchedulerDecision rest = decision;
    std::erase_if(rest.groups, [&](const GroupChange& change) { return change.group == id; });
    if (rest.groups.size() == decision.groups.size()) model_.Fail("SC-3: a removal was not told");
    model_.Hash(decision);
    // What ran inside is told to end before the group is forgotten.
    for (const std::string& lease : ends) {
      const bool told = std::any_of(rest.revoked.begin(), rest.revoked.end(),
                                    [&](const Revoked& r) { return r.lease == lease; });
      if (!told) model_.Fail("SC-7: " + lease + " outlives its group");
    }
    std::erase_if(rest.revoked, [&](const Revoked& r) { return ends.contains(r.lease); });
    for (const std::string& lease : ends) model_.EndLease(lease);
    model_.groups.erase(id);
    model_.Apply(now_, rest, {});
    if (model_.violation.empty()) model_.CheckAll(now_, scheduler_);
    if (model_.violation.empty()) Do(RemoveGroup{id});
  }

  // ---- restart ----

  // A new scheduler learns from the nodes what runs, and from the callers what waits.
  void Restart() {
    ++result_.restarts;
    scheduler_ = Scheduler(SchedulerOptionsFor(options_));
    model_.claiming = true;
    std::map<std::string, ModelLease> again;
    std::swap(again, model_.leases);
    std::map<std::string, ModelGroup> groups;
    std::swap(groups, model_.groups);
    Do(Recover{now_ + seconds(5)});
    for (auto& [id, node] : model_.nodes) {
      node.aside_until = {};
      node.failures = 0;
      Do(Describe(id));
      Do(NodeHealth{id, node.alive, node.draining, now_ + seconds(30)});
    }
    for (auto& [id, group] : groups) ClaimOne(id, group);
    for (auto& [id, lease] : again) {
      if (lease.confirmed) ClaimLease(id, lease);
    }
    model_.claiming = false;
    if (model_.violation.empty()) Do(Recover{now_});
    model_.gangs.clear();
    for (auto& [id, lease] : again) {
      if (lease.confirmed || !model_.violation.empty()) continue;
      lease.gang = 0;  // Those that had not begun are asked for one by one.
      lease.node.clear();
      lease.devices.clear();
      lease.given = kAnyBundle;
      lease.lent = lease.uninvited = false;
      lease.since = now_;
      lease.number = ++last_number_;
      model_.leases[id] = lease;
      Do(Request{Told(lease, id)});
    }
  }

  void ClaimOne(const std::string& id, ModelGroup& group) {
    ClaimGroup claim{id, {}, group.strategy, group.priority, group.resized, group.next};
    std::map<uint32_t, std::string> was;
    group.was_placed = std::any_of(group.bundles.begin(), group.bundles.end(),
                                   [](const auto& entry) { return !entry.second.node.empty(); });
    for (auto& [number, bundle] : group.bundles) {
      claim.bundles.push_back({number, ToSpec(bundle.ask), bundle.node, bundle.devices});
      was[number] = bundle.node;
      // Those that wait are one batch from now on.
      bundle.batch = !bundle.node.empty() ? 0 : group.was_placed ? kWaitedBatch : 1;
      bundle.node.clear();
      bundle.devices.clear();
    }
    group.number = ++last_number_;
    model_.groups[id] = group;
    Do(claim);
    for (const auto& [number, bundle] : model_.groups.at(id).bundles) {
      if (!was[number].empty() && bundle.node != was[number]) {
        model_.Fail("claim: a bundle is not where it was");
      }
    }
  }

  void ClaimLease(const std::string& id, ModelLease lease) {
    const Claim claim{lease.ToRequest(id), lease.node, lease.given, lease.devices};
    const ModelLease was = lease;
    lease.gang = 0;
    lease.node.clear();
    lease.devices.clear();
    lease.lent = false;
    lease.number = ++last_number_;
    model_.leases[id] = lease;
    Do(claim);
    const ModelLease& now = model_.leases.at(id);
    if (now.node != was.node || now.devices != was.devices) {
      model_.Fail("claim: " + id + " runs and was not taken over");
    }
    const std::string* other = Pick(model_.nodes);
    if (*other == was.node || !model_.violation.empty()) return;
    const SchedulerDecision twice =
        Tell(Claim{was.ToRequest(id), *other, was.given, was.devices}, {});
    if (twice.refused.empty()) model_.Fail("SC-2: " + id + " was claimed by two nodes");
  }

  // Late and foreign messages, which must change nothing.
  void Nonsense() {
    Do(sched::Release{"nobody"});
    Do(sched::Cancel{"nobody"});
    Do(sched::Lend{"nobody"});
    Do(sched::TakeBack{"nobody"});
    Do(sched::Confirm{"nobody", "n0"});
    Do(NodeGone{"nowhere", ""});
    Do(NodeHealth{"nowhere", true, false, Time::Never()});
    Do(RemoveGroup{"nothing"});
    Do(ResizeGroup{"nothing", 1, {}, {}});
    for (const auto& [id, node] : model_.nodes) {
      NodeUp old = Describe(id);
      old.incarnation = 0;
      return Do(old);
    }
  }

  // All is given back: nothing may be left.
  void Finish() {
    while (!model_.groups.empty() && model_.violation.empty()) RemoveOne();
    bool leaked = false;
    while (!model_.leases.empty() && model_.violation.empty()) {
      const std::string id = model_.leases.begin()->first;
      const bool ran = !model_.leases.at(id).node.empty();
      model_.EndLease(id);
      if (Sabotaged(Sabotage::kLeak) && ran && !leaked && model_.leases.empty()) {
        leaked = true;
        continue;
      }
      Do(sched::Release{id});
    }
    if (model_.violation.empty()) model_.CheckEnd(scheduler_);
  }

  const SimOptions options_;
  std::mt19937_64 random_;
  Scheduler scheduler_;
  Model model_;
  SimResult result_;
  Time now_{1'000'000'000};
  std::vector<Ask> asks_;
  uint64_t last_id_ = 0;
  uint64_t last_number_ = 0;
};

}  // namespace

SimResult RunSchedulerSimulation(const SimOptions& options) { return World(options).Run(); }

}  // namespace troupe::sched::sim
