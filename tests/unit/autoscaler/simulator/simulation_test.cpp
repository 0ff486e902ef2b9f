// Simulated fleets against figures that can be reckoned by hand.
#include "autoscaler/simulator/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "autoscaler/simulator/references.h"
#include "autoscaler/simulator/report.h"
#include "autoscaler/simulator/simulate.h"
#include "autoscaler/simulator/synthetic_market.h"

namespace troupe::simulator {
namespace {

using ::testing::HasSubstr;

constexpr Duration kHour = seconds(3600);

PoolLimits Pool(const std::string& name, double price, Market market = Market::kSpot) {
  return {name, market, name, 1, 0, 8, price};
}

FleetLimits LimitsOf(std::vector<PoolLimits> pools, int max_workers) {
  FleetLimits limits;
  limits.pools = std::move(pools);
  limits.min_workers = 1;
  limits.max_workers = max_workers;
  limits.max_nodes = max_workers + 2;
  return limits;
}

SimulationOptions OptionsOf(const FleetLimits& limits) {
  SimulationOptions options;
  options.training.min_workers = limits.min_workers;
  options.training.max_workers = limits.max_workers;
  options.training.rebuild = seconds(10);
  options.boot = seconds(60);
  return options;
}

// Hours of offers: {{0, 4}, {5, 0}} is four nodes for five hours and then none.
OfferHistory Offers(const std::vector<std::pair<int, int>>& hours, double price) {
  OfferHistory history;
  for (const auto& [hour, nodes] : hours) history.push_back({hour * kHour, nodes, price});
  return history;
}

TEST(SimulationTest, AQuietMarketIsPaidFromTheLaunchAndUsefulFromTheRebuild) {
  const FleetLimits limits = LimitsOf({Pool("a", 0.5)}, 4);
  MarketHistory market{10 * kHour, {{"a", Offers({{0, 8}}, 0.5)}}};
  const FleetFigures figures = RunPolicy(limits, market, OptionsOf(limits)).figures;
  EXPECT_NEAR(figures.dollars, 4 * 0.5 * 10, 1e-6);
  EXPECT_NEAR(figures.useful_hours, 4 * (10 - 70.0 / 3600), 1e-6);
  EXPECT_NEAR(figures.hours_below_min, 60.0 / 3600, 1e-6);
  EXPECT_EQ(figures.launches, 4);
  EXPECT_EQ(figures.decisions, 1);
  EXPECT_EQ(figures.preemptions, 0);
}

TEST(SimulationTest, AFallTakesTheNodesTogetherAndTheyAreReplacedElsewhere) {
  const FleetLimits limits = LimitsOf({Pool("a", 0.5), Pool("b", 0.7)}, 4);
  MarketHistory market{10 * kHour,
                       {{"a", Offers({{0, 8}, {5, 0}}, 0.5)}, {"b", Offers({{0, 8}}, 0.7)}}};
  const FleetFigures figures = RunPolicy(limits, market, OptionsOf(limits)).figures;
  EXPECT_EQ(figures.preemptions, 4);
  EXPECT_NEAR(figures.dollars, 4 * 5 * (0.5 + 0.7), 0.02);
  EXPECT_NEAR(figures.useful_hours, 4 * (10 - 2 * 70.0 / 3600), 0.01);
}

TEST(SimulationTest, APoolThatBecomesDearIsLeftAndReturnedTo) {
  const FleetLimits limits = LimitsOf({Pool("a", 0.5), Pool("b", 0.7)}, 4);
  OfferHistory a;
  for (const auto& [hour, price] : {std::pair(0, 0.5), std::pair(20, 2.0), std::pair(40, 0.3)})
    a.push_back({hour * kHour, 8, price});
  MarketHistory market{60 * kHour, {{"a", a}, {"b", Offers({{0, 8}}, 0.7)}}};
  const SimulatedFleet fleet = RunPolicy(limits, market, OptionsOf(limits));
  // Four at 0.5, at 0.7 and at 0.3, and a while of both when they move.
  EXPECT_NEAR(fleet.figures.dollars, 4 * 20 * (0.5 + 0.7 + 0.3), 2);
  EXPECT_EQ(fleet.figures.preemptions, 0);
  const std::vector<double>& held = fleet.held.at("a");
  EXPECT_NEAR(held.at(held.size() / 2), 0, 1e-9);
  EXPECT_NEAR(held.back(), 4, 1e-9);
}

TEST(SimulationTest, WorkIsLostByLossesWithoutNoticeOnly) {
  const FleetLimits limits = LimitsOf({Pool("a", 0.5), Pool("b", 0.7)}, 4);
  MarketHistory market{10 * kHour,
                       {{"a", Offers({{0, 2}, {5, 0}}, 0.5)}, {"b", Offers({{0, 8}}, 0.7)}}};
  SimulationOptions options = OptionsOf(limits);
  const auto useful = [&] { return RunPolicy(limits, market, options).figures.useful_hours; };
  const double nothing_lost = useful();
  options.training.lost = seconds(600);
  const double abrupt = useful();
  options.notice = seconds(120);
  const double noticed = useful();
  // Two of four are lost. Ten minutes are done again, by two until the others come, then by four.
  EXPECT_NEAR(nothing_lost - abrupt, (2 * 60 + 4 * 540) / 3600.0, 0.05);
  EXPECT_NEAR(noticed, nothing_lost, 0.05);
}

TEST(SimulationTest, DearerNodesAreLeftWhenTheCheapOnesAreBack) {
  const FleetLimits limits = LimitsOf({Pool("spot", 0.3), Pool("base", 1.0, Market::kOnDemand)}, 4);
  MarketHistory market{20 * kHour, {{"spot", Offers({{0, 0}, {10, 8}}, 0.3)}}};
  const FleetFigures figures = RunPolicy(limits, market, OptionsOf(limits)).figures;
  // Ten hours each, but for the fallback's wait, the way back and what overlaps.
  EXPECT_NEAR(figures.dollars, 4 * 10 * (1.0 + 0.3), 2.5);
  EXPECT_GT(figures.Goodput(), 0.98);
  EXPECT_LE(figures.most_nodes, limits.max_nodes);
}

TEST(SimulationTest, LargerWorldsScaleLess) {
  TrainingModel model;
  model.scaling_loss = 0.1;
  EXPECT_DOUBLE_EQ(model.UsefulOf(1), 1);
  EXPECT_DOUBLE_EQ(model.UsefulOf(11), 5.5);
}

TEST(ReferencesTest, AreWhatTheyAreCalled) {
  const FleetLimits limits =
      LimitsOf({Pool("a", 0.5), Pool("b", 0.4), Pool("base", 2.0, Market::kOnDemand)}, 4);
  MarketHistory market{10 * kHour,
                       {{"a", Offers({{0, 4}, {6, 0}}, 0.5)}, {"b", Offers({{0, 2}}, 0.4)}}};
  SimulationOptions options = OptionsOf(limits);
  const auto on_demand = OnDemandFleet(limits.pools, market, options);
  ASSERT_TRUE(on_demand.has_value());
  EXPECT_DOUBLE_EQ(on_demand->dollars, 80);
  EXPECT_DOUBLE_EQ(on_demand->Goodput(), 1);
  // Six hours of a; b never holds the whole group.
  const auto one_zone = OneZoneFleet(limits.pools, market, options, seconds(240));
  ASSERT_TRUE(one_zone.has_value());
  EXPECT_DOUBLE_EQ(one_zone->dollars, 12);
  EXPECT_NEAR(one_zone->useful_hours, 4 * (6 - 300.0 / 3600), 1e-9);
  EXPECT_EQ(one_zone->preemptions, 4);
  // The cheapest at each instant: 2 b and 2 a, then 2 b and 2 on demand.
  const FleetFigures bound = OmniscientFleet(limits.pools, market, options);
  EXPECT_NEAR(bound.dollars, 6 * (2 * 0.4 + 2 * 0.5) + 4 * (2 * 0.4 + 2 * 2.0), 1e-9);
  EXPECT_DOUBLE_EQ(bound.Goodput(), 1);
  // Only spot: four, then two.
  const FleetFigures greedy = GreedyFleet(limits, market, options);
  EXPECT_NEAR(greedy.useful_hours, 4 * 6 + 2 * 4, 0.2);
}

TEST(SyntheticMarketTest, IsOfItsSeedAndFailsByRegion) {
  const std::vector<PoolLimits> pools = {Pool("us-east-1a", 0.5), Pool("us-east-1b", 0.5),
                                         Pool("us-west-2a", 0.5)};
  SyntheticOptions options;
  options.seed = 3;
  options.length = 2000 * kHour;
  const MarketHistory market = MakeMarket(options, pools);
  EXPECT_EQ(MakeMarket(options, pools).Changes(), market.Changes());
  options.seed = 4;
  EXPECT_NE(MakeMarket(options, pools).Changes(), market.Changes());
  const auto out = [&](const std::string& pool, int hour) {
    return OfferAt(market.pools.at(pool), hour * kHour).nodes == 0;
  };
  int a = 0;
  int same = 0;
  int other = 0;
  for (int hour = 0; hour < 2000; ++hour) {
    if (!out("us-east-1a", hour)) continue;
    ++a;
    same += out("us-east-1b", hour) ? 1 : 0;
    other += out("us-west-2a", hour) ? 1 : 0;
  }
  EXPECT_GT(a, 100);
  EXPECT_LT(a, 700);
  EXPECT_GT(same, other + a / 10);  // A region fails as a whole, part of the time.
}

TEST(SimulationTest, LimitsHoldThroughAMonth) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    FleetLimits limits = LimitsOf(
        {Pool("us-east-1a", 0.3), Pool("us-west-2a", 0.4), Pool("base", 1.0, Market::kOnDemand)},
        6);
    limits.budget_per_hour = 4;
    SyntheticOptions market_options;
    market_options.seed = seed;
    const MarketHistory market = MakeMarket(market_options, limits.pools);
    const SimulatedFleet fleet = RunPolicy(limits, market, OptionsOf(limits));
    EXPECT_LE(fleet.figures.most_nodes, limits.max_nodes);
    EXPECT_LE(fleet.figures.most_dollars_per_hour, limits.budget_per_hour + 1e-9);
    EXPECT_GT(fleet.figures.preemptions, 10);
    double held = 0;
    double paid = 0;
    for (const auto& [pool, parts] : fleet.held) {
      const double mean = std::accumulate(parts.begin(), parts.end(), 0.0) / kPlotPoints;
      held += mean;
      paid += mean * (pool == "base" ? 1.0 : pool == "us-east-1a" ? 0.3 : 0.4);
    }
    EXPECT_GT(held, 3);
    // What is drawn is what is paid.
    EXPECT_NEAR(paid * fleet.figures.hours, fleet.figures.dollars, fleet.figures.dollars * 1e-6);
  }
}

