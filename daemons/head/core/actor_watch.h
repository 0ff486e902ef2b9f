// ActorWatch: tells processes what has changed of the actors that they follow.
//
// Every change of an actor has a revision. A follower is told changes as they come, each frame
// naming the revision before; who has missed one says where it stands and is told the rest. The
// list of what a process follows is its own; the head keeps a copy, with a version, and asks for
// the whole where the two differ. What a frame says holds only for who has got all before it.
// Thread: the head's loop.
// Limits: kFollowersMax processes; one that is silent for kFollowerIdle is forgotten.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/core/cluster_protocol.h"
#include "runtime/clock.h"

namespace troupe::daemons {

inline constexpr size_t kFollowersMax = 100'000;
inline constexpr Duration kFollowerIdle = seconds(60);

class ActorWatch {
 public:
  using Send = std::function<void(const std::string& to, const actors::ActorStates& states)>;
  using Where = std::function<actors::ActorLocation(const std::string& actor)>;

  ActorWatch(std::string log, Where where, Send send)
      : log_(std::move(log)), where_(std::move(where)), send_(std::move(send)) {}

  void OnFollow(Time now, const std::string& from, const actors::FollowActors& follow);
  // The actor has changed.
  void Changed(const std::string& actor);
  // Forgets who has been silent for long, and returns whom.
  std::vector<std::string> Forget(Time now);
  void Drop(const std::string& follower);
  [[nodiscard]] std::vector<std::string> Followed(const std::string& prefix) const;
  [[nodiscard]] bool Knows(const std::string& follower) const {
    return followers_.contains(follower);
  }
  [[nodiscard]] size_t followers() const { return followers_.size(); }

 private:
  struct Follower {
    std::map<std::string, uint64_t> actors;  // And the revision since which it follows them.
    uint64_t version = 0;
    uint64_t told = 0;  // The last revision sent to it.
    Time heard{};
  };

  std::set<std::string> Change(const std::string& from, Follower& follower,
                               const actors::FollowActors& follow);
  void Tell(const std::string& to, Follower& follower, const std::set<std::string>& actors,
            uint64_t before);

  const std::string log_;
  const Where where_;
  const Send send_;
  uint64_t revision_ = 1;
  std::map<std::string, Follower> followers_;
  std::map<std::string, std::set<std::string>> following_;  // By actor.
  std::map<std::string, uint64_t> changed_;                 // Revision of the last.
};

}  // namespace troupe::daemons
