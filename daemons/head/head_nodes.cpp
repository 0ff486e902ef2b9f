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

constexpr Duration kClaimTime = seconds(1);    // More than it takes.
constexpr Duration kSettleTime = seconds(30);  // For workers that were drained.

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
  const bool hold = is_new && recover_until_ <= Now();
  if (hold) Schedule(sched::Recover{Now() + kClaimTime});
  if (is_new) {
    Schedule(up);
    placement_groups_.OnNodeUp();
  }
  Reconcile(hello, node.heard);
  actors_.OnNode(hello, node.heard);
  if (hold) Schedule(sched::Recover{Now()});
  usage_.OnNode(Now(), hello);
  if (hello.output > 0)
    (void)transport_->Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{hello.output}));
  const NodeAnswer answer{log_id_, processes_.NextAnswer(hello.node)};
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

// Makes what we know of the node's processes what the node says of them.
void HeadService::Reconcile(const NodeHello& hello, uint64_t heard) {
  for (const RunningWorker& listed : hello.workers) {
    Adopt(hello, listed);
    HeadProcess* process = ProcessOf(listed.process);
    if (process == nullptr || listed.ended) continue;
    RunRole& role = *process->run();
    if (role.job.empty()) role.job = listed.job;  // A spare from before a restart of ours, too.
    ClaimRoom(listed.process);
    EndIfOver(listed.process);
  }
  const ProcessTable::Heard now_is = processes_.OnHello(Now(), hello, heard);
  for (const std::string& name : now_is.ended)
    OnWorkerExited(WorkerExited{name, false, "its process ended", 0, {}});
  for (const std::string& name : now_is.overdue) Kill(name, SIGKILL, "it should have ended");
  for (const std::string& name : now_is.missing) {
    actors_.OnMissing(name);
    EndMissing(name, "its node does not have it (any more)");
  }
}

// Nothing to do unless it is from before a restart of ours.
void HeadService::Adopt(const NodeHello& hello, const RunningWorker& listed) {
  const bool actors = listed.job.starts_with(kActorLease);
  // It spoke before its node did, and could not say whose it is.
  if (actors && ProcessOf(listed.process) != nullptr) processes_.Remove(listed.process);
  if (processes_.Find(listed.process) != nullptr) return;
  if (actors) return actors_.Adopt(hello, listed);
  if (!listed.ended)
    processes_.Adopt(Now(), listed.process, hello.node, RunRole{.job = listed.job});
}

// Whom nobody has a use for is given some time to leave by itself, unless it was taken for dead: a
// host that was cut off may come back with it.
void HeadService::EndIfOver(const std::string& name) {
  const HeadProcess& process = *processes_.Find(name);
  const auto job = jobs_.find(process.run()->job);
  if (job == jobs_.end()) {
    if (Now() > process.since + kLeaveTime) processes_.EndBy(name, Now());
    return;
  }
  if (job->second.released) processes_.EndBy(name, Now() + kLeaveTime);
  if (process.run()->member.empty()) return;
  const JobWorker* worker = Owner(name).second;
  if (worker != nullptr && (worker->fenced || worker->status() == WorkerState::kDead)) {
    processes_.EndBy(name, Now());
  } else if (worker == nullptr || !worker->alive()) {
    processes_.EndBy(name, Now() + kSettleTime);
  }
}

// A member that is known from the store holds the room that it had.
void HeadService::ClaimRoom(const std::string& name) {
  const auto [job, worker] = Owner(name);
  RunRole& role = *ProcessOf(name)->run();
  if (worker == nullptr || !role.lease.empty()) return;
  role.lease = worker->lease;
  role.job = job->spec.job;
  role.member = worker->member().ToString();
  role.kept = true;
  sched::LeaseRequest lease;
  lease.id = worker->lease;
  lease.resources = job->need;
  Schedule(sched::Claim{lease, processes_.Find(name)->node, sched::kAnyBundle, worker->devices});
}

void HeadService::EndMissing(const std::string& name, const std::string& how) {
  if (ProcessOf(name) != nullptr) OnWorkerExited(WorkerExited{name, true, how, -1, {}}, true);
}

// After a restart the nodes tell which workers still run; whom nobody has told of when the time is
// up is dead. Returns whether it is known of all for the first time.
bool HeadService::Confirm(Job& job) {
  if (job.done() || job.confirm_by == Time::Never()) return false;
  const Duration spared = node_links_.empty() ? options_.spared() : Duration::zero();
  const bool over = Now() >= job.confirm_by + spared;
  bool all = true;
  for (JobWorker& worker : job.record.workers) {
    if (!worker.alive()) continue;
    const HeadProcess* process = ProcessOf(worker.process);
    const bool heard = process != nullptr;
    // What was to be started just before the restart may not be in a hello from before our answer.
    const auto node = node_links_.find(worker.node);
    const bool missed = !heard && node != node_links_.end() && node->second.heard > 0;
    if (missed || (over && !heard)) {
      const WorkerExited gone{worker.process, true, "gone when the head restarted", -1, {}};
      WorkerDied(job, worker, gone.how);
      TellDeath(job, gone, true);
    } else if (!heard || process->run()->lease.empty()) {
      all = false;
    }
  }
  if (!all && !over) return false;
  job.confirm_by = Time::Never();
  EmitEpochs(job);
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
  const std::vector<std::string> lost = processes_.On(change.id);
  for (const std::string& name : lost) EndMissing(name, "its node is " + state);
  for (const std::string& name : lost) actors_.OnNodeLost(name, state);
  usage_.OnNodeGone(change.id);
}

// One that does not end is killed again when its node lists it.
void HeadService::Kill(const std::string& process, int signal, const std::string& reason) {
  const HeadProcess* known = processes_.Find(process);
  if (known == nullptr) return;
  const auto node = node_links_.find(known->node);
  const bool reached = node != node_links_.end();
  // A worker may be heard before its node: that is told when it lists the worker.
  if (signal == SIGKILL)
    processes_.EndBy(process, Now() + (reached ? kKillAgain : Duration::zero()));
  if (!reached) return;
  (void)transport_->Send(node->second.peer,
                         wire::Encode(kFrameKillWorker, KillWorker{process, signal, reason}));
}

}  // namespace troupe::daemons
