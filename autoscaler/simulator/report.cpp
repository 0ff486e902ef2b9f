#include "autoscaler/simulator/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

namespace troupe::simulator {
namespace {

using ReportJson = nlohmann::ordered_json;

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string Percent(double share) { return Fixed(100 * share, 1) + " %"; }

// What is saved of the price of a useful hour on demand.
std::string Saved(const FleetFigures& figures, const FleetFigures* on_demand) {
  if (on_demand == nullptr || on_demand->DollarsPerUsefulHour() <= 0) return "-";
  if (figures.useful_hours <= 0) return "-";
  return Percent(1 - figures.DollarsPerUsefulHour() / on_demand->DollarsPerUsefulHour());
}

std::string OverBound(const FleetFigures& figures, const FleetFigures* bound) {
  if (bound == nullptr || bound->DollarsPerUsefulHour() <= 0 || figures.useful_hours <= 0)
    return "-";
  const double over = figures.DollarsPerUsefulHour() / bound->DollarsPerUsefulHour() - 1;
  return (over < 0 ? "" : "+") + Percent(over);
}

}  // namespace

const FleetFigures* SimulationReport::Find(const std::string& fleet) const {
  const auto found = std::find_if(fleets.begin(), fleets.end(), [&](const FleetFigures& figures) {
    return figures.name == fleet;
  });
  return found == fleets.end() ? nullptr : &*found;
}

std::vector<std::vector<std::string>> CellsOf(const SimulationReport& report) {
  std::vector<std::vector<std::string>> rows = {{"FLEET", "$/USEFUL H", "OVER BOUND", "GOODPUT",
                                                 "COST $", "SAVED", "BELOW MIN H", "PREEMPTED",
                                                 "LAUNCHES/H", "REFUSED", "DECISIONS/H"}};
  const FleetFigures* on_demand = report.Find("on-demand");
  const FleetFigures* bound = report.Find("omniscient");
  for (const FleetFigures& figures : report.fleets) {
    const double hours = std::max(figures.hours, 1e-9);
    rows.push_back(
        {figures.name, figures.useful_hours > 0 ? Fixed(figures.DollarsPerUsefulHour(), 4) : "-",
         OverBound(figures, bound), Percent(figures.Goodput()), Fixed(figures.dollars, 2),
         Saved(figures, on_demand), Fixed(figures.hours_below_min, 1),
         std::to_string(figures.preemptions), Fixed(figures.launches / hours, 2),
         std::to_string(figures.failed_launches), Fixed(figures.decisions / hours, 2)});
  }
  return rows;
}

std::string TableOf(const SimulationReport& report) {
  std::ostringstream out;
  out << "cluster " << report.cluster << ", " << report.wanted_workers << " workers wanted, "
      << report.market << ", " << Fixed(report.hours, 1) << " h\n";
  const std::vector<std::vector<std::string>> rows = CellsOf(report);
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    out << row[0] << std::string(widths[0] - row[0].size(), ' ');
    for (size_t i = 1; i < row.size(); ++i)
      out << std::string(widths[i] - row[i].size() + 2, ' ') << row[i];
    out << "\n";
  }
  return out.str();
}

std::string JsonOf(const SimulationReport& report) {
  ReportJson fleets = ReportJson::array();
  for (const FleetFigures& figures : report.fleets) {
    fleets.push_back({{"fleet", figures.name},
                      {"dollars", figures.dollars},
                      {"useful_worker_hours", figures.useful_hours},
                      {"wanted_worker_hours", figures.wanted_hours},
                      {"goodput", figures.Goodput()},
                      {"dollars_per_useful_worker_hour", figures.DollarsPerUsefulHour()},
                      {"hours_below_min_workers", figures.hours_below_min},
                      {"preemptions", figures.preemptions},
                      {"launches", figures.launches},
                      {"refused_launches", figures.failed_launches},
                      {"drains", figures.drains},
                      {"decisions", figures.decisions},
                      {"most_nodes", figures.most_nodes},
                      {"most_dollars_per_hour", figures.most_dollars_per_hour}});
  }
  ReportJson root = {{"cluster", report.cluster},   {"market", report.market},
                     {"hours", report.hours},       {"wanted_workers", report.wanted_workers},
                     {"fleets", std::move(fleets)}, {"held_nodes", report.held}};
  return root.dump(2) + "\n";
}

}  // namespace troupe::simulator
