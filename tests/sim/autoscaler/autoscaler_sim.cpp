#include "tests/sim/autoscaler/autoscaler_sim.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "autoscaler/fleet.h"
#include "autoscaler/node_provider.h"
#include "autoscaler/policy.h"

namespace troupe::sim {
namespace {

constexpr Time kStart{1'000'000'000'000};
constexpr Duration kTick = seconds(5);
constexpr int kFaultySteps = 150;
// Longest: a lost launch times out, the longest cool-down passes, nodes boot, idle ones drain.
constexpr int kHealedSteps = 150;
constexpr int kQuietSteps = 60;

// A cloud with so much room per pool, whose nodes need time to come up.
class FakeProvider final : public NodeProvider {
 public:
  struct Node {
    std::string token;
    std::string pool;
    Time up_at;
    bool up = false;
    bool terminating = false;
  };

  Time now = kStart;
  bool lose_replies = false;  // A launch happens, but its answer does not arrive.
  bool stuck = false;         // Nodes that are made now never come up.
  Duration boot = seconds(20);
  std::map<std::string, int> room;  // By pool.
  std::map<std::string, Node> nodes;

  Result<std::string> Launch(const std::string& token, const std::string& pool) override {
    for (const auto& [id, node] : nodes) {
      if (node.token == token) return id;
    }
    const auto held = std::count_if(nodes.begin(), nodes.end(),
                                    [&](const auto& entry) { return entry.second.pool == pool; });
    if (held >= room[pool]) return Error{ErrorCode::kResourceExhausted, "no capacity"};
    const std::string id = pool + "-" + std::to_string(++launches_);
    nodes[id] = Node{token, pool, stuck ? Time::Never() : now + boot};
    if (lose_replies) return Error{ErrorCode::kDeadlineExceeded, "no answer"};
    return id;
  }
  Status Terminate(const std::string& id) override {
    const auto found = nodes.find(id);
    if (found != nodes.end()) found->second.terminating = true;
    return Status::Ok();
  }
  Result<std::vector<ProviderNode>> List() override {
    std::vector<ProviderNode> listed;
    for (const auto& [id, node] : nodes) {
      listed.push_back({id, node.token, node.pool, node.terminating, ""});
    }
    return listed;
  }

 private:
  int launches_ = 0;
};

class World {
 public:
  explicit World(unsigned seed) : random_(seed), limits_(DrawLimits()), policy_(limits_, "s") {
    for (const PoolLimits& pool : limits_.pools) provider_.room[pool.name] = Up(12);
  }

  std::string Run(size_t* failures) {
    for (int step = 0; step < kFaultySteps; ++step) Turn(true);
    Heal();
    for (int step = 0; step < kHealedSteps; ++step) Turn(false);
    if (violation_.empty()) CheckConverged();
    const size_t before = changes_;
    for (int step = 0; step < kQuietSteps; ++step) Turn(false);
    // Where some pools refuse, they are asked now and then; nothing else may happen.
    if (limits_.budget_per_hour == 0) Check(changes_ == before, "AP-6 a whole fleet is changed");
    if (failures != nullptr) *failures += failures_;
    return violation_;
  }

 private:
  void Check(bool holds, const std::string& what) {
    if (!holds && violation_.empty()) violation_ = what + "; " + last_reason_;
  }

  void Turn(bool faults) {
    if (!violation_.empty()) return;
    provider_.now = provider_.now + kTick;
    if (faults) Disturb();
    Advance();
    Step();
    // Launches of one decision are under way together; the cool-down holds from the next one.
    for (const std::string& pool : failed_now_)
      cool_until_[pool] = provider_.now + limits_.cooldown;
    failed_now_.clear();
  }

  // Room comes back everywhere, or in one pool only.
  void Heal() {
    provider_.lose_replies = false;
    provider_.boot = seconds(20);
    provider_.stuck = false;
    const int only = Up(3) == 0 ? Up(static_cast<int>(limits_.pools.size())) : -1;
    everywhere_ = only < 0;
    for (size_t i = 0; i < limits_.pools.size(); ++i)
      provider_.room[limits_.pools[i].name] = everywhere_ || static_cast<int>(i) == only ? 100 : 0;
    for (auto it = provider_.nodes.begin(); it != provider_.nodes.end();)
      it = provider_.room[it->second.pool] == 0 ? provider_.nodes.erase(it) : std::next(it);
    for (const FleetNode& node : fleet_.nodes()) fleet_.SetAtRisk(node.id, false);
    demand_ = Up(limits_.max_workers + 3);
  }

