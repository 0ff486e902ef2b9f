// A transport of a test: what is sent is kept, what is delivered and when its timers run is said by
// the test.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/blocking_lane.h"
#include "runtime/clock.h"
#include "runtime/timer_queue.h"
#include "runtime/transport.h"

namespace troupe::daemons::testing {

// A transport whose frames go to the test and whose loop runs when the test says so. Post is safe
// from the store's lane.
class ScriptedTransport final : public Transport, private EventLoop {
 public:
  using Sent = std::pair<std::string, std::string>;  // To, frame.

  [[nodiscard]] const std::string& self() const override { return name_; }
  EventLoop& loop() override { return *this; }
  void SetHandler(Handler handler) override { handler_ = std::move(handler); }
  void SetDropHandler(DropHandler) override {}
  Result<PeerAddress> Listen(const std::string& endpoint) override {
    return PeerAddress{name_, endpoint, ""};
  }
  Status Connect(const PeerAddress&) override { return Status::Ok(); }
  void Disconnect(const std::string&) override {}
  void Stop() override {}
  Status Send(const std::string& to, std::string frame) override {
    sent_.emplace_back(to, std::move(frame));
    return Status::Ok();
  }

  void Deliver(const std::string& from, const std::string& frame) { handler_(from, frame); }
  // Runs what was posted; false if there was nothing.
  bool RunPosted();
  // Moves to the next timer that is due up to `until` and runs it; false (at `until`) if none is.
  bool RunTimer(Time until);
  [[nodiscard]] Time Clock() const { return clock_->Now(); }
  [[nodiscard]] const FakeClock* clock() const { return clock_; }
  [[nodiscard]] std::vector<Sent> TakeSent() { return std::exchange(sent_, {}); }
  explicit ScriptedTransport(FakeClock* clock) : clock_(clock) {}

 private:
  [[nodiscard]] Time Now() const override { return clock_->Now(); }
  void Post(std::function<void()> fn) override;
  TimerId CallAt(Time when, std::function<void()> fn) override {
    return timers_.Schedule(when, std::move(fn));
  }
  void Cancel(TimerId timer) override { timers_.Cancel(timer); }
  void WatchFd(int, std::function<void()>) override {}
  void UnwatchFd(int) override {}

  const std::string name_ = "head";
  FakeClock* const clock_;
  Handler handler_;
  TimerQueue timers_;
  std::vector<Sent> sent_;
  std::mutex mu_;
  std::deque<std::function<void()>> posted_;
};

// Lets the lane do all that it was given, and the transport what comes of it. False if the lane is
// stuck.
[[nodiscard]] bool SettleLane(BlockingLane& lane, ScriptedTransport& transport);

}  // namespace troupe::daemons::testing
