#include "tests/sim/cluster/sim_port.h"

#include <utility>

#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

SimPort::SimPort(World* world, const std::string& name, std::string host)
    : world_(world),
      host_(std::move(host)),
      life_(world->NewLife()),
      inner_(world->network().MakeTransport(name)) {
  inner_->SetHandler([this](const std::string& from, std::string frame) {
    RunOrHold([this, from, frame = std::move(frame)] {
      if (*alive_ && handler_) handler_(from, frame);
    });
  });
  world_->Know(this);
}

void SimPort::Stop() {
  if (!std::exchange(*alive_, false)) return;
  held_.clear();
  world_->Forget(this);
  inner_->Stop();
}

void SimPort::Freeze(bool frozen) {
  frozen_ = frozen;
  while (!frozen_ && !held_.empty()) {
    const std::function<void()> fn = std::move(held_.front());
    held_.pop_front();
    fn();
  }
}

Status SimPort::Send(const std::string& to, std::string frame) {
  if (world_->IsCut(host_, to)) {
    world_->HoldOrLose(this, to, std::move(frame));
    return Status::Ok();
  }
  return inner_->Send(to, std::move(frame));
}

Time SimPort::Now() const { return world_->Now(); }

void SimPort::Post(std::function<void()> fn) { (void)CallAt(Now(), std::move(fn)); }

TimerId SimPort::CallAt(Time when, std::function<void()> fn) {
  return inner_->loop().CallAt(when, [this, fn = std::move(fn)] { RunOrHold(fn); });
}

void SimPort::RunOrHold(std::function<void()> fn) {
  if (frozen_) {
    held_.push_back(std::move(fn));
  } else {
    fn();
  }
}

}  // namespace troupe::daemons::sim
