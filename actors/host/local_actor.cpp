#include "actors/host/local_actor.h"

#include <algorithm>

namespace troupe::actors {

uint64_t LocalActor::Call(std::string method, std::string arguments, const CallOptions& options,
                          CallDone done) {
  // The cell answers calls that wait too long; the system those that run too long.
  const auto call = std::make_shared<ActorSystem::LocalCall>();
  call->deadline = SteadyClock().Now() + options.timeout;
  call->done = std::move(done);
  const uint64_t number =
      cell_->CallLocal(std::move(method), std::move(arguments), call->deadline,
                       [call](Result<std::string> result) { call->Finish(std::move(result)); });
  if (call->finished.load()) return 0;
  system_->Expect(call);
  return number;
}

uint64_t LocalActor::Monitor(OnDown down) {
  Error reason;
  {
    std::lock_guard lock(system_->mu_);
    const std::string& actor = cell_->self().actor;
    if (system_->cells_.contains(actor)) {
      const uint64_t id = system_->next_monitor_++;
      system_->monitors_[actor].push_back({id, std::move(down)});
      return id;
    }
    reason = system_->ReasonOf(actor);
  }
  down(reason);
  return 0;
}

void LocalActor::Demonitor(uint64_t monitor) {
  std::lock_guard lock(system_->mu_);
  const auto it = system_->monitors_.find(cell_->self().actor);
  if (it == system_->monitors_.end()) return;
  std::erase_if(it->second, [&](const auto& one) { return one.id == monitor; });
}

void LocalActor::Kill(bool restart, const std::string& reason, CallDone done) {
  const ActorAddress& self = cell_->self();
  if (self.placed && system_->directory_client() != nullptr)
    return system_->directory_client()->Kill(self.actor, restart, reason, std::move(done));
  (void)system_->End(self.actor, Error{ErrorCode::kPeerGone, reason});
  done(std::string());
}

}  // namespace troupe::actors
