// The autoscaler's policy: how long a decision takes with 10,000 nodes, and what fleets cost that
// it holds through recorded spot markets.
//
//   decide           one Decide of 10,000 nodes in 64 pools that are whole (p50, p99, max)
//   decide_losses    one after 1,000 of them were taken back: 1,000 launches
//   decide_first     one of an empty fleet: 1,000 launches, the most at once
//   market           per recorded market and fleet: dollars per useful worker-hour and goodput;
//                    only with --traces FOLDER, or TROUPE_TRACES, laid out as in skypilot-org's
//                    spot-traces (availability/, preemption/) and uclasystem's bamboo
//
// The policy is the production object. Prints one JSON line per figure.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "autoscaler/policy.h"
#include "autoscaler/simulator/simulate.h"

namespace {

using namespace troupe;
using simulator::FleetFigures;

constexpr int kNodes = 10'000;
constexpr int kPools = 64;
constexpr int kTurns = 50;
constexpr double kSpotPrice = 0.918;  // p3.2xlarge, as its spot price was, and on demand.
constexpr double kOnDemandPrice = 3.06;

void Print(const char* name, std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  std::printf(
      "{\"bench\": \"%s\", \"n\": %zu, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f, \"unit\": "
      "\"ms\"}\n",
      name, ms.size(), ms[ms.size() / 2], ms[ms.size() * 99 / 100], ms.back());
}

FleetLimits LargeLimits() {
  FleetLimits limits;
  limits.max_workers = kNodes;
  limits.max_nodes = kNodes;
  limits.max_concurrent_launches = 1000;  // The most that a cluster file can say.
  for (int i = 0; i < kPools; ++i) {
    const std::string zone = "region-" + std::to_string(i / 4) + std::string(1, "abcd"[i % 4]);
    limits.pools.push_back({"pool-" + std::to_string(i), Market::kSpot, zone, 1, 0, kNodes,
                            0.3 + 0.0001 * static_cast<double>(i)});
  }
  return limits;
}

std::vector<FleetNode> LargeFleet(Time now) {
  std::vector<FleetNode> fleet;
  for (int i = 0; i < kNodes; ++i) {
    FleetNode node;
    node.id = "node-" + std::to_string(i);
    node.token = "token-" + std::to_string(i);
    node.pool = "pool-" + std::to_string(i % kPools);
    node.phase = NodePhase::kUp;
    node.since = now;
    fleet.push_back(std::move(node));
  }
  return fleet;
}

double Decided(AutoscalerPolicy& policy, Time now, const std::vector<FleetNode>& fleet,
               size_t actions) {
  const Time start = SteadyClock().Now();
  const Decision decision = policy.Decide(now, {kNodes}, fleet);
  const double ms = ToMilliseconds(SteadyClock().Now() - start);
  if (decision.actions.size() == actions) return ms;
  std::fprintf(stderr, "%zu actions, expected %zu: %s\n", decision.actions.size(), actions,
               decision.reason.c_str());
  std::exit(1);
}

void RunDecisions() {
  constexpr Time kNow{1'000'000'000'000};
  std::vector<double> whole;
  std::vector<double> losses;
  std::vector<double> first;
  for (int turn = 0; turn < kTurns; ++turn) {
    AutoscalerPolicy policy(LargeLimits(), "t");
    std::vector<FleetNode> fleet = LargeFleet(kNow);
    (void)Decided(policy, kNow, fleet, 0);
    whole.push_back(Decided(policy, kNow + seconds(1), fleet, 0));
    fleet.resize(kNodes - 1000);
    losses.push_back(Decided(policy, kNow + seconds(2), fleet, 1000));
  }
  for (int turn = 0; turn < 5; ++turn) {
    AutoscalerPolicy policy(LargeLimits(), "t");
    first.push_back(Decided(policy, kNow, {}, 1000));
  }
  Print("decide", std::move(whole));
  Print("decide_losses", std::move(losses));
  Print("decide_first", std::move(first));
}

struct Recorded {
  const char* name;
  std::vector<const char*> zones;
  int workers;
  const char* path;  // From the folder of traces on.
  bool named;        // By its one zone: the file has another name.
};

std::string ClusterFile(const Recorded& market, bool on_demand, bool varied) {
  std::string text = std::string("name: ") + market.name +
                     "\ntraining: {max_workers: " + std::to_string(market.workers) + "}\npools:\n";
  double price = varied ? 0.6 : kSpotPrice;
  const std::string most = ", max_workers: " + std::to_string(market.workers);
  for (const char* zone : market.zones) {
    text += std::string("  - {name: ") + zone + ", market: spot, zone: " + zone + most +
            ", price_per_hour: " + std::to_string(price) + "}\n";
    price += varied ? 0.25 : 0;
  }
  if (on_demand)
    text += "  - {name: base, market: on_demand" + most +
            ", price_per_hour: " + std::to_string(kOnDemandPrice) + "}\n";
  return text;
}

// False where the market is not there.
bool RunMarket(const std::string& traces, const Recorded& market, bool on_demand, bool varied,
               bool table) {
  const Result<ClusterConfig> config =
      ParseClusterConfig(ClusterFile(market, on_demand, varied), market.name);
  simulator::SimulateRequest request;
  const std::string path = traces + "/" + market.path;
  request.traces = {market.named ? std::string(market.zones[0]) + "=" + path : path};
  const Result<simulator::SimulationReport> report =
      config.ok() ? simulator::Simulate(*config, request) : config.error();
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.error().message.c_str());
    return false;
  }
  if (table) std::printf("%s\n", simulator::TableOf(*report).c_str());
  const FleetFigures* bound = report->Find("omniscient");
  for (const FleetFigures& fleet : report->fleets) {
    if (table) break;
    const double over =
        fleet.useful_hours > 0 ? fleet.DollarsPerUsefulHour() / bound->DollarsPerUsefulHour() : 0;
    std::printf(
        "{\"bench\": \"market\", \"market\": \"%s\", \"on_demand\": %s, \"prices\": \"%s\", "
        "\"fleet\": \"%s\", \"p50\": %.4f, \"of_bound\": %.4f, \"goodput\": %.4f, \"unit\": "
        "\"dollars/useful worker-hour\"}\n",
        market.name, on_demand ? "true" : "false", varied ? "by zone" : "one", fleet.name.c_str(),
        fleet.DollarsPerUsefulHour(), over, fleet.Goodput());
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The autoscaler's policy: speed, and what its fleets cost."};
  std::string traces;
  bool table = false;
  if (const char* folder = std::getenv("TROUPE_TRACES")) traces = folder;
  app.add_option("--traces", traces, "Folder of recorded markets; also TROUPE_TRACES");
  app.add_flag("--table", table, "Print tables of the markets, and nothing else");
  CLI11_PARSE(app, argc, argv);
  if (!table) RunDecisions();
  if (traces.empty()) return 0;
  const std::vector<Recorded> markets = {
      {"spot-16",
       {"us-east-2b", "us-west-2a", "us-west-2c"},
       16,
       "spot-traces/availability/16-node/aws-08-27-2023",
       false},
      {"spot-4",
       {"us-east-1f", "us-east-2a", "us-west-2c"},
       4,
       "spot-traces/preemption/4-node/aws-08-03-2023",
       false},
      {"spot-1",
       {"us-east-1a", "us-east-1d", "us-east-2a", "us-west-2a", "us-west-2c"},
       3,
       "spot-traces/availability/1-node/aws-02-15-2023",
       false},
      {"bamboo", {"p3"}, 32, "bamboo/p3-trace.csv", true}};
  bool all = true;
  for (const bool on_demand : {false, true}) {
    for (const bool varied : {false, true}) {
      for (const Recorded& market : markets) {
        if (varied && market.zones.size() == 1) continue;
        all = RunMarket(traces, market, on_demand, varied, table) && all;
      }
    }
  }
  return all ? 0 : 1;
}
