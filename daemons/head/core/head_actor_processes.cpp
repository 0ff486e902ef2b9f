// What HeadActors knows of the processes of actors, and of the nodes that run them.
#include <algorithm>
#include <csignal>
#include <utility>

#include "daemons/head/core/head_actors.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/metrics.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::ActorState;
using sched::LeaseRequest;

namespace {

constexpr Duration kEndGrace = seconds(3);   // From the word to leave to the order to kill.
constexpr Duration kNextHello = seconds(1);  // Nodes say one twice a second.
// From when it should have ended and is killed again and again. One that nothing can kill does not
// keep its actor away for ever.
constexpr Duration kEndingLimit = seconds(30);

}  // namespace

// ---- processes ----

bool HeadActors::Lives(const std::string& name, const HeadProcess& process) const {
  const actors::PlacedActor* actor = ActorOf(process);
  return actor != nullptr && !actor->dead() &&
         actor->life.incarnation == process.owner.incarnation && actor->life.process == name;
}

// Adds what a process has counted since its last word: calls and collectives do not pass the head.
void HeadActors::TakeCounts(HeadProcess& process, const WorkerCounts& counts) {
  const auto add = [&](metrics::Id id, uint64_t WorkerCounts::*count) {
    const uint64_t before = process.counts.*count;
    if (counts.*count > before)
      queue_->Put(step::Count{id, static_cast<double>(counts.*count - before)});
  };
  add(metrics::Id::kActorCalls, &WorkerCounts::calls);
  add(metrics::Id::kMailboxRejects, &WorkerCounts::rejects);
  add(metrics::Id::kStateTransfers, &WorkerCounts::transfers);
  add(metrics::Id::kStateBytes, &WorkerCounts::state_bytes);
  if (counts.waiting != process.counts.waiting) {
    const double more =
        static_cast<double>(counts.waiting) - static_cast<double>(process.counts.waiting);
    queue_->Put(step::Count{metrics::Id::kMailboxDepth, more});
  }
  process.counts = counts;
}

void HeadActors::Launch(step::Launch launch) {
  const std::string name = launch.process;
  const HeadProcess* process = processes_.Find(name);
  if (process == nullptr) return;
  if (process->gone_by != Time::Never()) return Gone(name, "was not started any more");
  const Time from = head_->HeldUntil(process->owner.actor);
  if (Now() >= from && !EndsBefore(*process)) return Order(launch);
  held_[name] = {std::move(launch), Now() + kEndingLimit};
  if (Now() < from) queue_->PutAt(from, step::OrderHeld{});
}

void HeadActors::Order(const step::Launch& launch) {
  const HeadProcess* process = processes_.Find(launch.process);
  if (process == nullptr) return;
  processes_.Ordered(launch.process);
  queue_->Put(step::SendToNode{process->node, wire::Encode(kFrameStartWorker, launch.start)});
}

// An actor has one process, also where the one before takes its time to end; and room is given to
// one process, also where it was taken from another.
bool HeadActors::EndsBefore(const HeadProcess& process) const {
  return std::ranges::any_of(processes_.all(), [&](const auto& entry) {
    const HeadProcess& other = entry.second;
    const bool earlier = other.owner.actor == process.owner.actor &&
                         other.owner.incarnation < process.owner.incarnation && !other.ended &&
                         other.gone_by != Time::Never();
    return earlier || (other.roomless && other.node == process.node && &other != &process);
  });
}

// Its process has it nevertheless, until it has been reaped.
void HeadActors::TakeRoom(const std::string& name) {
  if (HeadProcess* process = processes_.Find(name); process != nullptr) process->roomless = true;
}

void HeadActors::OrderHeld() {
  for (auto it = held_.begin(); it != held_.end();) {
    const HeadProcess* process = processes_.Find(it->first);
    const bool wanted = process != nullptr && !process->ended && process->gone_by == Time::Never();
    const bool wait = wanted && ((Now() < it->second.until && EndsBefore(*process)) ||
                                 Now() < head_->HeldUntil(process->owner.actor));
    if (wait) {
      ++it;
      continue;
    }
    const Held held = std::move(it->second);
    it = held_.erase(it);
    if (process == nullptr || process->ended) continue;
    if (process->gone_by != Time::Never()) {
      Gone(held.launch.process, "was not started any more");
    } else {
      Order(held.launch);
    }
  }
}

void HeadActors::End(const std::string& name, const std::string& reason) {
  const HeadProcess* process = processes_.Find(name);
  if (process == nullptr || process->gone_by != Time::Never()) return;
  processes_.EndBy(name, Now() + kEndGrace);
  if (process->hello) Send(name, wire::Encode(kFrameReleaseWorker, ReleaseWorker{reason}));
  const KillWorker kill{name, process->hello ? SIGTERM : SIGKILL, reason};
  queue_->Put(step::SendToNode{process->node, wire::Encode(kFrameKillWorker, kill)});
}

