// RemoteActor: an actor of another process, as the handles of this one refer to it.
//
//   unknown --alive--> bound --restarting--> unbound --alive--> bound ... --dead--> gone
//
// Thread: any.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/host/actor_system.h"
#include "runtime/brief_mutex.h"

namespace troupe::actors {

class RemoteActor final : public ActorRef, public std::enable_shared_from_this<RemoteActor> {
 public:
  RemoteActor(std::shared_ptr<ActorSystem> system, ActorAddress address);
  ~RemoteActor() override;

  [[nodiscard]] ActorAddress address() const override;
  uint64_t Call(std::string method, std::string arguments, const CallOptions& options,
                CallDone done) override;
  void Cancel(uint64_t call, const Cancellation& how) override;
  uint64_t Monitor(OnDown down) override;
  void Demonitor(uint64_t monitor) override;
  void Kill(bool restart, const std::string& reason, CallDone done) override;
  [[nodiscard]] std::string WhyNot() const override;
  [[nodiscard]] std::string RoomReason() const override;

  // Links to it or asks where it is. Once, when it is in the system's table.
  void Begin();
  // What the process `from` says of it; what is not the one that it lives in now is not heard: the
  // head may have given a life up that goes on out of its sight.
  void OnReply(const std::string& from, ActorReply reply);
  void OnMissing(const std::string& from, const ActorMissing& missing);
  void OnFull(const std::string& from, const ActorFull& full);
  void OnRoom(const std::string& from);
  void OnWhereabouts(const ActorLocation& whereabouts);
  void OnGone(const Error& reason);
  // Deadlines, checks, what is left to send. False when no call is open any more.
  [[nodiscard]] bool Sweep(Time now);

 private:
  void Pump(Time now);  // With mu_ held.
  void WatchAgain();
  void Follow(const std::string& what);

  const std::shared_ptr<ActorSystem> system_;
  std::string followed_;  // In the directory. Set by Begin.
  mutable BriefMutex mu_;
  ActorAddress address_;
  CallWindow window_;
  bool gone_ = false;
  Error reason_;
  std::string why_not_;  // While it is not bound.
  std::string room_reason_;
  bool active_ = false;
  Time watch_at_{};  // When the next word that we watch it is due.
  uint64_t next_monitor_ = 1;
  std::map<uint64_t, OnDown> monitors_;
};

}  // namespace troupe::actors
