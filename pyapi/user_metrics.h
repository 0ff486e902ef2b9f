// Metrics of Python code on their way to the head, and its answers, as plain tuples.
// Thread: with the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "daemons/protocol/user_metrics.h"

namespace troupe::pyapi {

namespace py = pybind11;

// Of (kind, name, description, tags, boundaries, values) each. ValueError: there is no such kind.
[[nodiscard]] UserMetrics MetricsOf(uint64_t life, uint64_t number, const py::list& series);
// (log, life, number, wanted, ended, refused, reason), or None.
[[nodiscard]] py::object TakenTuple(const std::optional<UserMetricsTaken>& taken);

}  // namespace troupe::pyapi