void HeadActors::OnWorkerHello(const std::string& from, const WorkerHello& hello) {
  HeadProcess* process = processes_.Find(hello.process);
  // Else it is of a life that is over, or its node has not told of it yet: that decides.
  if (process == nullptr || process->ended) return;
  process->hello = true;
  process->pid = hello.pid;
  process->host = hello.host;
  TakeCounts(*process, hello.counts);
  if (process->gone_by != Time::Never() && !Lives(hello.process, *process)) {
    Send(from, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"its actor has ended"}));
    return;
  }
  if (hello.assignment.empty()) return Assign(hello.process);
  queue_->Put(step::EndLoad{hello.process});
  OnLoan(*process, hello.loan);
  const ProcessOwner owner = process->owner;
  // Nobody calls a worker of a run.
  if (hello.address.endpoint.empty() && !IsRunActor(owner.actor)) return;
  actors::DirectoryActions actions;
  Schedule(sched::Confirm{MakeLeaseId(owner.actor, owner.incarnation), process->node});
  directory_.Ready(Now(), owner.actor, owner.incarnation, hello.address, actions);
  Do(actions);
  ReadyAgain(hello.process, owner.actor);
}

void HeadActors::OnLoan(HeadProcess& process, const WorkerLoan& loan) {
  if (loan.number < process.loan.number) return;
  const bool was_lent = std::exchange(process.loan, loan).lent;
  const std::string lease = MakeLeaseId(process.owner.actor, process.owner.incarnation);
  // Again if it was told before: the scheduler may not have had the lease then.
  if (loan.lent) return Schedule(sched::Lend{lease});
  if (was_lent) Schedule(sched::TakeBack{lease});
}

// A process gives a result only if its actor could not be made.
void HeadActors::OnWorkerResult(const WorkerResult& result) {
  const HeadProcess* process = processes_.Find(result.process);
  if (process == nullptr) return;
  Result<actors::ActorSaved> failure =
      wire::Decode<actors::ActorSaved>(actors::kFrameActorSaved, result.payload);
  const Error why = failure.ok() && !failure->error.empty()
                        ? actors::FromChain(failure->error)
                        : Error{ErrorCode::kUserError, "the actor could not be made"};
  Send(result.process, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"understood"}));
  processes_.EndBy(result.process, Now() + kEndGrace);
  actors::DirectoryActions actions;
  directory_.Died(Now(), process->owner.actor, process->owner.incarnation, why, true, actions);
  Do(actions);
}

void HeadActors::OnWorkerExited(const WorkerExited& exited, bool lost) {
  HeadProcess* process = processes_.Find(exited.process);
  if (process == nullptr) return;
  if (!std::exchange(process->ended, true)) {
    WorkerCounts last = process->counts;
    last.waiting = 0;
    TakeCounts(*process, last);
  }
  OrderHeld();
  if (TROUPE_MUTATED("room is given back at a death"))
    Schedule(sched::Release{MakeLeaseId(process->owner.actor, process->owner.incarnation)});
  if (!exited.reaped && AwaitsCause(*process)) return;
  WorkerExited told = exited;
  if (told.reaped) told.how = (lost ? "is lost: " : "ended: ") + told.how;
  TellEnded(told);
}

// A node knows that a process has ended before it knows how. Where nothing comes after this death
// but the word to its callers, that word is to say how.
bool HeadActors::AwaitsCause(HeadProcess& process) {
  const auto& [id, incarnation, room] = process.owner;
  const actors::PlacedActor* actor = directory_.Find(id);
  const bool last =
      actor != nullptr && actor->life.incarnation == incarnation && actor->in_last_life();
  if (!last) return false;
  if (head_->Grouped(id)) return false;
  if (process.cause_by == Time::Never()) process.cause_by = Now() + kCauseGrace;
  return Now() < process.cause_by;
}

void HeadActors::TellUnexplained() {
  std::vector<std::string> late;
  for (const auto& [name, process] : processes_.all()) {
    if (Now() >= process.cause_by) late.push_back(name);
  }
  for (const std::string& name : late) TellEnded({name, false, "ended", 0, {}});
}

