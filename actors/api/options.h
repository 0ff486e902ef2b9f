// Options of actors and tasks.
// Thread: plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/core/protocol.h"
#include "runtime/clock.h"

namespace troupe {

// How an actor's calls are queued and run.
struct CallLimits {
  uint32_t max_concurrency = 1;  // Calls at once; one that waits lets the others run.
  // Calls run on threads, kCallThreadsMax at most, and may block: the others go on. The class
  // guards its own data then. Without, they are fibers of one thread, which none must block.
  bool threads = false;
  uint32_t mailbox_depth = actors::kMailboxDepthMax;  // Calls that wait,
  uint64_t mailbox_bytes = uint64_t{64} << 20;        // and their arguments.
  actors::Overflow overflow = actors::Overflow::kWait;
};

// Made for designated initialisers: Spawn<Counter>({.name = "till", .max_restarts = 3}, 10).
struct ActorOptions {
  std::string name = {};       // Unique among living actors of the cluster; empty: none.
  bool get_if_exists = false;  // A living one of this name and type is as good.
  bool detached = false;       // It outlives this process.
  // CPU, GPU (below 1: a share of one), memory in bytes, or what nodes offer by other names; for as
  // long as it lives, but its CPU is lent to others while all calls that run in it wait.
  std::map<std::string, double> resources = {};
  std::string strategy = "hybrid";       // Or "spread".
  std::vector<std::string> labels = {};  // Terms that must hold: "zone=a", "gpu in (a100, h100)".
  std::vector<std::string> prefer = {};  // Terms that are nice to have.
  std::string node = {};                 // Only there, or
  bool node_soft = false;                // rather there.
  std::string placement_group = {};      // Then `resources` are drawn from its bundles.
  int32_t bundle = -1;                   // Of the group; -1: any.
  int32_t priority = 0;                  // Among those that wait for a place; higher goes first.
  int32_t max_restarts = 0;              // After a death; -1: always.
  Duration backoff = milliseconds(100);  // Before the second restart in a row, then twice that...
  Duration backoff_most = seconds(10);   // up to this.
  Duration timeout = seconds(60);        // From its process's start until it can be called.
  std::map<std::string, std::string> env = {};
  // A plugin that describes the type (<troupe/plugin.h>): its absolute path on the nodes. Empty:
  // this program does.
  std::string plugin = {};
  // Command line of another program that describes the type; empty: this one.
  std::vector<std::string> program = {};
  // As CallLimits.
  uint32_t max_concurrency = 1;
  bool threads = false;
  uint32_t mailbox_depth = actors::kMailboxDepthMax;
  uint64_t mailbox_bytes = uint64_t{64} << 20;
  actors::Overflow overflow = actors::Overflow::kWait;
  bool runs_tasks = false;  // Its process is a task's: actors that it makes belong to its owner.
  // Its id, if it is to end with the last of its handles; empty: these are not counted.
  std::string counted_as = {};

  [[nodiscard]] CallLimits limits() const {
    return {max_concurrency, threads, mailbox_depth, mailbox_bytes, overflow};
  }
};

struct TaskOptions {
  std::map<std::string, double> resources = {{"CPU", 1}};
  std::vector<std::string> labels = {};
  Duration timeout = seconds(3600);
  int32_t max_retries = 3;  // If its process dies; a task that threw is not repeated.
  std::string plugin = {};  // As in ActorOptions, as the two that follow.
  std::vector<std::string> program = {};
  std::map<std::string, std::string> env = {};
  // Tasks of one code take about as long as each other; empty: those of one name do.
  std::string code = {};
};

}  // namespace troupe