  // With capacity and no faults, the fleet is what the demand and the limits say.
  void CheckConverged() {
    // There a node may have to make room for one that is refused.
    if (limits_.budget_per_hour > 0) return;
    const int target = std::clamp(demand_, limits_.min_workers, limits_.max_workers);
    int up = 0;
    int on_demand = 0;
    for (const auto& [id, node] : provider_.nodes) {
      const bool serves = node.up && !node.terminating && !drained_.contains(id);
      Check(serves, "AP-7 a node that does not serve is left");
      up += serves ? 1 : 0;
      on_demand += serves && PoolOf(node.pool).market == Market::kOnDemand ? 1 : 0;
    }
    Check(launches_ > 0, "nothing was launched");
    int minima = 0;
    for (const PoolLimits& pool : limits_.pools) minima += pool.min_workers;
    Check(up >= limits_.min_workers, "AP-5 the floor is not held");
    // Pool minima can hold more than the target, and which pools the target fell into depends on
    // history.
    Check(up <= std::min(target + minima, limits_.max_workers), "more than is wanted is up");
    if (!everywhere_ || limits_.max_fraction_per_zone < 1) return;
    Check(up >= target, "less than is wanted is up");
    // Where there is room to change a node without going below the minimum, on-demand is back at
    // its share.
    if (HasSpot() && limits_.max_workers > limits_.min_workers)
      Check(on_demand <= std::min(target, limits_.on_demand_base) + minima, "on-demand stays");
  }