void HeadActors::TellEnded(const WorkerExited& exited) {
  HeadProcess* process = processes_.Find(exited.process);
  if (process == nullptr) return;
  process->cause_by = Time::Never();
  const std::string its = "its process ";
  std::string how = exited.how.starts_with(its) ? exited.how : its + exited.how;
  const std::string tail =
      exited.last_lines.empty() ? process->last_error : exited.last_lines.back();
  if (exited.reaped && exited.code != 0 && !tail.empty()) how += "; it printed last: " + tail;
  const ProcessOwner owner = process->owner;
  const std::string node = process->node;
  if (exited.reaped) {
    queue_->Put(step::EndLoad{exited.process});
    processes_.Remove(exited.process);
    if (!held_.empty()) queue_->Put(step::OrderHeld{});
    TellProcess(exited.process);
    // First its room, so that its next life may have it.
    Schedule(sched::Release{MakeLeaseId(owner.actor, owner.incarnation)});
  }
  actors::DirectoryActions actions;
  directory_.Died(Now(), owner.actor, owner.incarnation,
                  Error{ErrorCode::kPeerGone, Named(owner.actor, node) + ": " + how}, false,
                  actions);
  Do(actions);
  if (exited.reaped) HandlesGone(exited.process, owner);
}

void HeadActors::OnWorkerOutput(const WorkerOutput& output) {
  HeadProcess* process = processes_.Find(output.process);
  if (process == nullptr) return;
  if (output.is_stderr && !output.lines.empty()) process->last_error = output.lines.back();
  const actors::PlacedActor* actor = ActorOf(*process);
  if (actor == nullptr || actor->spec.detached) return;  // Its node keeps the file.
  TellOutput(actor->spec.owner, {actor->spec.actor, actor->spec.type, process->node, process->pid,
                                 output.is_stderr, output.lines, output.dropped});
}

// An owner that does not take what comes to it, falls silent; it is sent no more then.
void HeadActors::TellOutput(const std::string& owner, actors::ActorOutput output) {
  const auto peer = owner_peers_.find(owner);
  if (peer == owner_peers_.end()) return;
  OwnerOutput& told = outputs_[owner];
  if (told.bytes >= kOwnerOutputBytes) {
    told.dropped += output.lines.size() + output.dropped;
    return;
  }
  output.dropped += std::exchange(told.dropped, 0);
  const std::string frame = wire::Encode(actors::kFrameActorOutput, output);
  told.bytes += frame.size();
  Send(peer->second, frame);
}

// As people are told of it: its type, its id and where it was.
std::string HeadActors::Named(const std::string& id, const std::string& node) const {
  const actors::PlacedActor* actor = directory_.Find(id);
  return (actor == nullptr ? "actor" : actor->spec.type) + " " + id + " on node " + node;
}

void HeadActors::Gone(const std::string& process, const std::string& how) {
  TellEnded(WorkerExited{process, true, how, -1, {}});
}

// The order to start it never arrived: that is nobody's death.
void HeadActors::OnOrderLost(const std::string& name) {
  const HeadProcess process = *processes_.Find(name);
  const ProcessOwner& owner = process.owner;
  processes_.Remove(name);
  queue_->Warn("the order to start ", Named(owner.actor, process.node), " was lost");
  queue_->Put(step::OrderLost{owner.actor, owner.incarnation});
  Schedule(sched::Release{MakeLeaseId(owner.actor, owner.incarnation)});
  actors::DirectoryActions actions;
  directory_.Lost(Now(), owner.actor, owner.incarnation,
                  Error{ErrorCode::kUnavailable, "the order to start it was lost"}, actions);
  Do(actions);
}

// ---- nodes ----

// From before a restart of ours.
void HeadActors::Adopt(const NodeHello& hello, const RunningWorker& listed) {
  const auto [id, incarnation] = ParseLeaseId(listed.lease);
  if (id.empty()) return;
  const actors::PlacedActor* actor = directory_.Find(id);
  const bool unnoted = actor != nullptr && !listed.ended &&
                       actor->life.incarnation == incarnation &&
                       actor->life.state == ActorState::kPending;
  if (unnoted) {  // The head before had ordered it, and no time to note that.
    actors::DirectoryActions actions;
    directory_.Placed(Now(), id, incarnation, hello.node, listed.process, actions);
    waiting_.erase(listed.lease);
    Do(actions);
  }
  const HeadProcess& process =
      processes_.Adopt(Now(), listed.process, hello.node, {id, incarnation, listed.room});
  if (!listed.ended && !IsRunActor(id)) holders_.Expect(listed.process);
  const bool lives = Lives(listed.process, process);
  if (!TROUPE_MUTATED("no room claimed after a restart"))
    Claim(lives ? LeaseFor(actor->spec, incarnation) : LeaseFor(listed.lease, listed.room),
          process);
  if (!lives && !listed.ended &&
      !IsRunActor(id)) {  // Of a run's workers it is known better how long they may stay.
    processes_.EndBy(listed.process, Now());
  }
}

void HeadActors::Claim(const Result<LeaseRequest>& lease, const HeadProcess& process) {
  const WorkerRoom& room = process.owner.room;
  if (lease.ok()) Schedule(sched::Claim{*lease, process.node, room.bundle, room.devices});
}

