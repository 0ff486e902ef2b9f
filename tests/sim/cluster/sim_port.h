// A process's end of the simulated network, with its clockwork: what stops the process holds both.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "runtime/transport.h"

namespace troupe::daemons::sim {

class World;

inline constexpr Duration kSimBeat = milliseconds(300);  // Of processes of actors and workers.
inline constexpr Duration kSimLook =
    milliseconds(300);  // How often a process looks what it waits for.

class SimPort final : public Transport, private EventLoop {
 public:
  SimPort(World* world, const std::string& name, std::string host);
  ~SimPort() override { SimPort::Stop(); }

  // Stopped, its frames and timers wait.
  void Freeze(bool frozen);
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] const std::string& host() const { return host_; }
  // Another process of this name has another one.
  [[nodiscard]] uint64_t life() const { return life_; }

  [[nodiscard]] const std::string& self() const override { return inner_->self(); }
  EventLoop& loop() override { return *this; }
  void SetHandler(Handler handler) override { handler_ = std::move(handler); }
  void SetDropHandler(DropHandler handler) override { inner_->SetDropHandler(std::move(handler)); }
  Result<PeerAddress> Listen(const std::string& endpoint) override {
    return inner_->Listen(endpoint);
  }
  Status Connect(const PeerAddress&) override { return Status::Ok(); }
  void Disconnect(const std::string&) override {}
  void Stop() override;
  Status Send(const std::string& to, std::string frame) override;
  // It has waited for a cut to heal.
  void SendLate(const std::string& to, std::string frame) {
    (void)inner_->Send(to, std::move(frame));
  }

 private:
  [[nodiscard]] Time Now() const override;
  void Post(std::function<void()> fn) override;
  TimerId CallAt(Time when, std::function<void()> fn) override;
  void Cancel(TimerId timer) override { inner_->loop().Cancel(timer); }
  void WatchFd(int, std::function<void()>) override {}
  void UnwatchFd(int) override {}
  void RunOrHold(std::function<void()> fn);

  World* const world_;
  const std::string host_;
  const uint64_t life_;
  std::unique_ptr<Transport> inner_;
  Handler handler_;
  bool frozen_ = false;
  std::deque<std::function<void()>> held_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::daemons::sim
