// What is kept of a training run in the store.
// Thread: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collective_groups/membership/view.h"
#include "daemons/protocol/messages.h"
#include "runtime/clock.h"

namespace troupe::daemons {

// In the store, after the key of a run: between it and a member, and of one that is over.
inline constexpr const char* kResult = "/result/";
inline constexpr const char* kEnded = "/ended";

enum class WorkerState : uint8_t { kStarting, kRunning, kDraining, kFinished, kDrained, kDead };
constexpr WorkerState LastValue(WorkerState) { return WorkerState::kDead; }
[[nodiscard]] const char* WorkerStateName(WorkerState state);

enum class RunState : uint8_t { kPending, kRunning, kParked, kSucceeded, kFailed, kCancelled };
inline constexpr size_t kRunStates = 6;
[[nodiscard]] const char* RunStateName(RunState state);
[[nodiscard]] RunState ParseRunState(const std::string& name);  // kFailed: it is none.

struct RunWorker {
  uint32_t index = 0;
  uint64_t incarnation = 1;
  std::string process;
  std::string node;
  WorkerState state = WorkerState::kStarting;
  int rank = -1;
  uint64_t drain_ms = 0;          // Draining: the time it was given; 0: no limit.
  Time drain_by = Time::Never();  // Its end on this head's clock.
  bool overdue = false;           // It is ended by force.
  Time member_since = Time::Never();
  bool fenced = false;            // Evicted by its group: what it says is void.
  std::string actor;              // It is one life of this actor.
  std::vector<uint32_t> devices;  // Its GPUs, as its node counts them.
  int64_t pid = 0;                // Where it was heard, for a head that has not heard it yet.
  std::string host;

  [[nodiscard]] bool alive() const {
    return state != WorkerState::kDead && state != WorkerState::kDrained;
  }
  [[nodiscard]] groups::MemberId member() const {
    return {"w" + std::to_string(index), incarnation};
  }
  template <class A>
  void Fields(A& a) {
    a(index, incarnation, process, node, state, rank, drain_ms, fenced, actor, devices, pid, host);
  }
};

// The part that outlives the head.
struct RunRecord {
  std::string driver;
  uint32_t target = 0;
  std::map<std::string, uint64_t> incarnations;  // Last one used, by index.
  std::vector<RunWorker> workers;
  std::string driver_place;             // Which process it is.
  std::vector<RunWorker> waiting = {};  // For a place, the oldest first.
  template <class A>
  void Fields(A& a) {
    a(driver, target, incarnations, workers, driver_place, waiting);
  }
};

// What is kept of a run that is over until its driver has heard of it.
struct EndedRecord {
  RunSpec spec;  // Without its payload.
  std::string driver;
  std::string driver_place;
  std::string state;
  std::string reason;
  std::vector<RunEvent> events;  // Its results, if they are not large, and "done".
  template <class A>
  void Fields(A& a) {
    a(spec, driver, driver_place, state, reason, events);
  }
};

}  // namespace troupe::daemons
