// `troupe up FILE`: a private Redis and head, the nodes that the file asks for, and its training.
// Wiring only.
// Thread: main.
#pragma once

#include <filesystem>
#include <string>

#include "autoscaler/cluster_config.h"
#include "daemons/client/driver_client.h"

namespace troupe::daemons {

struct FleetRunRequest {
  std::filesystem::path file;  // The cluster's.
  std::string journal;         // Empty: none is kept.
  bool take_over = false;      // End the nodes of whoever else holds this cluster.
};

// Until the training has ended or a signal comes; the exit code. Of its own: 1, it could not be
// started; 3, another `troupe up` holds the cluster; 130, interrupted.
int HoldFleet(const ClusterConfig& config, const FleetRunRequest& request,
              const DriverOptions& options);
// For whoever watches.
void SayLine(const std::string& line);

}  // namespace troupe::daemons