class SimulateTest : public ::testing::Test {
 protected:
  static SimulationReport Report(const SimulateRequest& request) {
    const Result<SimulationReport> report = Simulate(Config(), request);
    EXPECT_TRUE(report.ok()) << report.error().message;
    return *report;
  }
  static ClusterConfig Config() {
    return *ParseClusterConfig(R"(
name: demo
training: {max_workers: 4}
pools:
  - {name: a, market: spot, zone: z-1a, max_workers: 4, price_per_hour: 0.3}
  - {name: "b", market: spot, zone: z-2a, max_workers: 4, price_per_hour: 0.3}
  - {name: base, market: on_demand, max_workers: 4, price_per_hour: 1.0}
)",
                               "demo.yaml");
  }
};

TEST_F(SimulateTest, ATableHasAllFleetsAndTheSameForTheSameSeed) {
  SimulateRequest request;
  request.synthetic = 7;
  request.hours = 48;
  const std::string table = TableOf(Report(request));
  for (const char* fleet : {"on-demand", "one zone", "greedy", "omniscient", "troupe"})
    EXPECT_THAT(table, HasSubstr(std::string("\n") + fleet + " "));
  EXPECT_EQ(table, TableOf(Report(request)));
  EXPECT_THAT(table, HasSubstr("cluster demo, 4 workers wanted, a market made up from seed 7, "
                               "48.0 h"));
}

