#include "tests/sim/cluster/sim_node.h"

#include <algorithm>
#include <csignal>

#include "daemons/protocol/actor_lease.h"
#include "runtime/wire.h"

namespace troupe::daemons::sim {
namespace {

constexpr double kSpareShare = 0.3;  // Of the processes that were started ahead of their work,
constexpr Duration kOwnStop = seconds(1);  // So long a gap: the node was stopped itself.
constexpr double kDeadShare = 0.1;         // and of those the ones that had ended when they got it.

}  // namespace

SimNode::SimNode(World* world, const std::string& id, uint64_t incarnation, double cpus)
    : world_(world),
      id_(id),
      cpus_(cpus),
      port_(world, "node-" + id + "-" + world->NewId(), "host-" + id),
      core_({id, port_.host(), "", 1, {{"CPU", cpus}}, {}, world->options_.fence}, incarnation,
            world->Now()) {
  port_.SetHandler([this](const std::string&, const std::string& frame) {
    if (!alive_) return;
    heard_ = world_->Now();
    (void)core_.OnFrame(frame, heard_);
    Act();
  });
  heard_ = looked_ = world_->Now();
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
    if (entry.worker && entry.worker->alive()) all.push_back(entry.worker.get());
  return all;
}

void SimNode::Die() {
  if (!std::exchange(alive_, false)) return;
  for (auto& [process, entry] : workers_) {
    if (!entry.worker) continue;
    entry.worker->Die(SIGKILL);
    world_->Bury(std::move(entry.worker));
  }
  workers_.clear();
  port_.Stop();
}

void SimNode::Notice(const std::string& why, Duration left) {
  (void)core_.Notice({"preempt", "schedule", why}, world_->Now() + left);
}

void SimNode::Hello() {
  core_.Tick(world_->Now());
  NodeSight sight;
  for (const auto& [process, entry] : workers_)
    if (entry.worker) sight.processes[process].pid = entry.worker->pid();
  core_.Hello(sight, world_->Now());
  Act();
  CheckFence();
  Later(core_.UntilHello(world_->Now()), [this] { Hello(); });
}

void SimNode::Act() {
  for (auto effects = core_.TakeEffects(); alive_ && !effects.empty();
       effects = core_.TakeEffects()) {
    for (const NodeEffect& effect : effects) {
      if (alive_) std::visit([this](const auto& it) { Act(it); }, effect);
    }
  }
}

void SimNode::Act(const TellHead& tell) {
  (void)port_.Send(kHeadName, tell.frame);
  const uint8_t type = *wire::PeekType(tell.frame);
  if (type != kFrameWorkerExited) return;
  const auto exited = *wire::Decode<WorkerExited>(type, tell.frame);
  Told& told = told_[exited.process];
  ++(exited.reaped ? told.ends : told.deaths);
}

void SimNode::Act(const StartProcess& order) {
  const StartWorker& start = order.order;
  world_->Tell(id_, " is to start ", start.process, " for ", start.lease);
  if (!order.again && start.head != core_.heard().head)
    world_->Fail(id_ + " follows the order of a head that has ended: " + start.lease);
  CheckStart(start);
  Entry& entry = workers_[start.process];
  entry.order = start;
  entry.incarnation = core_.incarnation();
  const bool ahead = !start.spare_argv.empty() && world_->Uniform() < kSpareShare;
  core_.OnStarted(start.process, ahead);
  if (!ahead || world_->Uniform() >= kDeadShare) {
    entry.worker = std::make_unique<SimWorker>(world_, this, start);
    return;
  }
  world_->Tell(start.process, " had ended when it was given its work");
  Later(world_->Between(milliseconds(1), milliseconds(20)), [this, process = start.process] {
    Reap(process, {"exit code 1", 1, false});
  });
}

void SimNode::Act(const GiveUpSpares&) {}

void SimNode::Act(const BeginIncarnation& begin) { core_.OnIncarnation(begin.newest + 1); }

void SimNode::Act(const EndNode&) {
  world_->Tell(id_, " is replaced and ends");
  world_->NodeDies(*this);
}

void SimNode::Act(const Warn& warn) { world_->Tell(id_, ": ", warn.text); }

// An actor has one process, and each process has room, until it has been reaped. Not counted are
// those of an earlier life of the node's, which are on their way out, and those that a head has
// ordered which has ended, and that get nothing to do.
void SimNode::CheckStart(const StartWorker& start) {
  const std::string actor = ParseLeaseId(start.lease).first;
  double used = 1;
  std::string those;
  for (const auto& [process, entry] : workers_) {
    if (!entry.worker) continue;
    if (entry.incarnation != core_.incarnation())
      world_->Fail("node " + id_ + " starts " + start.lease + " beside " + entry.order.lease +
                   " of its life before");
    const bool left_behind = !entry.worker->assigned() && entry.order.head != core_.heard().head;
    if (entry.incarnation != core_.incarnation() || left_behind) continue;
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

void SimNode::Act(const SignalProcess& order) {
  const auto it = workers_.find(order.process);
  if (it == workers_.end() || world_->Mutated(Mutation::kKillsIgnored)) return;
  it->second.killed = true;
  world_->Tell("signal ", order.signal, " to ", order.process);
  SimWorker* worker = it->second.worker.get();
  if (worker == nullptr) return;  // It had ended, and has not been reaped.
  if (order.signal == SIGKILL) return worker->Die(SIGKILL);
  worker->Later(world_->Between(microseconds(100), milliseconds(50)),
                [worker, signal = order.signal] { worker->Die(signal); });
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
    core_.OnLifeLost(process);
    Act();
  });
  const bool slow = world_->Uniform() < 0.05;  // To be reaped: it has much memory to give back.
  Later(world_->Between(milliseconds(1), slow ? seconds(3) : milliseconds(20)),
        [this, process, how, signal] {
          Reap(process, {how, signal == 0 ? 0 : -signal});
        });
}

void SimNode::Reap(const std::string& process, const ProcessEnd& end) {
  const auto it = workers_.find(process);
  if (it == workers_.end()) return;
  Entry ended = std::move(it->second);
  workers_.erase(it);
  if (ended.worker) world_->Bury(std::move(ended.worker));
  const bool over = core_.OnExited(process, end, world_->Now());
  Act();
  if (alive_ && over) CheckEnd(ended, end.began);
}

// NC-5, of actors whose driver may be on this side of a cut.
void SimNode::CheckFence() {
  const Duration since = world_->Now() - std::exchange(looked_, world_->Now());
  if (since > kOwnStop) heard_ = heard_ + since;
  if (world_->Now() < heard_ + world_->options_.fence) return;
  for (const auto& [process, entry] : workers_) {
    const std::string actor = ParseLeaseId(entry.order.lease).first;
    if (!entry.killed && entry.worker && entry.worker->alive() && !IsRunActor(actor))
      world_->Fail(id_ + " still runs " + actor + ", and has not heard the head for long");
  }
}

// An order that was taken: NC-3, and NC-4 of one whose process had ended ahead of it.
void SimNode::CheckEnd(const Entry& entry, bool began) {
  const Told& told = told_[entry.order.process];
  if (told.ends != 1 || told.deaths > 1) {
    world_->Fail(id_ + " has told the end of " + entry.order.process + " " +
                 std::to_string(told.ends) + " times and its death " + std::to_string(told.deaths) +
                 " times");
  }
  if (!began && !entry.killed && entry.incarnation == core_.incarnation())
    world_->Fail(id_ + " has given up an order whose process had ended: " + entry.order.lease);
}

}  // namespace troupe::daemons::sim
