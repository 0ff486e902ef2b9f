// `troupe down FILE`: ends who holds the cluster of that file on this host, then every node of it
// that its supplier lists, whoever has made it, until lists show none.
// Thread: main.
#pragma once

#include <functional>
#include <string>

#include "autoscaler/cluster_config.h"
#include "runtime/clock.h"

namespace troupe::daemons {

struct TakeDownOptions {
  std::string folder;  // Of the cluster file.
  std::string bin_dir;
  Duration limit = seconds(300);
  std::function<void(const std::string& line)> say;
};

// Nothing is left. An error names what is.
[[nodiscard]] Status TakeDownFleet(const ClusterConfig& config, const TakeDownOptions& options);

}  // namespace troupe::daemons
