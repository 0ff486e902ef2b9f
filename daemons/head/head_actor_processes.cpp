// What HeadActors knows of the processes of actors, and of the nodes that run them.
#include <algorithm>
#include <csignal>
#include <utility>

#include "daemons/head/head_actors.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/log.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::ActorState;
using sched::LeaseRequest;

namespace {

constexpr Duration kEndGrace = seconds(3);   // From the word to leave to the order to kill.
constexpr Duration kNextHello = seconds(1);  // Nodes say one twice a second.

}  // namespace

// ---- processes ----

HeadProcess* HeadActors::ProcessOf(const std::string& name) {
  HeadProcess* process = processes_.Find(name);
  return process == nullptr || process->actor() == nullptr ? nullptr : process;
}

void HeadActors::End(const std::string& name, const std::string& reason) {
  const HeadProcess* process = ProcessOf(name);
  if (process == nullptr || process->gone_by != Time::Never()) return;
  processes_.EndBy(name, Now() + kEndGrace);
  if (process->hello)
    (void)callbacks_.transport->Send(name,
                                     wire::Encode(kFrameReleaseWorker, ReleaseWorker{reason}));
  callbacks_.kill(process->node, name, process->hello ? SIGTERM : SIGKILL, reason);
}

bool HeadActors::OnWorkerHello(const std::string& from, const WorkerHello& hello) {
  HeadProcess* process = ProcessOf(hello.process);
  // Else it is of a life that is over, or its node has not told of it yet: that decides.
  if (process == nullptr) return hello.job.starts_with(kActorLease);
  process->hello = true;
  process->pid = hello.pid;
  if (process->gone_by != Time::Never()) {
    (void)callbacks_.transport->Send(
        from, wire::Encode(kFrameReleaseWorker, ReleaseWorker{"its actor has ended"}));
    return true;
  }
  if (hello.job.empty()) {
    Assign(hello.process);
    return true;
  }
  loads_.Done(hello.process);
  if (hello.address.endpoint.empty()) return true;
  actors::DirectoryActions actions;
  const ActorRole role = *process->actor();
  if (role.booked)
    callbacks_.schedule(sched::Confirm{MakeLeaseId(role.actor, role.incarnation), process->node});
  directory_.Ready(Now(), role.actor, role.incarnation, hello.address, actions);
  Do(actions);
  return true;
}

// A process gives a result only if its actor could not be made.
bool HeadActors::OnWorkerResult(const WorkerResult& result) {
  const HeadProcess* process = ProcessOf(result.process);
  if (process == nullptr) return result.job.starts_with(kActorLease);
  Result<actors::ActorSaved> failure =
      wire::Decode<actors::ActorSaved>(actors::kFrameActorSaved, result.payload);
  const Error why = failure.ok() && !failure->error.empty()
                        ? actors::FromChain(failure->error)
                        : Error{ErrorCode::kUserError, "the actor could not be made"};
  (void)callbacks_.transport->Send(result.process,
                                   wire::Encode(kFrameReleaseWorker, ReleaseWorker{"understood"}));
  processes_.EndBy(result.process, Now() + kEndGrace);
  actors::DirectoryActions actions;
  directory_.Died(Now(), process->actor()->actor, process->actor()->incarnation, why, true,
                  actions);
  Do(actions);
  return true;
}

bool HeadActors::OnWorkerExited(const WorkerExited& exited) {
  HeadProcess* process = ProcessOf(exited.process);
  if (process == nullptr) return false;
  if (!exited.reaped && AwaitsCause(*process->actor())) return true;
  WorkerExited told = exited;
  if (told.reaped) told.how = "ended: " + told.how;
  TellEnded(told);
  return true;
}

// A node knows that a process has ended before it knows how. Where nothing comes after this death
// but the word to its callers, that word is to say how.
bool HeadActors::AwaitsCause(ActorRole& role) {
  const actors::PlacedActor* actor = directory_.Find(role.actor);
  const bool last =
      actor != nullptr && actor->life.incarnation == role.incarnation && actor->in_last_life();
  if (!last) return false;
  if (callbacks_.grouped(role.actor)) return false;
  if (role.cause_by == Time::Never()) role.cause_by = Now() + kCauseGrace;
  return Now() < role.cause_by;
}

void HeadActors::TellUnexplained() {
  std::vector<std::string> late;
  for (const auto& [name, process] : processes_.all()) {
    if (process.actor() != nullptr && Now() >= process.actor()->cause_by) late.push_back(name);
  }
  for (const std::string& name : late) TellEnded({name, false, "ended", 0, {}});
}

