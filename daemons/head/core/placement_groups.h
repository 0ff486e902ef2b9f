// PlacementGroups: the placement groups of the cluster, around the scheduler: who may ask for them,
// who waits for one, what is kept in the store.
//
// Thread: the head's loop.
// Owns: nothing; the scheduler has the room, this the names, owners and records.
// Invariants:
//   PG-1 a request that is repeated, also to a head that has been restarted, has its effect once.
//   PG-2 what was answered is in the store, unless that was away.
//   PG-3 a group that was there before a restart of the head keeps its bundles where they were, as
//        far as their nodes are heard in time.
// Limits: kGroupWaitersMax; those of the scheduler.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "daemons/head/core/head_queue.h"
#include "runtime/clock.h"
#include "runtime/result.h"
#include "scheduler/scheduler.h"

namespace troupe::daemons {

inline constexpr size_t kGroupWaitersMax = 100'000;
inline constexpr Duration kGroupWaiterKept = seconds(5);  // They repeat themselves.
inline constexpr size_t kGroupRequestsKept = 64;          // Of one group, to know repeats by.
inline constexpr const char* kGroupRecords = "placement_group/";

// What is durable of a group.
struct GroupRecord {
  struct Bundle {
    uint32_t number = 0;
    PlacementBundle wish;
    std::string node;
    std::vector<uint32_t> devices;
    template <class A>
    void Fields(A& a) {
      a(number, wish, node, devices);
    }
  };
  actors::GroupSpec spec;
  std::vector<Bundle> bundles;
  uint64_t resized = 0;
  uint32_t next_bundle = 0;
  std::vector<std::string> requests;  // The last that had an effect.
  template <class A>
  void Fields(A& a) {
    a(spec, bundles, resized, next_bundle, requests);
  }
};

class PlacementGroups {
 public:
  PlacementGroups(HeadQueue* queue, const Scheduler* scheduler)
      : queue_(queue), scheduler_(scheduler) {}
  // From the store; before anything else, when the scheduler is recovering.
  void Restore(const std::map<std::string, std::string>& records);
  // The scheduler has this node, before what runs on it is claimed.
  void OnNodeUp();
  // After a restart: whether bundles are not yet where they were.
  [[nodiscard]] bool Unconfirmed() const;
  void Recovered() { claims_.clear(); }

  void OnRequest(const std::string& from, const actors::GroupRequest& request);
  // What it has asked of the scheduler is decided.
  void OnTried();
  void AnswerKept(const step::AnswerGroup& answer);
  void AnswerPlaced(const std::string& group) { AnswerWaiters(group, Status::Ok()); }
  void OnChange(const sched::GroupChange& change);
  void OnRefused(const sched::Refused& refused);
  void OwnerGone(const std::string& owner);
  // `final`: what the nodes that are there could never hold will never be placed.
  void OnTick(bool final);
  void RefreshKeys();
  [[nodiscard]] const std::map<std::string, GroupRecord>& groups() const { return groups_; }

 private:
  using Waiter = std::pair<std::string, uint64_t>;  // Who, and the number of the request.

  [[nodiscard]] Result<sched::BundleSpec> Spec(const PlacementBundle& bundle) const;
  [[nodiscard]] Result<std::vector<sched::BundleSpec>> Specs(
      const std::vector<PlacementBundle>& bundles) const;
  [[nodiscard]] sched::ClaimGroup ClaimOf(const GroupRecord& record) const;
  // True: the scheduler is asked, and the answer is given by OnTried.
  [[nodiscard]] Result<bool> Create(const std::string& from, const actors::GroupRequest& request);
  [[nodiscard]] Result<bool> Resize(const std::string& from, const actors::GroupRequest& request);
  void Try(const std::string& from, uint64_t request, std::optional<GroupRecord> before,
           const std::string& group, SchedulerEvent event);
  void AnswerWhenKept(const std::string& from, uint64_t request, const std::string& group);
  void Add(GroupRecord& record, const std::vector<PlacementBundle>& bundles);
  void Remove(const std::string& group);
  void Keep(const std::string& group);
  void Answer(const std::string& to, uint64_t request, const std::string& group,
              const Status& status);
  void AnswerWaiters(const std::string& group, const Status& status);
  [[nodiscard]] bool Placed(const std::string& group) const;
  [[nodiscard]] PlacementGroupStatus StatusOf(const GroupRecord& record) const;

  HeadQueue* const queue_;
  const Scheduler* const scheduler_;
  std::map<std::string, GroupRecord> groups_;
  std::map<std::string, std::string> names_;
  std::map<std::string, sched::ClaimGroup> claims_;
  std::map<std::string, std::map<Waiter, Time>> waiters_;  // And when they were heard last.
  size_t waiting_ = 0;
  // What the scheduler is asked for on somebody's request.
  struct Trial {
    std::string from;
    uint64_t request = 0;
    std::string group;
    std::optional<GroupRecord> before;  // As it is again if it is refused.
    std::optional<Error> refused;
  };
  std::deque<Trial> trials_;
};

}  // namespace troupe::daemons
