// Reports what this process has asked for and what has no room yet.
#include <utility>

#include "actors/core/group_protocol.h"
#include "actors/host/actor_system.h"
#include "actors/host/remote_actor.h"
#include "actors/host/task_pool.h"

namespace troupe::actors {
namespace {

constexpr Duration kTellInterval = seconds(2);

}  // namespace

void ActorSystem::WatchGroup(const std::string& group) {
  std::lock_guard lock(mu_);
  if (options_.on_waiting && groups_.size() < kGroupsWatchedMax) groups_.try_emplace(group);
}

void ActorSystem::AskOfGroups() {
  std::vector<std::string> groups;
  {
    std::lock_guard lock(mu_);
    for (const auto& [group, reason] : groups_) groups.push_back(group);
  }
  for (const std::string& group : groups) {
    GroupRequest request;
    request.verb = PlacementGroupVerb::kStatus;
    request.spec.group = group;
    const auto on_status = [weak = weak_from_this(), group](const auto& status) {
      const auto alive = weak.lock();
      if (!alive) return;
      std::lock_guard lock(alive->mu_);
      const auto known = alive->groups_.find(group);
      if (known == alive->groups_.end()) return;
      if (!status.ok() && status.error().code == ErrorCode::kDeadlineExceeded) return;
      if (status.ok() && !status->placed()) {
        known->second = status->reason;
      } else {
        alive->groups_.erase(known);
      }
    };
    options_.directory_client->Group(std::move(request), kTellInterval, on_status);
  }
}

void ActorSystem::TellWaiting() {
  if (!options_.on_waiting || options_.directory_client == nullptr || stopped_.load()) return;
  AskOfGroups();
  std::vector<std::shared_ptr<RemoteActor>> remotes;
  std::map<std::string, std::string> waiting;
  TaskPool* tasks = nullptr;
  {
    std::lock_guard lock(mu_);
    tasks = tasks_.get();
    for (const auto& [id, weak] : remotes_) {
      if (auto remote = weak.lock()) remotes.push_back(std::move(remote));
    }
    for (const auto& [group, reason] : groups_) {
      if (!reason.empty()) waiting["placement group " + group] = reason;
    }
  }
  for (const auto& remote : remotes) {
    const ActorAddress address = remote->address();
    if (address.type == kTaskRunner) continue;  // The pool says when tasks cannot go on.
    const std::string reason = remote->RoomReason();
    if (!reason.empty()) waiting[address.type + " " + address.actor] = reason;
  }
  if (tasks != nullptr) waiting.merge(tasks->Waiting());
  for (const std::string& line : notes_.Update(transport_->loop().Now(), waiting))
    options_.on_waiting(line);
  transport_->loop().CallAfter(kTellInterval, [weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->TellWaiting();
  });
}

}  // namespace troupe::actors
