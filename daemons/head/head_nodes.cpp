// What HeadService knows of its nodes, and how it keeps in step with what they run.
//
// What is sent over a connection that breaks is lost, in both directions, so nothing here rests on
// one message: a node says in every hello which workers it has and which answer of ours it had got
// by then. A worker that is missing although an answer from after its start arrived has ended or
// never began; one that should have ended is killed again.
#include <algorithm>
#include <csignal>

#include "daemons/head/head_service.h"
#include "runtime/log.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kLeaveTime = seconds(3);  // For workers of jobs that are over.
constexpr Duration kKillTime = seconds(1);   // From the order to kill a worker to the next one.

}  // namespace

void HeadService::OnNodeHello(const std::string& from, const NodeHello& hello) {
  Result<ResourceSet> total = ResourceSet::FromMap(hello.resources);
  if (!total.ok()) {
    LogWarning("node ", hello.node, " offers unusable resources: ", total.error().message);
    return;
  }
  NodeRecord record;
  record.id = hello.node;
  record.incarnation = hello.incarnation;
  record.host = hello.host;
  record.total = *total;
  record.labels = hello.labels;
  const NodeDecision decision = nodes_.Step(Now(), NodeJoined{record});
  if (decision.fenced) {
    const NodeRecord& known = nodes_.nodes().at(hello.node);
    const NodeFenced fenced{hello.incarnation, known.incarnation, decision.replaced,
                            decision.replaced ? "another node has joined as " + hello.node
                                              : std::string("it was not heard for too long")};
    (void)transport_->Send(from, wire::Encode(kFrameNodeFenced, fenced));
  }
  ApplyNodes(decision);  // Of an older incarnation first.
  if (decision.fenced || decision.waits) return;
  Node& node = node_links_[hello.node];
  node.peer = from;
  node.heard = hello.heard.head == log_id_ ? hello.heard.number : 0;
  const bool is_new = offered_.insert(hello.node).second;
  if (is_new) LogInfo("node ", hello.node, " on ", hello.host, " offers ", total->ToString());
  const sched::NodeUp up{hello.node, hello.incarnation, *total, hello.labels};
  // What runs there is claimed before anything new may go there.
  if (is_new) {
    Schedule(up);
    placement_groups_.OnNodeUp();
  }
  Reconcile(hello, node.heard);
  actors_.OnNode(hello, node.heard, node.answers + 1);  // With the one that follows.
  usage_.OnNode(Now(), hello);
  if (hello.output > 0)
    (void)transport_->Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{hello.output}));
  const NodeAnswer answer{log_id_, ++node.answers};
  (void)transport_->Send(from, wire::Encode(kFrameNodeAnswer, answer));
  if (hello.leaving || !hello.notice.empty()) {
    ApplyNodes(nodes_.Step(
        Now(), NodeDrain{hello.node, Now() + milliseconds(hello.notice_ms), hello.notice}));
  }
  for (auto& [name, job] : jobs_) {
    if (Confirm(job) || is_new) Fill(job);
  }
  EndRecovery();
}

// Nothing new is placed before it is known what still runs, or the time for that is up.
void HeadService::Recover(Time until) {
  recover_until_ = until;
  Schedule(sched::Recover{until});
}

void HeadService::EndRecovery() {
  if (recover_until_ <= Now() || actors_.Unconfirmed() || placement_groups_.Unconfirmed()) return;
  const bool jobs = std::ranges::any_of(jobs_, [](const auto& entry) {
    return !entry.second.done() && entry.second.confirm_by != Time::Never();
  });
  if (!jobs) Recover(Now());
}

// Makes what we know of the node's workers what the node says of them.
void HeadService::Reconcile(const NodeHello& hello, uint64_t heard) {
  std::set<std::string> listed;
  for (const RunningWorker& w : hello.workers) {
    listed.insert(w.process);
    if (w.job.starts_with(kActorLease)) continue;
    if (w.ended) {
      if (processes_.contains(w.process))
        OnWorkerExited(WorkerExited{w.process, false, "its process ended", 0, {}});
      continue;
    }
    Process& process = processes_[w.process];
    if (process.job.empty()) process.job = w.job;  // A spare from before a restart of ours, too.
    process.node = hello.node;
    if (w.pid > 0) process.pid = w.pid;
    process.host = hello.host;
    if (process.started == Time{}) process.started = Now();
    const auto [job, worker] = Owner(w.process);
    if (worker != nullptr && process.lease.empty()) {  // Known from before a restart of ours.
      process.lease = worker->lease;
      process.job = job->spec.job;
      process.member = worker->member().ToString();
      sched::LeaseRequest lease;
      lease.id = worker->lease;
      lease.resources = job->need;
      Schedule(sched::Claim{lease, hello.node, sched::kAnyBundle, worker->devices});
    }
    const bool orphan = !jobs_.contains(process.job) && Now() > process.started + kLeaveTime;
    if (Now() >= process.gone_by || orphan) Kill(w.process, SIGKILL, "it should have ended");
  }
  std::vector<std::string> lost;
  for (const auto& [name, process] : processes_) {
    const bool known = process.node == hello.node && heard > process.order;
    if (known && !listed.contains(name)) lost.push_back(name);
  }
  for (const std::string& name : lost)
    OnWorkerExited(WorkerExited{name, true, "its node does not have it (any more)", -1, {}}, true);
}