  [[nodiscard]] const PoolLimits& PoolOf(const std::string& name) const {
    return *std::find_if(limits_.pools.begin(), limits_.pools.end(),
                         [&](const PoolLimits& pool) { return pool.name == name; });
  }
  [[nodiscard]] bool HasSpot() const {
    return std::any_of(limits_.pools.begin(), limits_.pools.end(),
                       [](const PoolLimits& pool) { return pool.market == Market::kSpot; });
  }
  // A cheaper spot pool might take its place.
  [[nodiscard]] bool MayBeReplaced(const FleetNode& node) const {
    const PoolLimits& own = PoolOf(node.pool);
    if (hinted_.contains(node.id) && own.market == Market::kSpot) return true;
    return std::any_of(limits_.pools.begin(), limits_.pools.end(), [&](const PoolLimits& pool) {
      return pool.market == Market::kSpot &&
             (own.market == Market::kOnDemand || pool.price_per_hour < own.price_per_hour);
    });
  }
  int Up(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  FleetLimits DrawLimits() {
    FleetLimits limits;
    limits.min_workers = 1 + Up(3);
    limits.max_workers = limits.min_workers + Up(6);
    limits.max_nodes = limits.max_workers + 1 + Up(3);
    limits.max_concurrent_launches = 1 + Up(8);
    limits.idle_timeout = seconds(30);
    limits.launch_timeout = seconds(120);
    limits.drain_timeout = seconds(60);
    limits.cooldown = seconds(30);
    limits.cooldown_max = seconds(240);
    limits.fallback_after = seconds(60);
    for (int i = 0; i < 1 + Up(3); ++i) {
      const Market market = Up(3) == 0 ? Market::kOnDemand : Market::kSpot;
      limits.pools.push_back({"p" + std::to_string(i), market, "zone" + std::to_string(i % 2), 1, 0,
                              limits.max_workers, 0.1 * (1 + Up(9))});
    }
    if (Up(2) == 0) limits.pools[0].min_workers = 1;
    if (Up(4) == 0) {  // Without prices.
      for (PoolLimits& pool : limits.pools) pool.price_per_hour = 0;
    }
    limits.on_demand_base = Up(3);
    if (Up(3) == 0) limits.max_fraction_per_zone = 0.5;
    if (Up(4) == 0) limits.budget_per_hour = 1 + Up(3);
    if (Up(4) == 0) limits.rebuild_time = seconds(1 + Up(60));
    return limits;
  }

  void Disturb() {
    if (Up(10) == 0) demand_ = Up(limits_.max_workers + 4);
    if (Up(15) == 0) provider_.lose_replies = !provider_.lose_replies;
    if (Up(15) == 0) provider_.boot = seconds(5 + Up(200));
    provider_.stuck = Up(25) == 0;
    if (Up(10) == 0) provider_.room["p" + std::to_string(Up(3))] = Up(8);
    for (auto it = provider_.nodes.begin(); it != provider_.nodes.end();) {
      const int fate = Up(60);
      if (fate == 1) fleet_.Noticed(it->first, provider_.now + seconds(30));
      if (fate < 5) fleet_.SetAtRisk(it->first, fate < 4);
      if (fate < 4) hinted_.insert(it->first);
      it = fate == 0 ? provider_.nodes.erase(it) : std::next(it);
    }
  }

  // Nodes boot, work as far as there is demand, and end when they were told to.
  void Advance() {
    std::erase_if(provider_.nodes, [](const auto& entry) { return entry.second.terminating; });
    const auto listed = provider_.List();
    fleet_.Update(provider_.now, *listed);
    int work = demand_;
    for (auto& [id, node] : provider_.nodes) {
      if (node.up_at > provider_.now) continue;
      node.up = true;
      fleet_.NodeUp(provider_.now, id);
      const bool draining = drained_.contains(id);
      fleet_.SetIdle(provider_.now, id, draining || work <= 0);
      if (!draining) --work;
    }
  }

  void Step() {
    before_ = fleet_.nodes();
    by_id_.clear();
    staying_ = 0;
    up_ = 0;
    int replaced = 0;
    zones_.clear();
    replaced_.clear();
    dollars_ = 0;
    for (const FleetNode& node : before_) {
      by_id_[node.id] = node;
      const bool stays = node.phase <= NodePhase::kUp && node.notice_deadline == Time::Never();
      dollars_ += PoolOf(node.pool).price_per_hour;
      if (!stays) continue;
      ++staying_;
      if (PoolOf(node.pool).market == Market::kSpot) ++zones_[PoolOf(node.pool).zone];
      up_ += node.phase == NodePhase::kUp ? 1 : 0;
      if (node.phase != NodePhase::kUp || !MayBeReplaced(node)) continue;
      ++replaced;
      if (PoolOf(node.pool).market == Market::kSpot) ++replaced_[PoolOf(node.pool).zone];
    }
    const Decision decision = policy_.Decide(provider_.now, {demand_}, before_);
    last_reason_ = decision.reason;
    whole_ = up_ >= std::clamp(demand_, limits_.min_workers, limits_.max_workers);
    // What was decided first holds first: a drain makes room for the launches behind it.
    int launches = 0;
    for (const Action& action : decision.actions) {
      Check(!action.reason.empty(), "an action without a reason");
      if (const auto* launch = std::get_if<Launch>(&action.what)) {
        ++launches;
        CarryOut(*launch);
      } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
        CarryOut(*drain);
      } else {
        CarryOut(std::get<Terminate>(action.what));
      }
    }
    if (launches == 0) return;
    Check(static_cast<int>(before_.size()) + launches <= limits_.max_nodes, "AP-1 max_nodes");
    Check(staying_ - replaced <= limits_.max_workers, "AP-1 max_workers");
    Check(limits_.budget_per_hour == 0 || dollars_ <= limits_.budget_per_hour + 1e-9,
          "AP-1 budget_per_hour");
  }

  void CarryOut(const Terminate& terminate) {
    const FleetNode& node = by_id_.at(terminate.node);
    const bool overdue =
        node.phase == NodePhase::kLaunching && provider_.now - node.since >= limits_.launch_timeout;
    Check(overdue || node.phase == NodePhase::kDraining, "AP-3 a node is ended that works");
    if (overdue && node.notice_deadline == Time::Never()) Leaves(node);
    Check(provider_.Terminate(node.id).ok(), "the provider");
    fleet_.Terminating(provider_.now, node.id);
  }

