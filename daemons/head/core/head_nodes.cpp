// What HeadCore knows of its nodes, and how it keeps in step with what they run.
//
// What is sent over a connection that breaks is lost, in both directions, so nothing here rests on
// one message: a node says in every hello which workers it has and which answer of ours it had got
// by then. A worker that is missing although an answer from after its start arrived has ended or
// never began; one that should have ended is killed again.
#include <algorithm>
#include <csignal>
#include <set>

#include "daemons/head/core/head_core.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {
namespace {

constexpr Duration kClaimTime = seconds(1);                   // More than it takes.
constexpr uint64_t kNoticeMsMax = 366ULL * 24 * 3600 * 1000;  // Beyond, it is no deadline.
constexpr Duration kSettleTime = seconds(30);                 // For workers that were drained.

// For people: "preempt (aws: terminate at 2026-01-02T03:04:05Z)".
std::string NoticeText(const NodeNotice& notice) {
  if (!notice) return "";
  return notice.kind + " (" + notice.source + ": " + notice.reason + ")";
}

}  // namespace

void HeadCore::OnNodeHello(const std::string& from, const NodeHello& hello) {
  Result<ResourceSet> total = ResourceSet::FromMap(hello.resources);
  if (!total.ok()) {
    queue_.Warn("node ", hello.node, " offers unusable resources: ", total.error().message);
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
    Send(from, wire::Encode(kFrameNodeFenced, fenced));
  }
  ApplyNodes(decision);  // Of an older incarnation first.
  if (decision.fenced || decision.waits) return;
  Node& node = node_links_[hello.node];
  node.peer = from;
  node.heard = hello.heard.head == log_id_ ? hello.heard.number : 0;
  const bool is_new = offered_.insert(hello.node).second;
  if (is_new) queue_.Note("node ", hello.node, " on ", hello.host, " offers ", total->ToString());
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
  if (hello.output > 0) Send(from, wire::Encode(kFrameOutputTaken, OutputTaken{hello.output}));
  const NodeAnswer answer{log_id_, processes_.NextAnswer(hello.node)};
  Send(from, wire::Encode(kFrameNodeAnswer, answer));
  TakeNotices(hello, node);
  for (auto& [name, run] : runs_) Confirm(run);
  queue_.Put(step::EndRecovery{});
}

void HeadCore::TakeNotices(const NodeHello& hello, Node& node) {
  const auto at = [&](const NodeNotice& notice) {
    return notice.left_ms > kNoticeMsMax ? Time::Never() : Now() + milliseconds(notice.left_ms);
  };
  if (hello.warning &&
      (hello.warning.kind != node.warning.kind || hello.warning.reason != node.warning.reason))
    queue_.Note("node ", hello.node, " may go away: ", NoticeText(hello.warning));
  node.warning = hello.warning;
  node.warning_at = at(hello.warning);
  if (hello.notice && !node.notice)
    queue_.Note("node ", hello.node, " goes away: ", NoticeText(hello.notice));
  node.notice = hello.notice;
  if (!hello.leaving && !hello.notice) return;
  const Time until = hello.notice ? at(hello.notice) : Now();
  ApplyNodes(nodes_.Step(Now(), NodeDrain{hello.node, until, NoticeText(hello.notice)}));
}

// Nothing new is placed before it is known what still runs, or the time for that is up.
void HeadCore::Recover(Time until) {
  recover_until_ = until;
  Schedule(sched::Recover{until});
}

void HeadCore::On(const step::EndRecovery& /*end*/) {
  if (recover_until_ <= Now() || actors_.Unconfirmed() || placement_groups_.Unconfirmed()) return;
  const bool runs = std::ranges::any_of(
      runs_, [](const auto& entry) { return !entry.second.done() && entry.second.confirming; });
  if (!runs) Recover(Now());
}

// Makes what we know of the node's processes what the node says of them.
void HeadCore::Reconcile(const NodeHello& hello, uint64_t heard) {
  for (const RunningWorker& listed : hello.workers) {
    if (processes_.Find(listed.process) == nullptr) actors_.Adopt(hello, listed);
    if (!listed.ended) EndIfOver(listed.process);
  }
  const ProcessTable::Heard now_is = processes_.OnHello(Now(), hello, heard);
  for (const std::string& name : now_is.ended)
    OnWorkerExited(WorkerExited{name, false, "its process ended", 0, {}});
  for (const std::string& name : now_is.overdue) Kill(name, SIGKILL, "it should have ended");
  for (const std::string& name : now_is.missing) {
    const HeadProcess* process = processes_.Find(name);
    if (process == nullptr) continue;
    process->began() ? EndMissing(name, "its node does not have it (any more)")
                     : actors_.OnOrderLost(name);
  }
}

