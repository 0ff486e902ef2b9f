#include "daemons/head/core/actor_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::daemons {

// Follower list protocol: every frame that changes the list has the version that it leads to, so a
// version stands for one list. A change that does not follow ours is ignored, and the answer's
// version tells the follower to send the whole.
void ActorWatch::OnFollow(Time now, const std::string& from, const actors::FollowActors& follow) {
  const bool known = followers_.contains(from);
  if (!known && followers_.size() >= kFollowersMax) return;
  Follower& follower = followers_[from];
  follower.heard = now;
  std::set<std::string> told;
  if (!follow.add.empty() || !follow.drop.empty() || follow.whole) {
    if (follow.whole || follow.version == follower.version + 1)
      told = Change(from, follower, follow);
    return Tell(from, follower, told, follower.told);
  }
  // What it has missed, by its own word.
  const uint64_t stands = follow.log == log_ ? follow.revision : 0;
  if (stands < follower.told) {
    for (const auto& [actor, since] : follower.actors) {
      const auto changed = changed_.find(actor);
      if (std::max(since, changed == changed_.end() ? 0 : changed->second) > stands)
        told.insert(actor);
    }
  }
  Tell(from, follower, told, stands);
}

// Returns what is new on the list. Being put there counts as a change, so that its first word is
// told again if it gets lost.
std::set<std::string> ActorWatch::Change(const std::string& from, Follower& follower,
                                         const actors::FollowActors& follow) {
  std::set<std::string> added;
  if (follow.whole) {
    for (const auto& [actor, since] : follower.actors) following_[actor].erase(from);
    follower.actors.clear();
  }
  for (const std::string& actor : follow.drop) {
    if (follower.actors.erase(actor) > 0) following_[actor].erase(from);
  }
  if (!follow.add.empty()) ++revision_;
  for (const std::string& actor : follow.add) {
    if (!follower.actors.emplace(actor, revision_).second) continue;
    following_[actor].insert(from);
    added.insert(actor);
  }
  follower.version = follow.version;
  return added;
}

void ActorWatch::Tell(const std::string& to, Follower& follower,
                      const std::set<std::string>& actors, uint64_t before) {
  actors::ActorStates states{log_, before, revision_, follower.version, {}};
  for (const std::string& actor : actors) states.actors.push_back(where_(actor));
  follower.told = revision_;
  send_(to, states);
}

void ActorWatch::Changed(const std::string& actor) {
  ++revision_;
  changed_[actor] = revision_;
  const auto it = following_.find(actor);
  if (it == following_.end()) return;
  const std::set<std::string> peers = it->second;
  for (const std::string& peer : peers) {
    Follower& follower = followers_.at(peer);
    Tell(peer, follower, {actor}, follower.told);
  }
}

std::vector<std::string> ActorWatch::Forget(Time now) {
  std::vector<std::string> silent;
  for (const auto& [name, follower] : followers_) {
    if (now >= follower.heard + kFollowerIdle) silent.push_back(name);
  }
  for (const std::string& name : silent) Drop(name);
  std::erase_if(following_, [](const auto& entry) { return entry.second.empty(); });
  std::erase_if(changed_, [&](const auto& entry) { return !following_.contains(entry.first); });
  return silent;
}

std::vector<std::string> ActorWatch::Followed(const std::string& prefix) const {
  std::vector<std::string> all;
  for (const auto& [actor, followers] : following_) {
    if (actor.starts_with(prefix)) all.push_back(actor);
  }
  return all;
}

void ActorWatch::Drop(const std::string& name) {
  const auto it = followers_.find(name);
  if (it == followers_.end()) return;
  for (const auto& [actor, since] : it->second.actors) following_[actor].erase(name);
  followers_.erase(it);
}

}  // namespace troupe::daemons
