// LocalActor: an actor of this process, as its handles refer to it: no bytes leave the process.
// EndedActor: one that is gone.
// Thread: any.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "actors/host/actor_system.h"

namespace troupe::actors {

class LocalActor final : public ActorRef {
 public:
  LocalActor(std::shared_ptr<ActorSystem> system, std::shared_ptr<ActorCell> cell)
      : system_(std::move(system)), cell_(std::move(cell)) {}

  [[nodiscard]] ActorAddress address() const override { return cell_->self(); }
  uint64_t Call(std::string method, std::string arguments, const CallOptions& options,
                CallDone done) override;
  void Cancel(uint64_t call, const Cancellation& how) override { cell_->OnCancel("", call, how); }
  uint64_t Monitor(OnDown down) override;
  void Demonitor(uint64_t monitor) override;
  void Kill(bool restart, const std::string& reason, CallDone done) override;

 private:
  const std::shared_ptr<ActorSystem> system_;
  const std::shared_ptr<ActorCell> cell_;
};

class EndedActor final : public ActorRef {
 public:
  EndedActor(ActorAddress address, Error reason)
      : address_(std::move(address)), reason_(std::move(reason)) {}

  [[nodiscard]] ActorAddress address() const override { return address_; }
  uint64_t Call(std::string, std::string, const CallOptions&, CallDone done) override {
    done(reason_);
    return 0;
  }
  void Cancel(uint64_t, const Cancellation&) override {}
  uint64_t Monitor(OnDown down) override {
    down(reason_);
    return 0;
  }
  void Demonitor(uint64_t) override {}
  void Kill(bool, const std::string&, CallDone done) override { done(std::string()); }

 private:
  const ActorAddress address_;
  const Error reason_;
};

}  // namespace troupe::actors