std::string HeadActors::ProcessOf(const std::string& actor, uint64_t incarnation) const {
  const auto it = std::ranges::find_if(processes_.all(), [&](const auto& entry) {
    const ProcessOwner& owner = entry.second.owner;
    return owner.actor == actor && owner.incarnation == incarnation;
  });
  return it == processes_.all().end() ? "" : it->first;
}

void HeadActors::OnNode(const NodeHello& hello, uint64_t heard) {
  // If it was the head that had been cut off, the others come back now, too.
  if (!std::exchange(node_heard_, true) && confirm_by_ != Time::Never())
    confirm_by_ = std::max(confirm_by_, Now() + kNextHello);
  Confirm(&hello, heard);
}

// After a restart: who is said to live on a node that does not list it is gone; so is, when the
// time is up, whose node has not been heard. Unless it is only the order to start it that was
// lost with the head that gave it: a node that lived on tells who has ended there, and has what
// that head sent, or never will, when it has an answer of ours.
void HeadActors::Confirm(const NodeHello* hello, uint64_t heard) {
  if (confirm_by_ == Time::Never() || TROUPE_MUTATED("nobody is missed after a restart")) return;
  // While nobody at all is heard it may be the head that is cut off.
  const bool over = Now() >= confirm_by_ + (node_heard_ ? Duration::zero() : options_.spared);
  if (hello != nullptr && heard == 0 && !hello->heard.head.empty()) survivors_.insert(hello->node);
  const bool survivor = hello != nullptr && survivors_.contains(hello->node);
  struct Missing {
    std::string id;
    uint64_t incarnation;
    bool order_lost;
    auto operator<=>(const Missing&) const = default;
  };
  std::vector<Missing> missing;
  bool asks = false;  // A node will say more in its next hello.
  for (const auto& [id, actor] : directory_.actors()) {
    const actors::ActorLife& life = actor.life;
    if (actor.dead() || life.process.empty() || processes_.Find(life.process) != nullptr) continue;
    const bool here = hello != nullptr && life.node == hello->node;
    const bool order_lost = here && survivor && life.state == ActorState::kStarting &&
                            hello->all_ended &&
                            std::ranges::find(hello->ended, life.process) == hello->ended.end();
    if (order_lost && heard == 0 && !over) continue;
    asks = asks || (life.state == ActorState::kStarting && survivors_.contains(life.node));
    if (over || here) missing.push_back({id, life.incarnation, order_lost});
  }
  if (over && asks && hello == nullptr && !std::exchange(asked_longer_, true)) {
    confirm_by_ = Now() + kNextHello;
    return;
  }
  if (over) {
    confirm_by_ = Time::Never();
    survivors_.clear();
    for (const std::string& process : watch_.Followed(actors::kProcessPrefix))
      watch_.Changed(process);
  }
  std::sort(missing.begin(), missing.end());
  for (const Missing& one : missing) {
    const std::string name = Named(one.id, directory_.Find(one.id)->life.node);
    actors::DirectoryActions actions;
    if (one.order_lost) {
      queue_->Warn("the order to start ", name, " was lost with the head that gave it");
      queue_->Put(step::OrderLost{one.id, one.incarnation});
      directory_.Lost(Now(), one.id, one.incarnation,
                      Error{ErrorCode::kUnavailable, "the order to start it was lost"}, actions);
    } else {
      directory_.Died(
          Now(), one.id, one.incarnation,
          Error{ErrorCode::kPeerGone, name + ": it was gone when the head was restarted"}, false,
          actions);
    }
    Do(actions);
  }
}

bool HeadActors::Unconfirmed() {
  return confirm_by_ != Time::Never() &&
         std::ranges::any_of(directory_.actors(), [&](const auto& entry) {
           const actors::PlacedActor& actor = entry.second;
           return !actor.dead() && Unconfirmed(actor.life.process);
         });
}

std::vector<std::string> HeadActors::On(const std::string& node) const {
  std::vector<std::string> there;
  for (const auto& [id, actor] : directory_.actors()) {
    const bool here = !actor.dead() && actor.life.node == node && !actor.life.process.empty();
    if (here && actor.spec.max_restarts != 0) there.push_back(id);
  }
  std::sort(there.begin(), there.end());
  return there;
}

void HeadActors::OnNodeDrain(const std::string& node, const std::string& reason,
                             const std::set<std::string>& elsewhere) {
  actors::DirectoryActions actions;
  directory_.Drain(Now(), node, "node " + node + " is drained: " + reason, actions,
                   [&](const std::string& actor) { return elsewhere.contains(actor); });
  Do(actions);
}

}  // namespace troupe::daemons
