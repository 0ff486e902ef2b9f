// `troupe simulate`: a cluster file on a recorded or made-up market, beside the references.
//
// Thread: any; reads files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autoscaler/cluster_config.h"
#include "autoscaler/simulator/report.h"
#include "runtime/result.h"

namespace troupe::simulator {

struct SimulateRequest {
  std::vector<std::string> traces;    // As ReadMarket takes them; without any:
  std::optional<uint64_t> synthetic;  // the seed of a market that is made up.
  double hours = 0;  // At most; 0: all of the traces, or 30 days of a made-up market.
  double boot_s = 60;
  double notice_s = 0;
  double rebuild_s = -1;   // Negative: autoscaler.rebuild_time, or kRebuildAssumed without it.
  double lost_s = 0;       // Work done again after an abrupt loss.
  double restart_s = 240;  // Of a whole group, in the reference.
  double scaling_loss = 0;
  std::string output = "table";  // Or "json", or "html".
  std::string output_file;       // Where it is written to; empty: it is returned.
};

inline constexpr Duration kRebuildAssumed = seconds(5);
inline constexpr double kSimulatedHoursMax = 10 * 365 * 24;

[[nodiscard]] Result<SimulationReport> Simulate(const ClusterConfig& config,
                                                const SimulateRequest& request);
// What is to be printed, or where it was written to.
[[nodiscard]] Result<std::string> SimulateClusterFile(const std::string& path,
                                                      const SimulateRequest& request);

}  // namespace troupe::simulator
