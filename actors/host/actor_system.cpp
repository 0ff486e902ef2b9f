#include "actors/host/actor_system.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "actors/core/actor_group_protocol.h"
#include "actors/host/host_actor.h"
#include "actors/host/local_actor.h"
#include "actors/host/remote_actor.h"
#include "actors/host/task_pool.h"
#include "runtime/log.h"

namespace troupe::actors {
namespace {

constexpr Duration kSweepInterval = milliseconds(20);  // While calls are open.
constexpr Duration kCleanInterval = seconds(5);

}  // namespace

const char* ActorStateName(ActorState state) {
  static constexpr const char* kNames[] = {"pending", "starting", "alive", "restarting", "dead"};
  return kNames[static_cast<size_t>(state)];
}

std::shared_ptr<ActorSystem> ActorSystem::Create(std::unique_ptr<Transport> transport,
                                                 Options options) {
  std::shared_ptr<ActorSystem> system(new ActorSystem(std::move(transport), std::move(options)));
  const std::weak_ptr<ActorSystem> weak = system;
  system->transport_->SetHandler([weak](const std::string& from, const std::string& frame) {
    if (const auto alive = weak.lock()) alive->OnFrame(from, frame);
  });
  ActorBlueprint blueprint;
  blueprint.type = "host";
  blueprint.max_concurrency = 16;
  (void)system->HostInstance(std::make_unique<HostActor>(system.get()), blueprint,
                             HostOf(system->self_).actor, 0, "");
  system->transport_->loop().Post([weak] {
    if (const auto alive = weak.lock()) alive->Clean();
    if (const auto alive = weak.lock()) alive->TellWaiting();
  });
  return system;
}

ActorSystem::ActorSystem(std::unique_ptr<Transport> transport, Options options)
    : options_(std::move(options)), transport_(std::move(transport)) {
  self_.peer = transport_->self();
  Executor::Options executor{.name = "actor",
                             .threads = options_.actor_threads,
                             .on_uncaught = [](const std::string& what) {
                               LogError("an exception left a fiber: ", what);
                             }};
  if (options_.actors_run_loop) {
    executor.idle = [this](Time until) { return transport_->Help(until); };
    executor.wake = [this] { transport_->WakeHelper(); };
  }
  executor_ = std::make_unique<Executor>(std::move(executor));
}

ActorSystem::~ActorSystem() {
  Stop(seconds(2));
  if (!transport_->InLoop()) return;
  // The last handle was held by a callback: the loop cannot wait for its own end.
  std::thread([transport = std::shared_ptr<Transport>(std::move(transport_))] {
    transport->Stop();
  }).detach();
}

Status ActorSystem::Listen(const std::string& endpoint) {
  Result<PeerAddress> address = transport_->Listen(endpoint);
  if (!address.ok()) return address.error();
  std::lock_guard lock(mu_);
  self_ = *address;
  return Status::Ok();
}

void ActorSystem::Stop(Duration limit) {
  if (stopped_.exchange(true)) return;
  std::vector<std::shared_ptr<ActorCell>> cells;
  std::vector<std::shared_ptr<RemoteActor>> remotes;
  TaskPool* tasks = nullptr;
  {
    std::lock_guard lock(mu_);
    tasks = tasks_.get();
    for (const auto& [id, cell] : cells_) cells.push_back(cell);
    for (const auto& [id, weak] : remotes_) {
      if (auto remote = weak.lock()) remotes.push_back(std::move(remote));
    }
    cells_.clear();
  }
  const Error why{ErrorCode::kCancelled, "its process shuts down"};
  // Of a placed one the directory says what becomes of it.
  for (const auto& cell : cells)
    cell->End(why, !cell->self().placed || options_.directory_client == nullptr);
  const Error shut_down{ErrorCode::kCancelled, "this runtime was shut down"};
  if (tasks != nullptr) tasks->Stop(shut_down);
  for (const auto& remote : remotes) remote->OnGone(shut_down);
  std::vector<std::shared_ptr<LocalCall>> open;
  {
    std::lock_guard lock(mu_);
    open.swap(local_calls_);
  }
  for (const auto& call : open) call->Finish(why);
  if (!executor_->Stop(limit).ok()) LogWarning("methods still run at the end of this process");
  if (!transport_->InLoop()) transport_->Stop();
}

// ---- actors of this process ----

ActorAddress ActorSystem::HostOf(const PeerAddress& process) {
  return {"host/" + process.peer, 0, "host", process, false};
}

Result<ActorAddress> ActorSystem::Host(const ActorBlueprint& blueprint, std::string id,
                                       uint64_t incarnation, const std::string& saved) {
  Result<std::unique_ptr<Instance>> instance =
      options_.types.Make(this, blueprint.type, blueprint.arguments);
  if (!instance.ok()) return instance.error();
  return HostInstance(std::move(*instance), blueprint, std::move(id), incarnation, saved);
}

Result<ActorAddress> ActorSystem::HostInstance(std::unique_ptr<Instance> instance,
                                               const ActorBlueprint& blueprint, std::string id,
                                               uint64_t incarnation, const std::string& saved) {
  if (const Status s = CheckConcurrency(blueprint); !s.ok()) return s.error();
  ActorAddress address{std::move(id), incarnation, blueprint.type, {}, incarnation > 0};
  size_t thread = 0;
  {
    std::lock_guard lock(mu_);
    if (stopped_.load()) return Error{ErrorCode::kCancelled, "this runtime was shut down"};
    if (cells_.size() >= kLocalActorsMax)
      return Error{ErrorCode::kResourceExhausted,
                   "this process has " + std::to_string(kLocalActorsMax) + " actors already"};
    thread = static_cast<size_t>(next_actor_++);
    if (address.actor.empty()) address.actor = self_.peer + "/" + std::to_string(thread);
    address.process = self_;
    if (const auto it = cells_.find(address.actor); it != cells_.end()) return it->second->self();
  }
  auto cell = std::make_shared<ActorCell>(static_cast<CellHost*>(this), this, address,
                                          std::move(instance), blueprint, thread);
  if (!saved.empty()) {
    if (Status s = cell->Restore(saved); !s.ok()) return s.error();
  }
  std::lock_guard lock(mu_);
  return cells_.emplace(address.actor, std::move(cell)).first->second->self();
}

Error ActorSystem::ReasonOf(const std::string& actor) const {
  if (const auto it = ended_.find(actor); it != ended_.end()) return it->second;
  return Error{ErrorCode::kPeerGone, "there is no actor " + actor + " in process " + self_.peer +
                                         "; it has ended, or its process was replaced"};
}

Status ActorSystem::End(const std::string& actor, const Error& reason) {
  std::shared_ptr<ActorCell> cell;
  std::vector<LocalMonitor> monitors;
  {
    std::lock_guard lock(mu_);
    const auto it = cells_.find(actor);
    if (it == cells_.end()) return ReasonOf(actor);
    cell = std::move(it->second);
    cells_.erase(it);
    ending_.push_back(cell);
    ended_.insert_or_assign(actor, reason);
    ended_order_.push_back(actor);
    if (ended_order_.size() > kEndedKept) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
    if (const auto found = monitors_.find(actor); found != monitors_.end()) {
      monitors = std::move(found->second);
      monitors_.erase(found);
    }
  }
  cell->End(reason);
  const std::string down = wire::Encode(kFrameActorDown, ActorDown{actor, ToChain(reason)});
  for (const std::string& peer : cell->watchers()) (void)transport_->Send(peer, down);
  for (const LocalMonitor& monitor : monitors) monitor.down(reason);
  return Status::Ok();
}

Status ActorSystem::Has(const std::string& actor) const {
  std::lock_guard lock(mu_);
  return cells_.contains(actor) ? Status::Ok() : Status(ReasonOf(actor));
}

std::shared_ptr<ActorCell> ActorSystem::Find(const std::string& actor) const {
  std::lock_guard lock(mu_);
  const auto it = cells_.find(actor);
  return it == cells_.end() ? nullptr : it->second;
}

TaskPool& ActorSystem::tasks() {
  std::lock_guard lock(mu_);
  if (!tasks_) tasks_ = std::make_unique<TaskPool>(this);
  return *tasks_;
}

size_t ActorSystem::actors() const {
  std::lock_guard lock(mu_);
  return cells_.size();
}

// ---- what cells ask ----

void ActorSystem::SendTo(const std::string& to, const ActorReply& reply) {
  if (reply.value.size() + 4096 > wire::kWireFrameBytesMax) {
    ActorReply refusal = reply;
    refusal.value.clear();
    refusal.error = ToChain(Error{
        ErrorCode::kResourceExhausted,
        "the result has " + std::to_string(reply.value.size()) + " bytes, over the limit of " +
            std::to_string(wire::kWireFrameBytesMax) + " for a message; return it in parts"});
    return SendTo(to, refusal);
  }
  (void)transport_->Send(to, wire::Encode(kFrameActorReply, reply));
}
void ActorSystem::SendTo(const std::string& to, const ActorMissing& missing) {
  (void)transport_->Send(to, wire::Encode(kFrameActorMissing, missing));
}
void ActorSystem::SendTo(const std::string& to, const ActorFull& full) {
  (void)transport_->Send(to, wire::Encode(kFrameActorFull, full));
}
void ActorSystem::SendTo(const std::string& to, const ActorRoom& room) {
  (void)transport_->Send(to, wire::Encode(kFrameActorRoom, room));
}

void ActorSystem::Save(const ActorAddress& actor, std::string state,
                       std::function<void(Status)> done) {
  // Without a directory nobody starts it again: there is nothing to keep its state for.
  if (!actor.placed || options_.directory_client == nullptr) return done(Status::Ok());
  options_.directory_client->Save(actor.actor, actor.incarnation, std::move(state),
                                  std::move(done));
}

void ActorSystem::Exited(const ActorAddress& actor, const Error& reason) {
  if (actor.placed && options_.directory_client != nullptr)
    options_.directory_client->Exited(actor.actor, actor.incarnation, reason);
  (void)End(actor.actor, reason);
}

void ActorSystem::Leave(const LeaveActor& leave) {
  const auto cell = Find(leave.actor);
  if (!cell || cell->self().incarnation != leave.incarnation) return;
  const Error reason{ErrorCode::kPeerGone, "it was asked to leave: " + leave.reason};
  MayLeave may_leave;
  if (leave.unheld) {
    std::lock_guard lock(mu_);
    may_leave = may_leave_;
  }
  cell->Leave(reason, may_leave ? [may_leave, heard = leave.heard] { return !may_leave(heard); }
                                : std::function<bool()>());
}

void ActorSystem::SetMayLeave(MayLeave may_leave) {
  std::lock_guard lock(mu_);
  may_leave_ = std::move(may_leave);
}

// There is no use in its going on: what it does now is lost.
void ActorSystem::Failed(const ActorAddress& actor, const Error& reason) {
  if (!actor.placed || options_.directory_client == nullptr) return Exited(actor, reason);
  if (const auto cell = Find(actor.actor)) cell->End(reason, false);
  options_.directory_client->Failed(actor.actor, actor.incarnation, reason);
}

Status ActorSystem::Spawn(size_t thread, std::function<void()> fn) {
  return executor_->Spawn(thread, std::move(fn));
}

// ---- actors of others ----

void ActorSystem::PostAfter(Duration delay, std::function<void()> fn) {
  Post([weak = weak_from_this(), delay, fn = std::move(fn)]() mutable {
    if (const auto alive = weak.lock())
      (void)alive->transport_->loop().CallAfter(delay, std::move(fn));
  });
}

std::shared_ptr<ActorRef> ActorSystem::Refer(const ActorAddress& address) {
  if (std::shared_ptr<ActorCell> cell = Find(address.actor))
    return std::make_shared<LocalActor>(shared_from_this(), std::move(cell));
  if (address.process.peer == self_.peer && !address.placed)
    return std::make_shared<EndedActor>(address, ReasonOf(address.actor));
  std::shared_ptr<RemoteActor> remote;
  {
    std::lock_guard lock(mu_);
    std::weak_ptr<RemoteActor>& known = remotes_[address.actor];
    if (auto alive = known.lock()) return alive;
    remote = std::make_shared<RemoteActor>(shared_from_this(), address);
    known = remote;
  }
  remote->Begin();
  return remote;
}

std::shared_ptr<RemoteActor> ActorSystem::FindRemote(const std::string& actor) const {
  std::lock_guard lock(mu_);
  const auto it = remotes_.find(actor);
  return it == remotes_.end() ? nullptr : it->second.lock();
}

void ActorSystem::Forget(const std::string& actor, const std::string& followed) {
  {
    std::lock_guard lock(mu_);
    const auto it = remotes_.find(actor);
    // Else somebody refers to it anew.
    if (it != remotes_.end() && it->second.expired()) remotes_.erase(it);
  }
  if (!followed.empty() && !stopped_.load()) options_.directory_client->Unfollow(followed);
}

Status ActorSystem::Reach(const PeerAddress& process) {
  {
    std::lock_guard lock(mu_);
    const auto it = reached_.find(process.peer);
    const bool same = it != reached_.end() && it->second.endpoint == process.endpoint;
    if (same || process.peer == self_.peer) return Status::Ok();
  }
  if (process.endpoint.empty()) {
    return Error{ErrorCode::kUnavailable,
                 "process " + process.peer + " takes no calls: it does not listen"};
  }
  if (Status s = transport_->Connect(process); !s.ok()) return s;
  std::lock_guard lock(mu_);
  reached_[process.peer] = process;
  return Status::Ok();
}

void ActorSystem::Activate(std::shared_ptr<RemoteActor> actor) {
  {
    std::lock_guard lock(mu_);
    active_.push_back(std::move(actor));
    if (std::exchange(sweeping_, true)) return;
  }
  StartSweeping();
}

void ActorSystem::Expect(std::shared_ptr<LocalCall> call) {
  {
    std::lock_guard lock(mu_);
    local_calls_.push_back(std::move(call));
    if (std::exchange(sweeping_, true)) return;
  }
  StartSweeping();
}

void ActorSystem::StartSweeping() {
  transport_->loop().Post([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->Sweep();
  });
}

void ActorSystem::Sweep() {
  std::vector<std::shared_ptr<RemoteActor>> actors;
  std::vector<std::shared_ptr<LocalCall>> calls;
  {
    std::lock_guard lock(mu_);
    actors.swap(active_);
    calls.swap(local_calls_);
  }
  const Time now = transport_->loop().Now();
  std::erase_if(actors, [&](const auto& actor) { return !actor->Sweep(now); });
  std::erase_if(calls, [&](const auto& call) {
    if (!call->finished.load() && call->deadline <= now) {
      call->Finish(Error{ErrorCode::kDeadlineExceeded,
                         call->why_late ? call->why_late()
                                        : "the actor did not answer within the call's deadline"});
    }
    return call->finished.load();
  });
  {
    std::lock_guard lock(mu_);
    active_.insert(active_.end(), actors.begin(), actors.end());
    local_calls_.insert(local_calls_.end(), calls.begin(), calls.end());
    sweeping_ = !active_.empty() || !local_calls_.empty();
    if (!sweeping_) return;
  }
  transport_->loop().CallAfter(kSweepInterval, [weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->Sweep();
  });
}

// What nobody asks for any more.
void ActorSystem::Clean() {
  std::vector<std::shared_ptr<ActorCell>> cells;
  std::vector<std::shared_ptr<ActorCell>> over;
  std::vector<std::string> unreached;
  TaskPool* tasks = nullptr;
  {
    std::lock_guard lock(mu_);
    tasks = tasks_.get();
    for (const auto& [id, cell] : cells_) cells.push_back(cell);
    std::erase_if(ending_, [&](const auto& cell) {
      if (!cell->Idle()) return false;
      over.push_back(cell);
      return true;
    });
    std::map<std::string, bool> needed;
    for (const auto& [id, weak] : remotes_) {
      if (const auto remote = weak.lock()) needed[remote->address().process.peer] = true;
    }
    std::erase_if(reached_, [&](const auto& entry) {
      if (needed[entry.first]) return false;
      unreached.push_back(entry.first);
      return true;
    });
  }
  if (tasks != nullptr) tasks->Clean(SteadyClock().Now());  // The clock that it reads itself.
  for (const std::string& peer : unreached) transport_->Disconnect(peer);
  const Time now = transport_->loop().Now();
  for (const auto& cell : cells) cell->Forget(now);
  transport_->loop().CallAfter(kCleanInterval, [weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->Clean();
  });
}

void ActorSystem::SetRoomWanted(const std::vector<std::string>& waiting) {
  TaskPool* tasks = nullptr;
  {
    std::lock_guard lock(mu_);
    tasks = tasks_.get();
  }
  if (tasks != nullptr && !stopped_.load()) tasks->GiveWay(SteadyClock().Now(), waiting);
}

void ActorSystem::SetWhereabouts(const ActorLocation& whereabouts) {
  const std::string& actor = whereabouts.actor;
  if (actor.starts_with(kProcessPrefix)) {
    if (whereabouts.state != ActorState::kDead) return;
    const std::string peer = actor.substr(std::string_view(kProcessPrefix).size());
    std::vector<std::shared_ptr<RemoteActor>> lost;
    {
      std::lock_guard lock(mu_);
      for (const auto& [id, weak] : remotes_) {
        if (auto remote = weak.lock()) lost.push_back(std::move(remote));
      }
    }
    std::erase_if(lost, [&](const auto& remote) {
      const ActorAddress address = remote->address();
      return address.placed || address.process.peer != peer;
    });
    for (const auto& remote : lost) remote->OnGone(FromChain(whereabouts.reason));
    return;
  }
  if (const auto remote = FindRemote(actor)) remote->OnWhereabouts(whereabouts);
}

// ---- frames ----

template <class T, class F>
void ActorSystem::On(uint8_t type, const std::string& frame, F&& handler) {
  Result<T> message = wire::Decode<T>(type, frame);
  if (message.ok()) {
    handler(*message);
  } else {
    LogWarning("dropped a frame: ", message.error().message);
  }
}

void ActorSystem::Unknown(const std::string& from, const std::string& actor,
                          const std::vector<uint64_t>& numbers) {
  Error why;
  {
    std::lock_guard lock(mu_);
    why = ReasonOf(actor);
  }
  for (const uint64_t number : numbers)
    SendTo(from, ActorReply{actor, number, ToChain(why), "", false});
}

void ActorSystem::OnFrame(const std::string& from, const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok() || stopped_.load()) return;
  switch (*type) {
    case kFrameActorCall:
      return On<ActorCall>(*type, frame, [&](ActorCall& m) {
        if (const auto cell = Find(m.actor)) return cell->OnCall(from, std::move(m));
        Unknown(from, m.actor, {m.number});
      });
    case kFrameActorCheck:
      return On<ActorCheck>(*type, frame, [&](ActorCheck& m) {
        if (const auto cell = Find(m.actor)) return cell->OnCheck(from, m);
        Unknown(from, m.actor, m.numbers);
      });
    case kFrameActorCancel:
      return On<ActorCancel>(*type, frame, [&](ActorCancel& m) {
        if (const auto cell = Find(m.actor)) cell->OnCancel(from, m.number, {m.force, m.recursive});
      });
    case kFrameActorReply:
      return On<ActorReply>(*type, frame, [&](ActorReply& m) {
        if (const auto remote = FindRemote(m.actor)) remote->OnReply(from, std::move(m));
      });
    case kFrameActorMissing:
      return On<ActorMissing>(*type, frame, [&](ActorMissing& m) {
        if (const auto remote = FindRemote(m.actor)) remote->OnMissing(from, m);
      });
    case kFrameActorFull:
      return On<ActorFull>(*type, frame, [&](ActorFull& m) {
        if (const auto remote = FindRemote(m.actor)) remote->OnFull(from, m);
      });
    case kFrameActorRoom:
      return On<ActorRoom>(*type, frame, [&](ActorRoom& m) {
        if (const auto remote = FindRemote(m.actor)) remote->OnRoom(from);
      });
    case kFrameActorWatch:
      return On<ActorWatch>(*type, frame, [&](ActorWatch& m) { OnWatch(from, m); });
    case kFrameActorDown:
      return On<ActorDown>(*type, frame, [&](ActorDown& m) {
        if (const auto remote = FindRemote(m.actor)) remote->OnGone(FromChain(m.reason));
      });
    default:
      LogWarning("dropped a frame of unknown type ", static_cast<int>(*type), " from ", from);
  }
}

void ActorSystem::OnWatch(const std::string& from, const ActorWatch& watch) {
  if (const auto cell = Find(watch.actor)) return cell->Watch(from, watch.on);
  if (!watch.on) return;
  Error why;
  {
    std::lock_guard lock(mu_);
    why = ReasonOf(watch.actor);
  }
  (void)transport_->Send(from, wire::Encode(kFrameActorDown, ActorDown{watch.actor, ToChain(why)}));
}

}  // namespace troupe::actors
