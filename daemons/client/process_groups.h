// ProcessGroups: the collective groups that the actor of this process is in.
//
// Thread: any. Enter, Leave and Look ask the head and block.
// Owns: the groups, their communicators and threads.
// Invariants: of a group at most one membership at a time; one that is over, and whose callers have
// been told so, is replaced by a new one when the group is entered again. One that was evicted,
// as dead, is replaced by one that follows on it.
// Limits: kProcessGroupsMax groups.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "actors/api/collective.h"
#include "collective_groups/collectives/collective_group.h"
#include "daemons/client/worker_client.h"

namespace troupe::daemons {

inline constexpr size_t kProcessGroupsMax = 64;

class ProcessGroups {
 public:
  // What is asked for where the group is not there yet; size 0: it must be.
  struct Wanted {
    uint32_t size = 0;
    bool elastic = false;
    uint32_t min_size = 1;
    int32_t rank = -1;  // -1: the one that is meant for this actor.
  };
  // Of a group in which this actor trains.
  struct Training {
    std::shared_ptr<groups::GroupAgent> agent;
    uint32_t max_size = 1;
    bool running = false;  // Others were in it already.
  };

  ProcessGroups(WorkerClient* worker, std::shared_ptr<actors::ActorSystem> system,
                std::string actor, uint64_t incarnation);
  ~ProcessGroups();

  // The group of this name, of which this actor is a member from now on; complete or not.
  Result<std::shared_ptr<groups::CollectiveGroup>> Enter(const std::string& name,
                                                         const Wanted& wanted, Duration limit);
  // The same for a training loop, which takes the member from epoch to epoch by itself. Ready joins
  // again if the member is out of the group by then: taken for dead, or told to leave for a while.
  // kInvalidArgument: this actor uses the group in the other way.
  Result<Training> Train(const std::string& name, Duration limit);
  // Null if this actor is not in it.
  [[nodiscard]] std::shared_ptr<groups::CollectiveGroup> Find(const std::string& name) const;
  Status Leave(const std::string& name, Duration limit);
  void Stop();
  // Those of the actor of this process, while it is served; null in another process.
  [[nodiscard]] static std::shared_ptr<ProcessGroups> Here();
  static void SetHere(const std::shared_ptr<ProcessGroups>& groups);

 private:
  struct Routes;  // Outlives this, for frames that come meanwhile.

  [[nodiscard]] actors::CollectiveRequest About(actors::CollectiveVerb verb,
                                                const std::string& name,
                                                const Wanted& wanted) const;
  Result<actors::CollectiveStatus> Ask(actors::CollectiveVerb verb, const std::string& name,
                                       const Wanted& wanted, Duration limit) const;
  [[nodiscard]] Status CheckRoom() const;
  [[nodiscard]] std::string Missing(const std::string& name) const;

  WorkerClient* const worker_;
  const std::shared_ptr<actors::ActorSystem> system_;
  const std::string actor_;
  const uint64_t incarnation_;
  const std::shared_ptr<Routes> routes_;
  std::mutex entering_;  // Held while the head is asked.
};

}  // namespace troupe::daemons
