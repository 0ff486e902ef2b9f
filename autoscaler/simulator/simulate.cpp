#include "autoscaler/simulator/simulate.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "autoscaler/simulator/references.h"
#include "autoscaler/simulator/synthetic_market.h"
#include "autoscaler/simulator/trace_reader.h"

namespace troupe::simulator {
namespace {

constexpr double kSpanMaxS = 7 * 86400;

Duration Span(double s) { return Duration(static_cast<int64_t>(std::llround(s * 1e9))); }

// What is wrong with the options, or nothing.
std::string ProblemOf(const SimulateRequest& request) {
  if (request.traces.empty() != request.synthetic.has_value())
    return "give traces (--trace), or the seed of a market that is made up (--synthetic)";
  if (!(request.hours >= 0 && request.hours <= kSimulatedHoursMax))
    return "--hours is at most 87600";
  for (const double s :
       {request.boot_s, request.notice_s, request.rebuild_s, request.lost_s, request.restart_s}) {
    if (!(s <= kSpanMaxS)) return "boot, notice, rebuild, loss and restart last a week at most";
  }
  if (request.boot_s < 0 || request.notice_s < 0 || request.lost_s < 0 || request.restart_s < 0)
    return "boot, notice, loss and restart are not negative";
  if (!(request.scaling_loss >= 0 && request.scaling_loss <= 1)) return "--scaling-loss is 0 to 1";
  if (request.output != "table" && request.output != "json" && request.output != "html")
    return "expected one of table, json, html, got \"" + request.output + "\"";
  return "";
}

Result<MarketHistory> MarketOf(const ClusterConfig& config, const SimulateRequest& request) {
  const Duration limit = Span(request.hours * 3600);
  if (!request.synthetic) {
    Result<MarketHistory> market = ReadMarket(request.traces, config.limits.pools);
    if (market.ok() && request.hours > 0) market->length = std::min(market->length, limit);
    return market;
  }
  SyntheticOptions options;
  options.seed = *request.synthetic;
  if (request.hours > 0) options.length = limit;
  return MakeMarket(options, config.limits.pools);
}

Duration RebuildOf(const ClusterConfig& config, const SimulateRequest& request) {
  if (request.rebuild_s >= 0) return Span(request.rebuild_s);
  const Duration given = config.limits.rebuild_time;
  return given > Duration::zero() ? given : kRebuildAssumed;
}

SimulationOptions OptionsOf(const ClusterConfig& config, const SimulateRequest& request) {
  SimulationOptions options;
  options.training.min_workers = std::max(1, config.limits.min_workers);
  options.training.max_workers = config.limits.max_workers;
  options.training.rebuild = RebuildOf(config, request);
  options.training.lost = Span(request.lost_s);
  options.training.scaling_loss = request.scaling_loss;
  options.boot = Span(request.boot_s);
  options.notice = Span(request.notice_s);
  options.tick = config.tick;
  return options;
}

}  // namespace

Result<SimulationReport> Simulate(const ClusterConfig& config, const SimulateRequest& request) {
  if (const std::string problem = ProblemOf(request); !problem.empty())
    return Error{ErrorCode::kInvalidArgument, problem};
  const Result<MarketHistory> market = MarketOf(config, request);
  if (!market.ok()) return market.error();
  const SimulationOptions options = OptionsOf(config, request);
  const FleetLimits& limits = config.limits;
  SimulationReport report;
  report.cluster = config.name;
  report.market = request.synthetic
                      ? "a market made up from seed " + std::to_string(*request.synthetic)
                      : "a recorded market";
  report.hours = ToSeconds(market->length) / 3600;
  report.wanted_workers = limits.max_workers;
  const auto add = [&](std::optional<FleetFigures> figures) {
    if (figures) report.fleets.push_back(std::move(*figures));
  };
  add(OnDemandFleet(limits.pools, *market, options));
  add(OneZoneFleet(limits.pools, *market, options, Span(request.restart_s)));
  add(GreedyFleet(limits, *market, options));
  add(OmniscientFleet(limits.pools, *market, options));
  SimulatedFleet ours = RunPolicy(limits, *market, options);
  report.fleets.push_back(std::move(ours.figures));
  report.held = std::move(ours.held);
  return report;
}

Result<std::string> SimulateClusterFile(const std::string& path, const SimulateRequest& request) {
  const Result<ClusterConfig> config = ReadClusterConfig(path);
  if (!config.ok()) return config.error();
  const Result<SimulationReport> report = Simulate(*config, request);
  if (!report.ok()) return report.error();
  std::string text = request.output == "json"   ? JsonOf(*report)
                     : request.output == "html" ? HtmlOf(*report)
                                                : TableOf(*report);
  if (request.output_file.empty()) return text;
  std::ofstream out(request.output_file);
  out << text;
  out.close();
  if (!out.good()) return Error{ErrorCode::kInvalidArgument, "cannot write " + request.output_file};
  return request.output_file + " is written\n";
}

}  // namespace troupe::simulator
