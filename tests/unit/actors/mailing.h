// Actor systems on the simulated network, which fibers may send from.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/host/actor_system.h"
#include "runtime/loopback_transport.h"

namespace troupe::actors {

// The simulated network belongs to the test's thread; fibers send from others. What they send and
// post is handed over by Flush.
class Mailing final : public Transport, private EventLoop {
 public:
  explicit Mailing(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] const std::string& self() const override { return inner_->self(); }
  EventLoop& loop() override { return *this; }
  void SetHandler(Handler handler) override { inner_->SetHandler(std::move(handler)); }
  void SetDropHandler(DropHandler) override {}
  Result<PeerAddress> Listen(const std::string& at) override { return inner_->Listen(at); }
  Status Connect(const PeerAddress&) override { return Status::Ok(); }
  void Disconnect(const std::string&) override {}
  void Stop() override { inner_->Stop(); }
  Status Send(const std::string& to, std::string frame) override {
    std::lock_guard lock(mu_);
    frames_.emplace_back(to, std::move(frame));
    return Status::Ok();
  }
  void Flush() {
    std::vector<std::pair<std::string, std::string>> frames;
    std::vector<std::function<void()>> posted;
    {
      std::lock_guard lock(mu_);
      frames.swap(frames_);
      posted.swap(posted_);
    }
    for (auto& [to, frame] : frames) (void)inner_->Send(to, std::move(frame));
    for (auto& fn : posted) inner_->loop().Post(std::move(fn));
  }

 private:
  [[nodiscard]] Time Now() const override { return inner_->loop().Now(); }
  void Post(std::function<void()> fn) override {
    std::lock_guard lock(mu_);
    posted_.push_back(std::move(fn));
  }
  TimerId CallAt(Time when, std::function<void()> fn) override {
    return inner_->loop().CallAt(when, std::move(fn));
  }
  void Cancel(TimerId timer) override { inner_->loop().Cancel(timer); }
  void WatchFd(int, std::function<void()>) override {}
  void UnwatchFd(int) override {}

  const std::unique_ptr<Transport> inner_;
  std::mutex mu_;
  std::vector<std::pair<std::string, std::string>> frames_;
  std::vector<std::function<void()>> posted_;
};

// A process of the name: its actor system on the network, and its mail in `mails`.
inline std::shared_ptr<ActorSystem> MakeSystem(
    LoopbackNetwork& network, std::map<std::string, Mailing*>& mails,
    const std::shared_ptr<ActorDirectoryClient>& directory_client, const std::string& name) {
  auto transport = std::make_unique<Mailing>(network.MakeTransport(name));
  mails[name] = transport.get();
  ActorSystem::Options options;
  options.node = "n";
  options.directory_client = directory_client;
  auto system = ActorSystem::Create(std::move(transport), std::move(options));
  EXPECT_TRUE(system->Listen("ipc://" + name).ok());
  return system;
}

// Lets what was sent arrive, a little time pass and fibers go on.
inline void Step(LoopbackNetwork& network, const std::map<std::string, Mailing*>& mails) {
  for (const auto& [name, mail] : mails) mail->Flush();
  network.RunFor(milliseconds(1));
  std::this_thread::yield();
}

// That until it is done; false after half a minute of real time.
inline bool Until(LoopbackNetwork& network, const std::map<std::string, Mailing*>& mails,
                  const std::function<bool()>& done) {
  const Time limit = SteadyClock().Now() + seconds(30);
  while (!done()) {
    if (SteadyClock().Now() > limit) return false;
    Step(network, mails);
  }
  return true;
}

}  // namespace troupe::actors
