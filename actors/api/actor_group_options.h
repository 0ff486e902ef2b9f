// Options of groups of actors.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/api/options.h"

namespace troupe {

// Made for designated initialisers. What is not of the group is as in ActorOptions, for each
// member.
struct ActorGroupOptions {
  std::string name = {};              // Unique among the cluster's groups; empty: an id.
  uint32_t min_size = 1;              // That many get their places at once,
  uint32_t size = 0;                  // so many there are to be, at first (0: min_size),
  uint32_t max_size = 0;              // and no more ever (0: size).
  bool detached = false;              // It outlives this process.
  Duration below_min = seconds(600);  // It ends after so long with fewer than min_size alive.
  std::map<std::string, double> resources = {};
  std::string strategy = "hybrid";
  std::vector<std::string> labels = {};
  std::vector<std::string> prefer = {};
  std::string placement_group = {};
  int32_t priority = 0;
  int32_t max_restarts = -1;  // Of each member, after deaths; -1: always.
  Duration backoff = milliseconds(100);
  Duration backoff_most = seconds(10);
  Duration timeout = seconds(60);
  std::map<std::string, std::string> env = {};
  std::string plugin = {};
  std::vector<std::string> program = {};
  uint32_t max_concurrency = 1;
  bool threads = false;
  uint32_t mailbox_depth = actors::kMailboxDepthMax;
  uint64_t mailbox_bytes = uint64_t{64} << 20;
  actors::Overflow overflow = actors::Overflow::kWait;

  [[nodiscard]] ActorOptions member() const;
};

}  // namespace troupe
