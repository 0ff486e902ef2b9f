#include "tests/sim/cluster/sim_node.h"

#include <algorithm>
#include <csignal>

#include "daemons/protocol/actor_lease.h"
#include "runtime/wire.h"

namespace troupe::daemons::sim {
namespace {

constexpr Duration kHelloInterval = milliseconds(500);
constexpr Duration kFirstHellos = milliseconds(10);
constexpr size_t kEndedMax = 1024;

}  // namespace

SimNode::SimNode(World* world, const std::string& id, uint64_t incarnation, double cpus)
    : world_(world),
      id_(id),
      incarnation_(incarnation),
      cpus_(cpus),
      port_(world, "node-" + id + "-" + world->NewId(), "host-" + id) {
  port_.SetHandler([this](const std::string&, const std::string& frame) { OnFrame(frame); });
  Later(milliseconds(1), [this] { Hello(); });
}

void SimNode::Later(Duration delay, std::function<void()> fn) {
  port_.loop().CallAfter(delay, [this, fn = std::move(fn)] {
    if (alive_) fn();
  });
}

std::vector<SimWorker*> SimNode::workers() const {
  std::vector<SimWorker*> all;
  for (const auto& [process, entry] : workers_)
    if (entry.worker->alive()) all.push_back(entry.worker.get());
  return all;
}

void SimNode::Die() {
  if (!std::exchange(alive_, false)) return;
  for (auto& [process, entry] : workers_) {
    entry.worker->Die(SIGKILL);
    world_->Bury(std::move(entry.worker));
  }
  workers_.clear();
  port_.Stop();
}

void SimNode::Notice(const std::string& why, Duration left) {
  notice_ = why;
  notice_until_ = world_->Now() + left;
}

void SimNode::Hello() {
  SayHello();
  Later(heard_.head.empty() ? kFirstHellos : kHelloInterval, [this] { Hello(); });
}

void SimNode::SayHello() {
  NodeHello hello;
  hello.node = id_;
  hello.incarnation = incarnation_;
  hello.host = host();
  hello.pid = 1;
  hello.resources = {{"CPU", cpus_}};
  hello.heard = heard_;
  hello.notice = notice_;
  if (!notice_.empty()) {
    const Duration left = std::max(Duration::zero(), notice_until_ - world_->Now());
    hello.notice_ms = static_cast<uint64_t>(left / milliseconds(1));
  }
  bool alone = true;
  for (const auto& [process, entry] : workers_) {
    alone = alone && entry.incarnation == incarnation_;
    hello.workers.push_back(
        {process, entry.worker->pid(), entry.order.lease, entry.ended, entry.order.room});
  }
  hello.ended = {ended_.begin(), ended_.end()};
  if (alone) (void)port_.Send(kHeadName, wire::Encode(kFrameNodeHello, hello));
}

void SimNode::OnFrame(const std::string& frame) {
  if (!alive_) return;
  const uint8_t type = *wire::PeekType(frame);
  if (type == kFrameStartWorker) OnStart(*wire::Decode<StartWorker>(type, frame));
  if (type == kFrameKillWorker) OnKill(*wire::Decode<KillWorker>(type, frame));
  if (type == kFrameNodeAnswer) heard_ = *wire::Decode<NodeAnswer>(type, frame);
  if (type == kFrameNodeFenced) OnFenced(*wire::Decode<NodeFenced>(type, frame));
}

void SimNode::OnStart(const StartWorker& start) {
  if (workers_.contains(start.process) || start.head != heard_.head) return;
  world_->Tell(id_, " is to start ", start.process, " for ", start.lease);
  CheckStart(start);
  Entry& entry = workers_[start.process];
  entry.worker = std::make_unique<SimWorker>(world_, this, start);
  entry.order = start;
  entry.incarnation = incarnation_;
}

// An actor has one process, and each process has room, until it has been reaped. Not counted are
// those of an earlier life of the node's, which are on their way out, and those that a head has
// ordered which has ended, and that get nothing to do.
void SimNode::CheckStart(const StartWorker& start) {
  const std::string actor = ParseLeaseId(start.lease).first;
  double used = 1;
  std::string those;
  for (const auto& [process, entry] : workers_) {
    const bool left_behind = !entry.worker->assigned() && entry.order.head != heard_.head;
    if (entry.incarnation != incarnation_ || left_behind) continue;
    used += 1;
    those += " " + entry.order.lease + (entry.worker->alive() ? "" : " (dead)");
    if (entry.worker->alive() && ParseLeaseId(entry.order.lease).first == actor)
      world_->Fail("a second process is started for " + actor);
  }
  if (used > cpus_) {
    world_->Fail("node " + id_ + " has room for " + std::to_string(cpus_) + " and is to start " +
                 start.lease + " beside" + those);
  }
}

void SimNode::OnKill(const KillWorker& kill) {
  const auto it = workers_.find(kill.process);
  if (it == workers_.end() || world_->Mutated(Mutation::kKillsIgnored)) return;
  SimWorker* worker = it->second.worker.get();
  world_->Tell("signal ", kill.signal, " to ", kill.process, ": ", kill.reason);
  if (kill.signal == SIGKILL) return worker->Die(SIGKILL);
  worker->Later(world_->Between(microseconds(100), milliseconds(50)),
                [worker, signal = kill.signal] { worker->Die(signal); });
}

void SimNode::OnFenced(const NodeFenced& fenced) {
  if (fenced.incarnation != incarnation_) return;
  if (fenced.replaced) {
    world_->Tell(id_, " is replaced and ends");
    return world_->NodeDies(*this);
  }
  world_->Tell(id_, " was fenced and starts over");
  incarnation_ = std::max(incarnation_ + 1, fenced.newest + 1);
  for (SimWorker* worker : workers()) worker->Die(SIGKILL);
}

void SimNode::OnWorkerEnded(SimWorker& worker, int signal) {
  worker.port().Stop();
  const auto it = workers_.find(worker.process());
  if (!alive_ || it == workers_.end() || world_->Mutated(Mutation::kDeathsUntold)) return;
  const std::string process = worker.process();
  const std::string how = signal == SIGKILL ? "signal SIGKILL (Killed)"
                          : signal != 0     ? "signal SIGTERM (Terminated)"
                                            : "exit code 0";
  Later(world_->Between(microseconds(20), milliseconds(1)), [this, process] {
    const auto lost = workers_.find(process);
    if (lost == workers_.end() || std::exchange(lost->second.ended, true)) return;
    Tell(WorkerExited{process, false, "its process ended", 0, {}});
  });
  const bool slow = world_->Uniform() < 0.05;  // To be reaped: it has much memory to give back.
  Later(world_->Between(milliseconds(1), slow ? seconds(3) : milliseconds(20)),
        [this, process, how, signal] { Reap(process, how, signal == 0 ? 0 : -signal); });
}

void SimNode::Reap(const std::string& process, const std::string& how, int code) {
  const auto it = workers_.find(process);
  if (it == workers_.end()) return;
  world_->Bury(std::move(it->second.worker));
  workers_.erase(it);
  ended_.push_back(process);
  if (ended_.size() > kEndedMax) ended_.pop_front();
  Tell(WorkerExited{process, true, how, code, {}});
}

void SimNode::Tell(const WorkerExited& exited) {
  (void)port_.Send(kHeadName, wire::Encode(kFrameWorkerExited, exited));
}

}  // namespace troupe::daemons::sim