TEST_F(SimulateTest, JsonAndThePageHaveTheSameFigures) {
  SimulateRequest request;
  request.synthetic = 7;
  request.hours = 48;
  SimulationReport report = Report(request);
  const auto json = nlohmann::json::parse(JsonOf(report));
  EXPECT_EQ(json["fleets"].size(), 5U);
  EXPECT_DOUBLE_EQ(json["fleets"][4]["dollars"].get<double>(), report.fleets[4].dollars);
  report.cluster = "<b>&";
  const std::string page = HtmlOf(report);
  EXPECT_THAT(page, HasSubstr("Cluster &lt;b&gt;&amp;"));
  EXPECT_THAT(page, HasSubstr("<td>" + CellsOf(report)[5][4] + "</td>"));
  EXPECT_THAT(page, HasSubstr("<title>base</title></path>"));
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST_F(SimulateTest, WrongRequestsAreToldApart) {
  const auto problem = [](const SimulateRequest& request) {
    const Result<SimulationReport> report = Simulate(Config(), request);
    return report.ok() ? "" : report.error().message;
  };
  SimulateRequest request;
  EXPECT_THAT(problem(request), HasSubstr("give traces (--trace), or the seed"));
  request.synthetic = 1;
  request.traces = {"x"};
  EXPECT_THAT(problem(request), HasSubstr("give traces (--trace), or the seed"));
  request.traces.clear();
  request.hours = -1;
  EXPECT_THAT(problem(request), HasSubstr("--hours"));
  request.hours = 1;
  request.output = "xml";
  EXPECT_THAT(problem(request), HasSubstr("expected one of table, json, html, got \"xml\""));
  request.output = "json";
  request.boot_s = 1e9;
  EXPECT_THAT(problem(request), HasSubstr("a week at most"));
  request.boot_s = 60;
  request.scaling_loss = 2;
  EXPECT_THAT(problem(request), HasSubstr("--scaling-loss"));
}

}  // namespace
}  // namespace troupe::simulator
