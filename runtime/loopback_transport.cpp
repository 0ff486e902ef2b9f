#include "runtime/loopback_transport.h"

#include "runtime/wire.h"

namespace troupe {

class LoopbackTransport final : public Transport, private EventLoop {
 public:
  LoopbackTransport(LoopbackNetwork* network, std::string name)
      : network_(network), name_(std::move(name)) {
    network_->nodes_[name_] = this;
  }
  ~LoopbackTransport() override { Stop(); }

  void Stop() override {
    *alive_ = false;
    if (const auto it = network_->nodes_.find(name_);
        it != network_->nodes_.end() && it->second == this) {
      network_->nodes_.erase(it);
    }
  }

  [[nodiscard]] const std::string& self() const override { return name_; }
  EventLoop& loop() override { return *this; }
  void SetHandler(Handler handler) override { handler_ = std::move(handler); }
  void SetDropHandler(DropHandler handler) override { drop_handler_ = std::move(handler); }
  Result<PeerAddress> Listen(const std::string& endpoint) override {
    return PeerAddress{name_, endpoint, ""};
  }
  Status Connect(const PeerAddress&) override { return Status::Ok(); }
  void Disconnect(const std::string&) override {}

  Status Send(const std::string& to, std::string frame) override {
    if (frame.size() > wire::kWireFrameBytesMax)
      return Error{ErrorCode::kInvalidArgument, "frame is over the limit"};
    if (!*alive_) return Error{ErrorCode::kCancelled, "this transport was stopped"};
    network_->Route(name_, to, frame);
    return Status::Ok();
  }

  void Receive(const std::string& from, const std::string& frame) {
    if (handler_) handler_(from, frame);
  }
  void Dropped(const std::string& to) {
    if (drop_handler_) drop_handler_(to);
  }

 private:
  [[nodiscard]] Time Now() const override { return network_->Now(); }
  void Post(std::function<void()> fn) override { CallAt(Now(), std::move(fn)); }
  TimerId CallAt(Time when, std::function<void()> fn) override {
    // A timer of a destroyed node must not run.
    return network_->queue_.Schedule(std::max(when, Now()), [alive = alive_, fn = std::move(fn)] {
      if (*alive) fn();
    });
  }
  void Cancel(TimerId timer) override { network_->queue_.Cancel(timer); }
  void WatchFd(int, std::function<void()>) override {
    TROUPE_ASSERT(false, "no descriptors in simulation");
  }
  void UnwatchFd(int) override {}

  LoopbackNetwork* const network_;
  const std::string name_;
  Handler handler_;
  DropHandler drop_handler_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

LoopbackNetwork::LoopbackNetwork(uint64_t seed) : random_(seed) {}
LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Transport> LoopbackNetwork::MakeTransport(const std::string& name) {
  return std::make_unique<LoopbackTransport>(this, name);
}

void LoopbackNetwork::Route(const std::string& from, const std::string& to,
                            const std::string& frame) {
  const auto chance = [this](double p) {
    return p > 0 && std::uniform_real_distribution<>(0, 1)(random_) < p;
  };
  if (!nodes_.contains(to)) {
    if (const auto it = nodes_.find(from); it != nodes_.end()) it->second->Dropped(to);
    return;
  }
  if (blocked_.contains({from, to}) || chance(faults_.loss)) return;
  const int copies = chance(faults_.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    std::uniform_int_distribution<int64_t> delay(faults_.delay_min.count(),
                                                 faults_.delay_max.count());
    Time arrives = now_ + Duration(delay(random_));
    if (faults_.ordered) {
      Time& last = last_[{from, to}];
      arrives = last = std::max(arrives, last);
    }
    queue_.Schedule(arrives, [this, from, to, frame] { Deliver(from, to, frame); });
  }
}

void LoopbackNetwork::Deliver(const std::string& from, const std::string& to,
                              const std::string& frame) {
  const auto it = nodes_.find(to);
  if (it == nodes_.end()) return;
  const auto fold = [this](const std::string& bytes) {
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  };
  fold(from);
  fold(to);
  fold(frame);
  it->second->Receive(from, frame);
}

bool LoopbackNetwork::Step(Time until) {
  const Time due = queue_.NextDue();
  if (due > until) {
    now_ = std::max(now_, until);
    return false;
  }
  now_ = std::max(now_, due);
  queue_.RunDue(now_);
  return true;
}

void LoopbackNetwork::RunFor(Duration d) {
  const Time until = now_ + d;
  while (Step(until)) {
  }
}

}  // namespace troupe