// After a restart the nodes tell which workers still run; whom nobody has told of when the time is
// up is dead. Returns whether it is known of all for the first time.
bool HeadService::Confirm(Job& job) {
  if (job.done() || job.confirm_by == Time::Never()) return false;
  const bool over = Now() >= job.confirm_by;
  bool all = true;
  for (JobWorker& worker : job.record.workers) {
    if (!worker.alive()) continue;
    const auto process = processes_.find(worker.process);
    const bool heard = process != processes_.end();
    // What was to be started just before the restart may not be in a hello from before our answer.
    const auto node = node_links_.find(worker.node);
    const bool missed = !heard && node != node_links_.end() && node->second.heard > 0;
    if (missed || (over && !heard)) {
      const WorkerExited gone{worker.process, true, "gone when the head restarted", -1, {}};
      WorkerDied(job, worker, gone.how);
      TellDeath(job, gone, true);
    } else if (!heard || process->second.lease.empty()) {
      all = false;
    }
  }
  if (!all && !over) return false;
  job.confirm_by = Time::Never();
  EmitSettledEpoch(job);
  return true;
}

void HeadService::ApplyNodes(const NodeDecision& decision) {
  for (const NodeChange& change : decision.changes) {
    const bool up = change.state == NodeState::kAlive || change.state == NodeState::kSuspect;
    if (!up) {
      OnNodeEnded(change);
      continue;
    }
    // A suspect keeps its workers, but is given no new ones. One that has just joined is offered
    // by its hello.
    if (offered_.contains(change.id)) {
      Schedule(sched::NodeHealth{change.id, change.state == NodeState::kAlive, change.draining,
                                 nodes_.nodes().at(change.id).drain_deadline});
    }
    if (!change.draining) continue;
    for (auto& [name, job] : jobs_) {
      for (JobWorker& worker : job.record.workers) {
        if (worker.alive() && worker.node == change.id)
          DrainWorker(job, worker, "node " + change.id + ": " + change.reason);
      }
      Save(job);
      Fill(job);
    }
    const Duration limit = nodes_.nodes().at(change.id).drain_deadline - Now();
    actors_.OnNodeDrain(change.id, change.reason, [&](const std::string& actor) {
      return actor_groups_.OnNodeDrain(Now(), actor, "node " + change.id + ": " + change.reason,
                                       std::max(limit, Duration::zero()));
    });
  }
}

void HeadService::OnNodeEnded(const NodeChange& change) {
  const std::string state(NodeStateName(change.state));
  LogWarning("node ", change.id, " is ", state, ": ", change.reason);
  offered_.erase(change.id);
  Schedule(sched::NodeGone{change.id, "node " + change.id + " is " + state});
  std::vector<std::string> lost;
  for (const auto& [name, process] : processes_) {
    if (process.node == change.id) lost.push_back(name);
  }
  for (const std::string& name : lost)
    OnWorkerExited(WorkerExited{name, true, "its node is " + state, -1, {}}, true);
  actors_.OnNodeGone(change.id, state);
  usage_.OnNodeGone(change.id);
}

// A worker that does not end is killed again when its node lists it.
void HeadService::Kill(const std::string& process, int signal, const std::string& reason) {
  const auto it = processes_.find(process);
  if (it == processes_.end()) return;
  if (signal == SIGKILL) it->second.gone_by = std::min(it->second.gone_by, Now() + kKillTime);
  const auto node = node_links_.find(it->second.node);
  if (node == node_links_.end()) return;
  (void)transport_->Send(node->second.peer,
                         wire::Encode(kFrameKillWorker, KillWorker{process, signal, reason}));
}

}  // namespace troupe::daemons
