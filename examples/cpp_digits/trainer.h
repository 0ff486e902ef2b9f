// The training side of the C++ digits example: what one worker does.
#pragma once

#include <string>

#include "runtime/result.h"

namespace troupe::daemons {
class WorkerClient;
}

namespace cpp_digits {

struct Plan {
  std::string data;     // The file that scripts/export_digits.py writes.
  int64_t epochs = 20;  // Data epochs, at least.
  // Goes on until this file exists; "-": does not wait for one.
  std::string finish_file = "-";
};

// As a job's payload, and back.
[[nodiscard]] std::string Encode(const Plan& plan);
[[nodiscard]] troupe::Result<Plan> Decode(const std::string& payload);

// Trains in the worker's group. The value is a line for the driver:
//   accuracy=0.97 steps=980 epochs=20 missing=0 doubled=0 parameters=1a2b...
// or empty if this worker was asked to leave. `missing` and `doubled` are samples that were not
// counted exactly once in every data epoch.
troupe::Result<std::string> Train(troupe::daemons::WorkerClient& worker, const Plan& plan);

}  // namespace cpp_digits
