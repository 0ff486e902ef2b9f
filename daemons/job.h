// Job: one training run on the head, as data. JobService moves it.
// Thread: the head's loop.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/coordinator.h"
#include "daemons/job_events.h"
#include "scheduler/protocol.h"
#include "scheduler/resources.h"
#include "scheduler/scheduler_status.h"

namespace troupe::daemons {

inline constexpr size_t kJobEventsMax = 50'000;            // Kept for a driver that reconnects.
inline constexpr Duration kSpareDelay = milliseconds(20);  // From active on, if all have joined.
inline constexpr Duration kJoinTime = seconds(10);
inline constexpr Duration kReformQuiet = milliseconds(50);  // At most, from a death to active.
inline constexpr Duration kReformSettle = milliseconds(5);  // From active on: the first collective.
inline constexpr int kStartFailuresMax = 3;  // Workers in a row that died before they were ready.

enum class WorkerState : uint8_t { kStarting, kRunning, kDraining, kFinished, kDrained, kDead };
[[nodiscard]] const char* WorkerStateName(WorkerState state);

struct JobWorker {
  uint32_t index = 0;
  uint64_t incarnation = 1;
  std::string process;
  std::string node;
  uint8_t state = 0;  // WorkerState.
  int rank = -1;
  uint64_t drain_ms = 0;          // Draining: the time it was given; 0: no limit.
  Time drain_by = Time::Never();  // Its end on this head's clock.
  bool overdue = false;           // It is ended by force.
  bool fenced = false;            // Put aside by its group: what it says is void.
  std::string lease;              // Its room at the scheduler,
  std::vector<uint32_t> devices;  // and its GPUs there.

  [[nodiscard]] WorkerState status() const { return static_cast<WorkerState>(state); }
  [[nodiscard]] bool alive() const {
    return status() != WorkerState::kDead && status() != WorkerState::kDrained;
  }
  [[nodiscard]] groups::MemberId member() const {
    return {"w" + std::to_string(index), incarnation};
  }
  template <class A>
  void Fields(A& a) {
    a(index, incarnation, process, node, state, rank, drain_ms, fenced, lease, devices);
  }
};

// The part that outlives the head.
struct JobRecord {
  std::string driver;
  uint32_t target = 0;
  std::map<std::string, uint64_t> incarnations;  // Last one used, by index.
  std::vector<JobWorker> workers;
  template <class A>
  void Fields(A& a) {
    a(driver, target, incarnations, workers);
  }
};

struct Job {
  JobSpec spec;
  JobRecord record;
  ResourceSet need;                     // Per worker.
  std::set<std::string> pending;        // Leases that wait for room.
  std::vector<sched::Granted> granted;  // Not used yet.
  uint64_t next_lease = 1;
  std::string state = "pending";  // pending running parked succeeded failed cancelled
  std::string reason;
  Time submitted{};
  Time driver_heard{};
  Time confirm_by =
      Time::Never();    // After a head restart: unconfirmed workers are dead from then on.
  bool opened = false;  // The group exists.
  Time joined_by{};     // A new worker is given until then before the next spare is started.
  Time quiet_until{};   // No process is started before: a group is being re-formed.
  int start_failures = 0;
  std::map<std::string, std::string> results;  // By member.
  std::map<std::string, std::vector<std::string>> last_lines;
  groups::View view;  // Last active.
  int old_size = 0;
  bool planned = false;
  bool epoch_pending = false;  // Activated, its pause not known yet.
  // Told by members of an epoch that comes before it, and is not told yet; with its number.
  std::vector<std::pair<groups::Epoch, JobEvent>> noted;
  Duration took{};
  std::optional<JobEvent> last_event;  // "done", held back until the workers' output is in.
  Time last_event_by = Time::Never();
  std::deque<JobEvent> events;
  uint64_t first_event = 0;

  [[nodiscard]] bool done() const {
    return state == "succeeded" || state == "failed" || state == "cancelled";
  }
};

}  // namespace troupe::daemons