  void CarryOut(const Drain& drain) {
    const FleetNode& node = by_id_.at(drain.node);
    const bool idle =
        node.idle_since != Time::Never() && provider_.now - node.idle_since >= limits_.idle_timeout;
    const bool surplus = PoolOf(node.pool).market == Market::kOnDemand && HasSpot() && whole_;
    const bool dear = std::any_of(before_.begin(), before_.end(), [&](const FleetNode& other) {
      const PoolLimits& pool = PoolOf(other.pool);
      const bool came = other.idle_since != Time::Never() || up_ > limits_.max_workers;
      return whole_ && other.phase == NodePhase::kUp && came && pool.market == Market::kSpot &&
             (pool.price_per_hour < PoolOf(node.pool).price_per_hour ||
              (hinted_.contains(node.id) && !other.at_risk));
    });
    const bool noticed = node.notice_deadline != Time::Never();
    Check(idle || noticed || surplus || dear, "AP-3 a node is drained that works");
    if (!noticed) {
      Leaves(node);
      ++changes_;
    }
    drained_.insert(drain.node);
    fleet_.Draining(provider_.now, drain.node);
  }

  // Its place is free at once.
  void Leaves(const FleetNode& node) {
    --staying_;
    if (PoolOf(node.pool).market == Market::kSpot) --zones_[PoolOf(node.pool).zone];
  }

  void CarryOut(const Launch& launch) {
    ++launches_;
    const PoolLimits& pool = PoolOf(launch.pool);
    Check(tokens_.insert(launch.token).second, "AP-4 a token is used again");
    const auto cooled = cool_until_.find(launch.pool);
    Check(cooled == cool_until_.end() || provider_.now >= cooled->second,
          "AP-2 launched before the cool-down is over");
    const int target = std::clamp(demand_, limits_.min_workers, limits_.max_workers);
    const int share = static_cast<int>(std::ceil(limits_.max_fraction_per_zone * target));
    const bool within = pool.market == Market::kOnDemand || staying_ < limits_.min_workers ||
                        zones_[pool.zone] + 1 - replaced_[pool.zone] <= std::max(1, share);
    Check(within, "AP-5 a zone holds more than its share");
    ++staying_;
    dollars_ += pool.price_per_hour;
    if (pool.market == Market::kSpot) ++zones_[pool.zone];
    const Result<std::string> node = provider_.Launch(launch.token, launch.pool);
    if (node.ok()) {
      ++changes_;
      return;
    }
    // A lost answer is not a refusal: the node may exist, and the token goes on counting.
    if (node.error().code == ErrorCode::kDeadlineExceeded) return;
    ++failures_;
    policy_.LaunchFailed(provider_.now, launch.token, node.error().message,
                         LaunchIsRetriable(node.error().code));
    failed_now_.push_back(launch.pool);
  }

  std::mt19937 random_;
  const FleetLimits limits_;
  AutoscalerPolicy policy_;
  FakeProvider provider_;
  Fleet fleet_;
  int demand_ = 0;
  bool everywhere_ = true;
  std::string violation_;
  // Of this step.
  std::vector<FleetNode> before_;
  std::map<std::string, FleetNode> by_id_;
  std::map<std::string, int> zones_;     // Spot nodes that stay.
  std::map<std::string, int> replaced_;  // Of those, what cheaper ones might replace.
  int staying_ = 0;
  int up_ = 0;
  double dollars_ = 0;
  bool whole_ = false;

  std::set<std::string> drained_;
  std::set<std::string> hinted_;  // Nodes that were said to be at risk, though it be over.
  std::set<std::string> tokens_;
  std::map<std::string, Time> cool_until_;
  std::vector<std::string> failed_now_;
  std::string last_reason_;
  size_t launches_ = 0;
  size_t changes_ = 0;  // Launches that succeeded, and drains without notice.
  size_t failures_ = 0;
};

}  // namespace

std::string RunAutoscalerSim(unsigned seed, size_t* failures) { return World(seed).Run(failures); }

}  // namespace troupe::sim
