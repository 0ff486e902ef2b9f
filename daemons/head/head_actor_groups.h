// HeadActorGroups: the shell around ActorGroups: requests and their answers, records, who waits for
// something to happen.
//
// Thread: the head's loop.
// Owns: the groups; their actors are in the directory.
// Invariants: AG-6 what was answered is in the store, unless that was away. AG-7 one event is dealt
// with after the other: what comes of one is not begun inside of another.
// Limits: those of ActorGroups; kGroupWatchersMax requests wait.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemons/head/core/actor_groups.h"

namespace troupe::daemons {

inline constexpr size_t kGroupWatchersMax = 100'000;
inline constexpr Duration kGroupWatcherKept = seconds(5);  // They repeat themselves.
inline constexpr const char* kActorGroupRecords = "actor_group/";

class HeadActorGroups {
 public:
  struct Callbacks {
    std::function<actors::ActorLocation(const std::string& actor)> where;
    std::function<bool(const std::string& actor)> known;
    std::function<Status(const std::vector<actors::ActorSpec>& actors, size_t at_least)> start;
    std::function<void(const std::string& actor, const std::string& reason)> end;
    // Its process is told to leave.
    std::function<void(const std::string& actor, const std::string& reason)> leave;
    // The collective group of this name is to have these members; none: it is over.
    std::function<void(const std::string& name, const GroupMembership* members)> collect;
    std::function<void(const std::string& name, const std::string& actor,
                       const std::string& reason)>
        drain;
    // It goes on without these members, at once; or none of its members is kept out any more.
    std::function<void(const std::string& name, const std::vector<std::string>& actors,
                       const std::string& reason)>
        dismiss;
    std::function<void(const std::string& name)> readmit;
    std::function<bool(const std::string& name)> collective_taken;
    // Writes a record, or deletes it if it is empty.
    std::function<void(const std::string& key, std::string record)> keep;
    // Calls `then` when all of that is done; once for each name.
    std::function<void(const std::string& name, std::function<void()> then)> when_kept;
    std::function<void(const std::string& to, const actors::ActorAnswer& answer)> answer;
  };

  explicit HeadActorGroups(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}
  // From the store, after the actors and the collective groups.
  void Restore(Time now, const std::map<std::string, std::string>& records);

  void OnRequest(Time now, const std::string& from, const actors::ActorGroupRequest& request);
  // Something has changed about the actor.
  void OnActor(Time now, const std::string& actor);
  void OwnerGone(Time now, const std::string& owner);
  // Its node goes: a member of a group leaves it and is replaced. False: it is no member.
  bool OnNodeDrain(Time now, const std::string& actor, const std::string& reason, Duration limit);
  void OnTick(Time now);
  void RefreshKeys();
  [[nodiscard]] std::vector<ActorGroupStatus> List() const;
  [[nodiscard]] const ActorGroups& groups() const { return groups_; }

 private:
  using Watcher = std::pair<std::string, uint64_t>;  // Who, and the number of the request.
  struct Waiting {
    uint64_t since = 0;
    Time heard{};
  };

  void Do(ActorGroupActions actions);
  void DoOne(const ActorGroupAction& action);
  void Keep(const std::string& group);
  void Tell(const std::string& group);
  [[nodiscard]] Status Handle(Time now, const actors::ActorGroupRequest& request,
                              std::string& group);

  const Callbacks callbacks_;
  ActorGroups groups_;
  std::deque<ActorGroupAction> to_do_;
  bool doing_ = false;
  std::map<std::string, std::map<Watcher, Waiting>> watchers_;  // By group.
  size_t watching_ = 0;
};

}  // namespace troupe::daemons
