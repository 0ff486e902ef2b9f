#include "pyapi/user_metrics.h"

#include <pybind11/stl.h>

#include <string>

namespace troupe::pyapi {
namespace {

UserMetricKind KindOf(const std::string& kind) {
  if (kind == "counter") return UserMetricKind::kCounter;
  if (kind == "gauge") return UserMetricKind::kGauge;
  if (kind == "histogram") return UserMetricKind::kHistogram;
  throw py::value_error("no metric is a \"" + kind + '"');
}

}  // namespace

UserMetrics MetricsOf(uint64_t life, uint64_t number, const py::list& series) {
  UserMetrics told{life, number, {}};
  for (const py::handle& one : series) {
    const auto row = one.cast<py::tuple>();
    told.series.push_back({KindOf(row[0].cast<std::string>()), row[1].cast<std::string>(),
                           row[2].cast<std::string>(),
                           row[3].cast<std::map<std::string, std::string>>(),
                           row[4].cast<std::vector<double>>(), row[5].cast<std::vector<double>>()});
  }
  return told;
}

py::object TakenTuple(const std::optional<UserMetricsTaken>& taken) {
  if (!taken) return py::none();
  return py::make_tuple(taken->log, taken->life, taken->number, taken->wanted, taken->ended,
                        taken->refused, taken->reason);
}

}  // namespace troupe::pyapi
