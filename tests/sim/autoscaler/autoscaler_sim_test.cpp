// The autoscaler under a simulated provider: random demand, failing and slow launches, lost
// replies, notices and sudden deaths, by seed. Invariants are checked after every decision; when
// the faults stop, the fleet must converge.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "autoscaler/fleet.h"
#include "autoscaler/node_provider.h"
#include "autoscaler/policy.h"

namespace troupe {
namespace {

constexpr Time kStart{1'000'000'000'000};
constexpr Duration kTick = seconds(5);
constexpr unsigned kSeeds = 1500;

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
    nodes[id] = Node{token, pool, now + boot};
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

  void Run(int steps, bool faults) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      provider_.now = provider_.now + kTick;
      if (faults) Disturb();
      Advance();
      Step();
    }
  }

  void Heal() {
    provider_.lose_replies = false;
    provider_.boot = seconds(20);
    for (const PoolLimits& pool : limits_.pools) provider_.room[pool.name] = 100;
    demand_ = Up(limits_.max_workers + 3);
  }

  // With capacity everywhere and no faults, the fleet is what the demand and the limits say.
  void ExpectConverged() const {
    const int target = std::clamp(demand_, limits_.min_workers, limits_.max_workers);
    int up = 0;
    int on_demand = 0;
    for (const auto& [id, node] : provider_.nodes) {
      const bool serves = node.up && !node.terminating;
      up += serves ? 1 : 0;
      on_demand += serves && MarketOf(node.pool) == Market::kOnDemand ? 1 : 0;
    }
    int minima = 0;
    for (const PoolLimits& pool : limits_.pools) minima += pool.min_workers;
    // Pool minima can hold more than the target, and which pools the target fell into depends on
    // history.
    EXPECT_GE(up, target) << last_reason_;
    EXPECT_LE(up, std::min(target + minima, limits_.max_workers)) << last_reason_;
    EXPECT_GT(launches_, 0u);
    // Where there is room to change a node without going below the minimum, on-demand is back at
    // its share.
    const bool can_return = HasSpot() && limits_.max_workers > limits_.min_workers;
    if (can_return) {
      EXPECT_LE(on_demand, std::min(target, limits_.on_demand_base) + minima) << last_reason_;
    }
  }

  [[nodiscard]] size_t failures() const { return failures_; }

 private:
  [[nodiscard]] Market MarketOf(const std::string& name) const {
    const auto found = std::find_if(limits_.pools.begin(), limits_.pools.end(),
                                    [&](const PoolLimits& pool) { return pool.name == name; });
    return found->market;
  }
  [[nodiscard]] bool HasSpot() const {
    return std::any_of(limits_.pools.begin(), limits_.pools.end(),
                       [](const PoolLimits& pool) { return pool.market == Market::kSpot; });
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
      limits.pools.push_back(
          {"p" + std::to_string(i), market, "", 1, 0, limits.max_workers, 0.1 * (1 + Up(9))});
    }
    if (Up(2) == 0) limits.pools[0].min_workers = 1;
    limits.on_demand_base = Up(3);
    return limits;
  }

  void Disturb() {
    if (Up(10) == 0) demand_ = Up(limits_.max_workers + 4);
    if (Up(15) == 0) provider_.lose_replies = !provider_.lose_replies;
    if (Up(15) == 0) provider_.boot = seconds(5 + Up(200));
    if (Up(10) == 0) provider_.room["p" + std::to_string(Up(3))] = Up(8);
    for (auto it = provider_.nodes.begin(); it != provider_.nodes.end();) {
      const int fate = Up(60);
      if (fate == 1) fleet_.Noticed(it->first, provider_.now + seconds(30));
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
    const std::vector<FleetNode> before = fleet_.nodes();
    const Decision decision = policy_.Decide(provider_.now, {demand_}, before);
    last_reason_ = decision.reason;
    int launches = 0;
    int staying = 0;
    int up = 0;
    std::map<std::string, FleetNode> by_id;
    for (const FleetNode& node : before) {
      by_id[node.id] = node;
      up += node.phase == NodePhase::kUp && node.notice_deadline == Time::Never() ? 1 : 0;
      staying += node.phase <= NodePhase::kUp && node.notice_deadline == Time::Never() ? 1 : 0;
    }
    const bool whole = up >= std::clamp(demand_, limits_.min_workers, limits_.max_workers);
    const bool has_spot = HasSpot();
    for (const Action& action : decision.actions) {
      ASSERT_FALSE(action.reason.empty());
      if (const auto* launch = std::get_if<Launch>(&action.what)) {
        ++launches;
        CarryOut(*launch);
      } else if (const auto* drain = std::get_if<Drain>(&action.what)) {
        const FleetNode& node = by_id.at(drain->node);
        const bool idle = node.idle_since != Time::Never() &&
                          provider_.now - node.idle_since >= limits_.idle_timeout;
        const bool surplus = MarketOf(node.pool) == Market::kOnDemand && has_spot && whole;
        ASSERT_TRUE(idle || node.notice_deadline != Time::Never() || surplus) << "AP-3";
        staying -= node.notice_deadline == Time::Never() ? 1 : 0;  // Its place is free at once.
        drained_.insert(drain->node);
        fleet_.Draining(provider_.now, drain->node);
      } else {
        const FleetNode& node = by_id.at(std::get<Terminate>(action.what).node);
        const bool overdue = node.phase == NodePhase::kLaunching &&
                             provider_.now - node.since >= limits_.launch_timeout;
        ASSERT_TRUE(overdue || node.phase == NodePhase::kDraining) << "AP-3";
        // A node that is given up makes room for its replacement at once.
        staying -= overdue && node.notice_deadline == Time::Never() ? 1 : 0;
        ASSERT_TRUE(provider_.Terminate(node.id).ok());
        fleet_.Terminating(provider_.now, node.id);
      }
    }
    if (launches == 0) return;
    ASSERT_LE(static_cast<int>(before.size()) + launches, limits_.max_nodes) << "AP-1";
    ASSERT_LE(staying + launches, limits_.max_workers) << "AP-1";
  }

  void CarryOut(const Launch& launch) {
    ++launches_;
    ASSERT_TRUE(tokens_.insert(launch.token).second) << "AP-4";
    const auto cooled = cool_until_.find(launch.pool);
    if (cooled != cool_until_.end()) {
      ASSERT_GE(provider_.now, cooled->second) << "AP-2: launched again before the cool-down";
    }
    const Result<std::string> node = provider_.Launch(launch.token, launch.pool);
    if (node.ok()) return;
    // A lost answer is not a refusal: the node may exist, and the token goes on counting.
    if (node.error().code == ErrorCode::kDeadlineExceeded) return;
    ++failures_;
    policy_.LaunchFailed(provider_.now, launch.token, node.error().message,
                         LaunchIsRetriable(node.error().code));
    // Launches of the same decision are under way already; the cool-down holds from the next one.
    failed_now_.push_back(launch.pool);
  }

 public:
  // Called between decisions, so that AP-2 is checked against earlier failures only.
  void SettleFailures() {
    for (const std::string& pool : failed_now_) {
      cool_until_[pool] = provider_.now + limits_.cooldown;
    }
    failed_now_.clear();
  }

 private:
  std::mt19937 random_;
  const FleetLimits limits_;
  AutoscalerPolicy policy_;
  FakeProvider provider_;
  Fleet fleet_;
  int demand_ = 0;
  std::set<std::string> drained_;
  std::set<std::string> tokens_;
  std::map<std::string, Time> cool_until_;
  std::vector<std::string> failed_now_;
  std::string last_reason_;
  size_t launches_ = 0;
  size_t failures_ = 0;
};

TEST(AutoscalerSimTest, LimitsHoldUnderFaultsAndTheFleetConvergesAfterThem) {
  size_t failures = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    for (int step = 0; step < 150; ++step) {
      world.Run(1, true);
      world.SettleFailures();
    }
    world.Heal();
    // Longest: a lost launch times out, the longest cool-down passes, nodes boot, idle ones drain.
    for (int step = 0; step < 150; ++step) {
      world.Run(1, false);
      world.SettleFailures();
    }
    world.ExpectConverged();
    failures += world.failures();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failures, kSeeds);  // The faults do happen.
}

}  // namespace
}  // namespace troupe
