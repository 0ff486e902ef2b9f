// HeadActorGroups: the shell around ActorGroups: requests and their answers, records, who waits for
// something to happen.
//
// Thread: the head's loop.
// Owns: the groups; their actors are in the directory.
// Invariants: AG-6 what was answered is in the store, unless that was away.
// Limits: those of ActorGroups; kGroupWatchersMax requests wait.
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "daemons/head/core/actor_groups.h"
#include "daemons/head/core/collective_groups.h"
#include "daemons/head/core/head_queue.h"

namespace troupe::daemons {

inline constexpr size_t kGroupWatchersMax = 100'000;
inline constexpr Duration kGroupWatcherKept = seconds(5);  // They repeat themselves.
inline constexpr const char* kActorGroupRecords = "actor_group/";

class HeadActorGroups {
 public:
  HeadActorGroups(HeadQueue* queue, const actors::Directory* directory,
                  const CollectiveGroups* collectives)
      : queue_(queue), directory_(directory), collectives_(collectives) {}
  // From the store, after the actors and the collective groups.
  void Restore(const std::map<std::string, std::string>& records);
  // For the head itself: what `change(groups, actions)` returns, with what comes of it done.
  template <class F>
  auto Change(F&& change) {
    ActorGroupActions actions;
    if constexpr (std::is_void_v<decltype(change(groups_, actions))>) {
      change(groups_, actions);
      Do(actions);
    } else {
      auto result = change(groups_, actions);
      Do(actions);
      return result;
    }
  }

  void OnRequest(const std::string& from, const actors::ActorGroupRequest& request);
  // Something has changed about the actor.
  void OnActor(const std::string& actor);
  void OwnerGone(const std::string& owner);
  // Its node goes: a member of a group leaves it and is replaced. False: it is no member.
  bool OnNodeDrain(const std::string& actor, const std::string& reason, Duration limit);
  void OnTick();
  void RefreshKeys();
  // Without those of runs, which are listed as runs.
  [[nodiscard]] std::vector<ActorGroupStatus> List() const;
  [[nodiscard]] const ActorGroups& groups() const { return groups_; }

 private:
  using Watcher = std::pair<std::string, uint64_t>;  // Who, and the number of the request.
  struct Waiting {
    uint64_t since = 0;
    Time heard{};
  };

  void Do(const ActorGroupActions& actions);
  void DoOne(const ActorGroupAction& action);
  [[nodiscard]] std::string NameOf(const std::string& group) const;
  void Keep(const std::string& group);
  void Tell(const std::string& group);
  [[nodiscard]] Status Handle(const actors::ActorGroupRequest& request, std::string& group);

  HeadQueue* const queue_;
  const actors::Directory* const directory_;
  const CollectiveGroups* const collectives_;
  ActorGroups groups_;
  std::map<std::string, std::map<Watcher, Waiting>> watchers_;  // By group.
  size_t watching_ = 0;
};

}  // namespace troupe::daemons
