#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "autoscaler/simulator/report.h"

namespace troupe::simulator {
namespace {

constexpr double kPlotWidth = 960;
constexpr double kPlotHeight = 240;

constexpr const char* kPageHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>troupe simulate</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
tr:last-child { font-weight: 600 }
svg { width: 100%; height: auto }
svg text { fill: currentColor; font-size: 11px }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }
</style></head><body>
)html";

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// Far apart for neighbours.
std::string ColourOf(size_t index) {
  return "hsl(" + std::to_string((index * 137 + 205) % 360) + " 60% 52%)";
}

// The areas of the pools, one on the other.
void Plot(const SimulationReport& report, std::ostringstream& out) {
  std::vector<double> sum(kPlotPoints, 0);
  for (const auto& [pool, held] : report.held) {
    for (size_t i = 0; i < held.size(); ++i) sum[i] += held[i];
  }
  const double top = std::max(
      {1.0, static_cast<double>(report.wanted_workers), *std::max_element(sum.begin(), sum.end())});
  const auto x = [](size_t i) {
    return Digits(static_cast<double>(i) * kPlotWidth / static_cast<double>(kPlotPoints));
  };
  const auto y = [&](double nodes) { return Digits(kPlotHeight * (1 - nodes / top)); };
  out << "<svg viewBox=\"-30 -10 1000 275\" role=\"img\" aria-label=\"nodes held over time\">\n";
  std::vector<double> below(kPlotPoints, 0);
  size_t index = 0;
  for (const auto& [pool, held] : report.held) {
    out << "<path fill=\"" << ColourOf(index++) << "\" d=\"M";
    for (size_t i = 0; i < kPlotPoints; ++i)
      out << x(i) << "," << y(below[i] + held[i]) << " H" << x(i + 1)
          << (i + 1 < kPlotPoints ? " L" : "");
    for (size_t i = kPlotPoints; i-- > 0;)
      out << " L" << x(i + 1) << "," << y(below[i]) << " H" << x(i);
    out << "Z\"><title>" << Escaped(pool) << "</title></path>\n";
    for (size_t i = 0; i < kPlotPoints; ++i) below[i] += held[i];
  }
  for (int line = 0; line <= 4; ++line) {
    const double nodes = top * line / 4;
    out << "<text x=\"-4\" y=\"" << y(nodes) << "\" text-anchor=\"end\">" << Digits(nodes)
        << "</text><text x=\"" << Digits(kPlotWidth * line / 4) << "\" y=\"258\" text-anchor=\""
        << (line == 0   ? "start"
            : line == 4 ? "end"
                        : "middle")
        << "\">" << Digits(report.hours * line / 4) << " h</text>\n";
  }
  out << "</svg>\n<p>";
  index = 0;
  for (const auto& [pool, held] : report.held)
    out << "<span class=\"key\" style=\"background:" << ColourOf(index++) << "\"></span>"
        << Escaped(pool);
  out << "</p>\n";
}

}  // namespace

std::string HtmlOf(const SimulationReport& report) {
  std::ostringstream out;
  out << kPageHead << "<h1>Cluster " << Escaped(report.cluster) << "</h1>\n<p>"
      << report.wanted_workers << " workers wanted, " << Escaped(report.market) << ", "
      << Digits(report.hours) << " h</p>\n<h2>Nodes held</h2>\n";
  Plot(report, out);
  out << "<h2>Figures</h2>\n<table>\n";
  bool heading = true;
  for (const std::vector<std::string>& row : CellsOf(report)) {
    out << "<tr>";
    for (const std::string& cell : row)
      out << (heading ? "<th>" : "<td>") << Escaped(cell) << (heading ? "</th>" : "</td>");
    out << "</tr>\n";
    heading = false;
  }
  out << "</table>\n</body></html>\n";
  return out.str();
}

}  // namespace troupe::simulator