void HeadActors::TellEnded(const WorkerExited& exited) {
  HeadProcess* process = ProcessOf(exited.process);
  if (process == nullptr) return;
  process->actor()->cause_by = Time::Never();
  const std::string its = "its process ";
  std::string how = exited.how.starts_with(its) ? exited.how : its + exited.how;
  const std::string tail =
      exited.last_lines.empty() ? process->actor()->last_error : exited.last_lines.back();
  if (exited.reaped && exited.code != 0 && !tail.empty()) how += "; it printed last: " + tail;
  const ActorRole role = *process->actor();
  const std::string node = process->node;
  if (exited.reaped) {
    loads_.Done(exited.process);
    processes_.Remove(exited.process);
    TellProcess(exited.process);
    // First its room, so that its next life may have it.
    callbacks_.schedule(sched::Release{MakeLeaseId(role.actor, role.incarnation)});
  }
  actors::DirectoryActions actions;
  directory_.Died(Now(), role.actor, role.incarnation,
                  Error{ErrorCode::kPeerGone, Named(role.actor, node) + ": " + how}, false,
                  actions);
  Do(actions);
}

bool HeadActors::OnWorkerOutput(const WorkerOutput& output) {
  HeadProcess* process = ProcessOf(output.process);
  if (process == nullptr) return false;
  if (output.is_stderr && !output.lines.empty()) process->actor()->last_error = output.lines.back();
  const actors::PlacedActor* actor = ActorOf(*process);
  if (actor == nullptr || actor->spec.detached) return true;  // Its node keeps the file.
  TellOutput(actor->spec.owner, {actor->spec.actor, actor->spec.type, process->node, process->pid,
                                 output.is_stderr, output.lines, output.dropped});
  return true;
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
  (void)callbacks_.transport->Send(peer->second, frame);
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
void HeadActors::OrderLost(const std::string& name) {
  const HeadProcess process = *ProcessOf(name);
  const ActorRole& role = *process.actor();
  processes_.Remove(name);
  LogWarning("the order to start ", Named(role.actor, process.node), " was lost");
  callbacks_.schedule(sched::Release{MakeLeaseId(role.actor, role.incarnation)});
  actors::DirectoryActions actions;
  directory_.Lost(Now(), role.actor, role.incarnation,
                  Error{ErrorCode::kUnavailable, "the order to start it was lost"}, actions);
  Do(actions);
}

// ---- nodes ----

// From before a restart of ours.
void HeadActors::Adopt(const NodeHello& hello, const RunningWorker& listed) {
  const auto [id, incarnation] = ParseLeaseId(listed.job);
  if (id.empty()) return;
  const actors::PlacedActor* actor = directory_.Find(id);
  const bool unnoted = actor != nullptr && !listed.ended &&
                       actor->life.incarnation == incarnation &&
                       actor->life.state == ActorState::kPending;
  if (unnoted) {  // The head before had ordered it, and no time to note that.
    actors::DirectoryActions actions;
    directory_.Placed(Now(), id, incarnation, hello.node, listed.process, actions);
    waiting_.erase(listed.job);
    Do(actions);
  }
  const bool current = actor != nullptr && !actor->dead() &&
                       actor->life.incarnation == incarnation &&
                       actor->life.process == listed.process;
  const HeadProcess& process = processes_.Adopt(
      Now(), listed.process, hello.node,
      ActorRole{.actor = id, .incarnation = incarnation, .booked = true, .room = listed.room});
  if (current) {
    Claim(*actor, process);
  } else {
    processes_.EndBy(listed.process, Now());
  }
}

void HeadActors::OnMissing(const std::string& name) {
  const HeadProcess* process = ProcessOf(name);
  if (process == nullptr) return;
  process->began() ? Gone(name, "is not on its node any more") : OrderLost(name);
}

void HeadActors::Claim(const actors::PlacedActor& actor, const HeadProcess& process) {
  const ActorRole& role = *process.actor();
  Result<LeaseRequest> request = LeaseFor(actor.spec, role.incarnation);
  if (!request.ok()) return;
  callbacks_.schedule(sched::Claim{*request, process.node, role.room.bundle, role.room.devices});
}

// After a restart: who is said to live on a node that does not list it is gone; so is, when the
// time is up, whose node has not been heard. Unless it is only the order to start it that was
// lost with the head that gave it: a node that lived on tells who has ended there, and has what
// that head sent, or never will, when it has an answer of ours.
void HeadActors::Confirm(const NodeHello* hello, uint64_t heard) {
  if (confirm_by_ == Time::Never()) return;
  const bool over = Now() >= confirm_by_;
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
      LogWarning("the order to start ", name, " was lost with the head that gave it");
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
  if (confirm_by_ == Time::Never() || Now() >= confirm_by_) return false;
  return std::ranges::any_of(directory_.actors(), [&](const auto& entry) {
    const actors::PlacedActor& actor = entry.second;
    return !actor.dead() && !actor.life.process.empty() &&
           processes_.Find(actor.life.process) == nullptr;
  });
}

void HeadActors::OnNodeLost(const std::string& process, const std::string& how) {
  const HeadProcess* known = ProcessOf(process);
  if (known != nullptr) Gone(process, "is lost: node " + known->node + " is " + how);
}

void HeadActors::OnNodeDrain(const std::string& node, const std::string& reason,
                             const std::function<bool(const std::string& actor)>& elsewhere) {
  actors::DirectoryActions actions;
  directory_.Drain(Now(), node, "node " + node + " is drained: " + reason, actions, elsewhere);
  Do(actions);
}

}  // namespace troupe::daemons
