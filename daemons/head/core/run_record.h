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
  uint64_t unused = 0;  // Older releases kept here how long it had to leave; its group does.
  std::string forced;   // Why it is ended by force; empty: it is not.
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
    a(index, incarnation, process, node, state, rank, unused, fenced, actor, devices, pid, host);
  }
};

// The part that outlives the head, beside the record of its group of workers.
struct RunRecord {
  std::string driver;
  uint32_t target = 0;  // How many workers were asked for last.
  // Older releases kept here which numbers they had given to workers.
  std::map<std::string, uint64_t> numbers;
  std::vector<RunWorker> workers;  // Those lives of members of its group that have had a place.
  std::string driver_place;        // Which process it is.
  template <class A>
  void Fields(A& a) {
    a(driver, target, numbers, workers, driver_place);
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
