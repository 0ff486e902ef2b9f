// What a simulation came to, for people, for programs, and as a page.
//
// Thread: any. Pure.
#pragma once

#include <string>
#include <vector>

#include "autoscaler/simulator/simulation.h"

namespace troupe::simulator {

struct SimulationReport {
  std::string cluster;
  std::string market;  // "3 traces", "a market made up from seed 7".
  double hours = 0;
  int wanted_workers = 0;
  std::vector<FleetFigures> fleets;  // In the order of the table; the last one is ours.
  HeldNodes held;                    // By ours.

  // Null if there is none.
  [[nodiscard]] const FleetFigures* Find(const std::string& fleet) const;
};

[[nodiscard]] std::string TableOf(const SimulationReport& report);
[[nodiscard]] std::string JsonOf(const SimulationReport& report);
// One page of HTML that needs nothing else: the table, and what was held over time as SVG.
[[nodiscard]] std::string HtmlOf(const SimulationReport& report);

// The table's cells, headings first.
[[nodiscard]] std::vector<std::vector<std::string>> CellsOf(const SimulationReport& report);

}  // namespace troupe::simulator