// A worker of a run whom nobody has a use for is given some time to leave by itself, unless it was
// taken for dead: a host that was cut off may come back with it.
void HeadCore::EndIfOver(const std::string& name) {
  const HeadProcess* process = processes_.Find(name);
  if (process == nullptr || !IsRunActor(process->owner.actor)) return;
  if (TROUPE_MUTATED("who was evicted stays")) return;
  const Run* run = RunOf(process->owner.actor);
  if (run == nullptr) {
    if (Now() > process->since + kLeaveTime) processes_.EndBy(name, Now());
    return;
  }
  if (run->released) return processes_.EndBy(name, Now() + kLeaveTime);
  const auto& workers = run->record.workers;
  const auto worker = std::ranges::find(workers, name, &RunWorker::process);
  // One that another has followed has left, if it was this head that saw it go.
  const bool left =
      worker == workers.end() ? !process->found : worker->state == WorkerState::kDrained;
  const bool over =
      worker == workers.end() || worker->fenced || worker->state == WorkerState::kDead;
  if (left) {
    processes_.EndBy(name, Now() + kSettleTime);
  } else if (over) {
    processes_.EndBy(name, Now());
  }
}

void HeadCore::EndMissing(const std::string& name, const std::string& how) {
  OnWorkerExited(WorkerExited{name, true, how, -1, {}}, true);
}

// After a restart the nodes tell which workers still run.
void HeadCore::Confirm(Run& run) {
  if (run.done() || !run.confirming) return;
  const actors::Directory& directory = actors_.directory();
  // The head before may have known of an end, and had no time to note what it means here.
  const auto over = [&](const RunWorker& worker) {
    const actors::PlacedActor* actor = directory.Find(worker.actor);
    return actor == nullptr || actor->dead() || actor->life.incarnation != worker.incarnation;
  };
  bool all = true;
  for (RunWorker& worker : run.record.workers) {
    if (!worker.alive()) continue;
    if (over(worker)) {
      OnWorkerGone(run, worker, "gone when the head restarted");
      if (run.done()) return;
    }
    all = all && !(worker.alive() && actors_.Unconfirmed(worker.process));
  }
  if (!all) return;
  run.confirming = false;
  EmitEpochs(run);
}

void HeadCore::ApplyNodes(const NodeDecision& decision) {
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
    const Duration limit = nodes_.nodes().at(change.id).drain_deadline - Now();
    const std::string reason = "node " + change.id + ": " + change.reason;
    std::set<std::string> members;  // Of groups: those see to it.
    for (const std::string& actor : actors_.On(change.id)) {
      if (actor_groups_.OnNodeDrain(actor, reason, std::max(limit, Duration::zero())))
        members.insert(actor);
    }
    actors_.OnNodeDrain(change.id, change.reason, members);
  }
}

void HeadCore::OnNodeEnded(const NodeChange& change) {
  const std::string state(NodeStateName(change.state));
  queue_.Warn("node ", change.id, " is ", state, ": ", change.reason);
  offered_.erase(change.id);
  Schedule(sched::NodeGone{change.id, "node " + change.id + " is " + state});
  queue_.Put(step::NodeLost{change.id, "its node is " + state});
  usage_.OnNodeGone(change.id);
}

void HeadCore::On(const step::NodeLost& lost) {
  for (const std::string& name : processes_.On(lost.node)) EndMissing(name, lost.how);
}

// One that does not end is killed again when its node lists it.
void HeadCore::Kill(const std::string& process, int signal, const std::string& reason) {
  const HeadProcess* known = processes_.Find(process);
  if (known == nullptr) return;
  const auto node = node_links_.find(known->node);
  const bool reached = node != node_links_.end();
  // A worker may be heard before its node: that is told when it lists the worker.
  if (signal == SIGKILL)
    processes_.EndBy(process, Now() + (reached ? kKillAgain : Duration::zero()));
  if (!reached) return;
  SendToNode(node->first, wire::Encode(kFrameKillWorker, KillWorker{process, signal, reason}));
}

}  // namespace troupe::daemons
