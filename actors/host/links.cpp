#include "actors/host/links.h"

#include "actors/host/actor_system.h"
#include "actors/host/placing.h"

namespace troupe::actors {

void ProcessLinks::Link(const ActorAddress& mine, const ActorAddress& other) {
  const Pair pair{mine.actor, other.actor};
  auto guards = std::make_shared<Guards>();
  {
    std::lock_guard lock(mu_);
    if (!links_.emplace(pair, guards).second) return;
  }
  const auto watch = [&](const ActorAddress& watched, const ActorAddress& left) {
    const auto ref = system_->Refer(watched);
    return MonitorGuard(ref, ref->Monitor([links = weak_from_this(), pair, left](const Error& why) {
      if (const auto alive = links.lock()) alive->OnEnded(pair, left, why.message);
    }));
  };
  MonitorGuard of_mine = watch(mine, other);
  MonitorGuard of_other = watch(other, mine);
  // One may have ended meanwhile, and the pair been taken; then these go here.
  std::lock_guard lock(mu_);
  if (!links_.contains(pair)) return;
  guards->mine = std::move(of_mine);
  guards->other = std::move(of_other);
}

std::shared_ptr<ProcessLinks::Guards> ProcessLinks::Take(const Pair& pair) {
  std::lock_guard lock(mu_);
  const auto it = links_.find(pair);
  if (it == links_.end()) return nullptr;
  auto guards = std::move(it->second);
  links_.erase(it);
  return guards;
}

void ProcessLinks::Unlink(const std::string& mine, const std::string& other) {
  (void)Take({mine, other});
}

size_t ProcessLinks::size() const {
  std::lock_guard lock(mu_);
  return links_.size();
}

void ProcessLinks::OnEnded(const Pair& pair, const ActorAddress& left, const std::string& reason) {
  if (Take(pair) == nullptr) return;
  const std::string& gone = left.actor == pair.first ? pair.second : pair.first;
  system_->Refer(left)->Kill(false, "it is linked to " + gone + ": " + reason,
                             [](const Result<std::string>&) {});
}

namespace {

Status AskHost(const std::shared_ptr<ActorSystem>& system, const ActorAddress& mine,
               const ActorAddress& other, const char* what, Duration limit) {
  if (mine.process.peer.empty())
    return Error{ErrorCode::kUnavailable, "it is not known yet where " + mine.actor + " is"};
  const Pack<ActorAddress, ActorAddress, std::string> arguments{{mine, other, what}};
  const Future<std::string> done;
  (void)system->Refer(ActorSystem::HostOf(mine.process))
      ->Call("link", wire::Encode(kArgumentsType, arguments), CallOptions{limit, true},
             [done](Result<std::string> r) { done.Complete(std::move(r)); });
  const Result<std::string> answered = done.Get();
  return answered.ok() ? Status::Ok() : Status(answered.error());
}

}  // namespace

Status SetLink(const std::shared_ptr<ActorSystem>& system, const ActorAddress& one,
               const ActorAddress& other, bool on, Duration limit) {
  if (one.actor == other.actor)
    return Error{ErrorCode::kInvalidArgument, "an actor cannot be linked to itself"};
  if (one.placed && other.placed) {
    if (system->directory_client() == nullptr) return NoCluster();
    const Future<std::string> done;
    system->directory_client()->Link(
        one.actor, other.actor, on, limit,
        [done](Result<std::string> r) { done.Complete(std::move(r)); });
    const Result<std::string> linked = done.Get();
    return linked.ok() ? Status::Ok() : Status(linked.error());
  }
  // First whether both are there, so that none is ended by a link that cannot be.
  for (const char* what : {"check", on ? "link" : "unlink"}) {
    if (Status s = AskHost(system, one, other, what, limit); !s.ok()) return s;
    if (Status s = AskHost(system, other, one, what, limit); !s.ok()) return s;
  }
  return Status::Ok();
}

}  // namespace troupe::actors
