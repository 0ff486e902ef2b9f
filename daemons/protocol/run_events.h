// Events and status of runs as JSON text: the form in which drivers, the CLI and notebooks get
// them.
// Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collective_groups/membership/coordinator.h"
#include "collective_groups/membership/view.h"
#include "daemons/protocol/messages.h"
#include "runtime/clock.h"
#include "runtime/result.h"
#include "scheduler/resources.h"

namespace troupe::daemons {

// What people see of one worker.
struct WorkerStatus {
  std::string id;
  int rank = -1;
  int64_t pid = 0;
  std::string host;
  std::string node;
  std::string state;
  uint64_t version = 0;
  std::string process;  // Its name, as in that of its log.
  PeerAddress address;  // Where it can be called; actors only.
};

struct RunStatus {
  std::string id;
  std::string name;
  std::string state;
  std::string reason;
  uint64_t epoch = 0;
  uint32_t target = 0;
  uint32_t min_workers = 0;
  uint32_t max_workers = 0;
  std::vector<WorkerStatus> workers;
  bool detached = false;
  bool attended = true;           // Its driver is heard.
  double age_s = 0;               // Since this head knows it.
  std::string epoch_reason = {};  // Why its epoch came.
  double stood_s = 0;             // Worker-seconds: see Run (head/core/run.h).
  double redone_s = 0;
  uint64_t steps_replayed = 0;  // See Recovered; since this head knows the run.
  uint64_t steps_recomputed = 0;
  uint64_t samples_returned = 0;
  uint64_t samples = 0;  // See Progress; 0: none is known.
  uint64_t samples_per_epoch = 0;
};

[[nodiscard]] RunEvent WorkerEvent(const std::string& run, Time at, const WorkerStatus& worker,
                                   const std::string& state, const std::string& detail,
                                   const std::vector<std::string>& last_lines = {});
[[nodiscard]] RunEvent EpochEvent(const std::string& run, Time at, const groups::View& view,
                                  int old_size, Duration pause, bool planned,
                                  const std::map<std::string, WorkerStatus>& workers);
// Which epoch it tells; nothing if it is of another kind.
[[nodiscard]] std::optional<uint64_t> EpochOf(const RunEvent& event);
// The member whose result it tells; nothing if it does not.
[[nodiscard]] std::optional<std::string> ResultOf(const RunEvent& event);
// All lines of one message of a node: "lines", and before them what was dropped, as a line.
[[nodiscard]] RunEvent LogEvent(const std::string& run, Time at, const WorkerStatus& worker,
                                const WorkerOutput& output);
// For lines that the driver did not take in time.
[[nodiscard]] RunEvent DroppedEvent(const std::string& run, Time at, uint64_t lines);
[[nodiscard]] RunEvent NoteEvent(const std::string& run, Time at, const WorkerStatus& worker,
                                 const WorkerNote& note);
// What a worker says when its group has dealt with a death, in a note of kind "recovered".
struct Recovered {
  uint64_t steps_replayed = 0;    // Finished from kept gradients.
  uint64_t steps_recomputed = 0;  // Computed again since the last commit.
  uint64_t samples_returned = 0;  // Of dead members, to the sampler.
  std::string message;            // For people.
};
// Nothing if the note is of another kind, or not of this form.
[[nodiscard]] std::optional<Recovered> ReadRecovered(const WorkerNote& note);
// What a worker says of its group's training now and then, in a note of kind "progress".
struct Progress {
  uint64_t samples = 0;  // Committed since the run began.
  uint64_t samples_per_epoch = 0;
};
// Nothing if the note is of another kind, or not of this form.
[[nodiscard]] std::optional<Progress> ReadProgress(const WorkerNote& note);
[[nodiscard]] RunEvent ResultEvent(const std::string& run, Time at, const WorkerStatus& worker,
                                   int rank, const std::string& payload);
[[nodiscard]] RunEvent ParkedEvent(const std::string& run, Time at, const std::string& reason);
// Members that keep the others waiting in a collective, by rank in the stall's view.
// A member, or one that wants to be, is left out because it cannot reach others.
[[nodiscard]] RunEvent UnreachableEvent(const std::string& run, Time at,
                                        const groups::GroupUnreachable& left);
[[nodiscard]] RunEvent StalledEvent(const std::string& run, Time at,
                                    const groups::GroupStalled& stalled,
                                    const std::map<std::string, WorkerStatus>& workers);
[[nodiscard]] RunEvent DoneEvent(const std::string& run, Time at, const std::string& state,
                                 const std::string& reason, const WorkerStatus& worker,
                                 const std::string& payload);

[[nodiscard]] std::string StatusJson(const RunStatus& status);
struct NodeStatus {
  std::string id;
  std::string host;
  int64_t pid = 0;
  bool alive = false;
  ResourceSet total;
  ResourceSet used;
  bool draining = false;
  std::string reason = {};
  Duration drain_left = Duration::max();  // Max: there is no deadline.
  NodeNotice notice = {};
  NodeNotice warning = {};
};
[[nodiscard]] std::string ClusterJson(const std::vector<NodeStatus>& nodes,
                                      const std::vector<RunStatus>& runs);

}  // namespace troupe::daemons
