// The cluster scheduler: who runs where, in which order, and why something waits. A pure state
// machine.
//
//   lease    pending --> granted --> confirmed --> (released, revoked)
//               ^           |  not confirmed in time, or its node died first
//               +-----------+
//   group    pending --> placed <--> rescheduling, resizing --> removed
//
// A request is placed by its strategy among the nodes that its labels accept; work without a GPU
// keeps off GPU nodes while others have room. Hybrid fills nodes to half in the order of their
// joining, then takes the least used. Waiting requests are served by priority, then first come
// first served; one that does not fit lets later ones pass. One that heads its priority and has
// waited `starvation_after` is promised room: what it needs of a node (or of a bundle) is left
// alone by those behind it, until it is placed, there or elsewhere. Nothing that runs is ever taken
// away to make room: there is no preemption, and a promise is kept by waiting.
// Groups reserve all of their bundles at once or none. A resize leaves placed bundles where they
// are, and places those of one resize at once or none; so are bundles placed that a node's death
// took. Requests draw from the reservation of a bundle, and wait while it is not placed.
// A grant that is not confirmed within `confirm_within` is revoked; the request waits again, and
// its node gets nothing new for a while, longer each time until a confirmation comes from there.
// A lease whose process only waits lends its CPU: it can be given to others, in its bundle if it is
// in one. It takes it back at once. Then more CPU may be in use than there is, and nothing that
// needs CPU is granted there until enough of it is released or lent.
// After its drain deadline a node is still there until NodeGone says otherwise.
// Thread: one. Never reads a clock; the caller calls Step with a Wake at next_wake().
// Invariants:
//   SC-1 no node and no device is given more than it has, nor a bundle; but of CPU what was taken
//        back or claimed.
//   SC-2 a lease has one node at most, a granted one exactly one, and only one that its labels
//        accept; nothing new goes to a node that is suspect, draining or quarantined.
//   SC-3 bundles that were asked for together are placed together or not at all, as the strategy
//        says.
//   SC-4 what fits is not left waiting: when Step returns, no waiting single request has room that
//        is not promised to one before it.
//   SC-5 room that is promised is not taken by those behind.
//   SC-6 among requests of one shape the order is priority, then arrival.
//   SC-7 when all is released, nothing is used and nothing is promised.
//   SC-8 the same events at the same times give the same decisions.
//   SC-9 who comes first of all, could run on a node that is there and has waited
//        `starvation_after` is promised room.
//   SC-10 a grant that is not confirmed in time is revoked, and nothing else that runs is, but with
//        its node, bundle or group.
//   SC-11 a lease lends its CPU and nothing else, while it is granted or confirmed; where more CPU
//        is in use than there is, nothing that needs CPU is granted.
// Limits: below; each is refused with a sentence.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/scheduler_events.h"
#include "scheduler/scheduler_status.h"

namespace troupe {

inline constexpr size_t kSchedulerLeasesMax = 1'000'000;
inline constexpr size_t kSchedulerGroupsMax = 100'000;
inline constexpr size_t kSchedulerShapesMax = 100'000;        // Kinds of requests at once.
inline constexpr size_t kSchedulerResourceNamesMax = 50'000;  // Ever, of custom resources.
inline constexpr size_t kSchedulerPromisesMax = 8;            // Requests with a promise at once.
inline constexpr size_t kBundlesMax = 10'000;                 // Of one group.
inline constexpr size_t kGangMax = 10'000;
inline constexpr size_t kFallbacksMax = 8;
inline constexpr size_t kSchedulerIdBytesMax = 256;

struct SchedulerOptions {
  Duration confirm_within = seconds(60);
  Duration starvation_after = seconds(30);
  Duration aside_first = seconds(2);  // How long a node is quarantined, doubled each time,
  Duration aside_most = seconds(60);  // up to this.
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  SchedulerDecision Step(Time now, const SchedulerEvent& event);
  // When the next Wake is due; Never when nothing can happen by itself.
  [[nodiscard]] Time next_wake() const;

  // How things stand, by id. These look at everything and are for people; reasons are made here.
  [[nodiscard]] std::vector<sched::NodeStatus> Nodes() const;
  [[nodiscard]] std::vector<sched::LeaseStatus> Leases() const;
  [[nodiscard]] std::vector<sched::GroupStatus> Groups() const;
  [[nodiscard]] std::vector<sched::PromiseStatus> Promises() const;
  // Of the first `limit` that wait those that would fit if less were in use: one of each kind of
  // request, of each gang, of each group.
  [[nodiscard]] std::vector<std::string> WaitingForRoom(size_t limit) const;
  [[nodiscard]] std::optional<sched::LeaseStatus> FindLease(const std::string& id) const;
  [[nodiscard]] std::optional<sched::GroupStatus> FindGroup(const std::string& id) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
