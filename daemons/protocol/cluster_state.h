// ClusterState: what an autoscaler needs of the text that describes a cluster.
// Thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe::daemons {

struct ClusterState {
  struct Node {
    std::string id;
    bool alive = false;
    bool idle = false;
    bool draining = false;  // Whoever asked for it.
    std::string reason = {};
    Duration drain_left = Duration::max();
    // Of what the node itself was told: "aws", "preempt"; empty: of nothing.
    std::string source = {}, kind = {};
    // What may come: "rebalance (aws: recommended at ...)"; and its source and kind.
    std::string warning = {}, warning_source = {}, warning_kind = {};
    int workers = 0;  // Of runs that have not ended, on it;
    int members = 0;  // those of them whose group trains.
  };
  struct Run {
    std::string name;
    std::string state;
    std::string reason;  // What it waits for, or why it is in that state; else why its epoch came.
    uint64_t epoch = 0;
    int members = 0;
    int target = 0;
    std::string id = {};
    uint64_t steps = 0;   // Committed.
    double stood_s = 0;   // Worker-seconds of members that stood still while their group re-formed,
    double redone_s = 0;  // and of steps that were computed again.
    uint64_t samples = 0;  // See Progress.
    uint64_t samples_per_epoch = 0;
  };
  std::vector<Node> nodes;
  std::vector<Run> runs;
  bool running = false;    // Some run's group is active, with as many members as it wants.
  int wanted_workers = 0;  // Targets of the runs that have not ended.
};
// kInvalidArgument if the text is not of the form that ClusterJson makes.
[[nodiscard]] Result<ClusterState> ParseClusterState(const std::string& json);

}  // namespace troupe::daemons
