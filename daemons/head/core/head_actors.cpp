#include "daemons/head/core/head_actors.h"

#include <algorithm>
#include <utility>

#include "actors/core/actor_group_protocol.h"
#include "actors/host/type_table.h"
#include "daemons/head/core/read_record.h"
#include "daemons/head/core/saved_state.h"
#include "daemons/protocol/actor_lease.h"
#include "runtime/mutation.h"
#include "runtime/process.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::ActorState;
using actors::ActorVerb;
using sched::LeaseRequest;

namespace {

constexpr const char* kRecords = "actor/";

bool HasCpu(const actors::ActorSpec& spec) {
  const Result<ResourceSet> resources = ResourceSet::FromMap(spec.wish.resources);
  return resources.ok() && resources->Get("CPU") > 0;
}

}  // namespace

HeadActors::HeadActors(HeadQueue* queue, ProcessTable* processes, const HeadKnowledge* head,
                       HeadActorsOptions options, std::string log)
    : queue_(queue),
      processes_(*processes),
      head_(head),
      options_(std::move(options)),
      log_(std::move(log)),
      watch_(
          log_, [this](const std::string& followed) { return Where(followed); },
          [this](const std::string& to, const actors::ActorStates& states) {
            Send(to, wire::Encode(actors::kFrameActorStates, states));
          }) {}

// An actor, or a process that holds some: one of an actor's, or one that is heard.
actors::ActorLocation HeadActors::Where(const std::string& followed) const {
  if (!followed.starts_with(actors::kProcessPrefix)) return directory_.Where(followed);
  std::string name = followed.substr(std::string_view(actors::kProcessPrefix).size());
  if (name.ends_with(actors::kCallsSuffix))
    name.resize(name.size() - std::string_view(actors::kCallsSuffix).size());
  // Soon after a restart not all have been heard.
  const bool alive = !ended_.contains(name) && (processes_.Find(name) != nullptr ||
                                                watch_.Knows(name) || confirm_by_ != Time::Never());
  if (alive) return {followed, ActorState::kAlive, 0, {}, {}};
  const Error gone{ErrorCode::kPeerGone, "process " + name + " has ended"};
  return {followed, ActorState::kDead, 0, {}, actors::ToChain(gone)};
}

// It has ended.
void HeadActors::TellProcess(const std::string& process) {
  ended_[process] = Now();
  watch_.Drop(process);
  watch_.Changed(actors::kProcessPrefix + process + actors::kCallsSuffix);
}

// ---- the store ----

void HeadActors::Restore(const std::map<std::string, std::string>& records) {
  actors::DirectoryActions actions;
  for (const auto& [key, value] : records) {
    // The head before was about to keep the other half, and had promised nothing, or to delete it.
    for (const auto& [half, other] : {std::pair("/spec", "/life"), std::pair("/life", "/spec")}) {
      const std::string actor = key.substr(0, key.size() - std::min<size_t>(key.size(), 5));
      if (key.ends_with(half) && !records.contains(actor + other)) queue_->Put(step::Keep{key, ""});
    }
    if (!key.ends_with("/spec")) continue;
    auto spec = ReadRecord<actors::ActorSpec>(*queue_, actors::kFrameCreateActor, key, value);
    const auto life = records.find(key.substr(0, key.size() - 5) + "/life");
    if (!spec || life == records.end()) continue;
    auto record =
        ReadRecord<actors::ActorLife>(*queue_, actors::kActorRecord, life->first, life->second);
    if (!record) continue;
    if (!spec->detached) owners_[spec->owner] = Now();
    if (record->state == ActorState::kPending)
      actions.emplace_back(actors::WantPlace{spec->actor, record->incarnation});
    directory_.Restore(Now(), std::move(*spec), std::move(*record));
  }
  confirm_by_ = Now() + options_.confirm_grace;
  RestoreHandles();
  Do(actions);
}

void HeadActors::Keep(const std::string& id, bool with_spec) {
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor == nullptr || actor->dead()) return;
  std::string spec;
  if (with_spec) {
    actors::ActorSpec whole = actor->spec;
    whole.program = *actor->program;
    spec = wire::Encode(actors::kFrameCreateActor, whole);
  }
  if (!spec.empty()) queue_->Put(step::Keep{kRecords + id + "/spec", std::move(spec)});
  queue_->Put(step::Keep{kRecords + id + "/life", wire::Encode(actors::kActorRecord, actor->life)});
}

void HeadActors::RefreshKeys() {
  for (const auto& [id, actor] : directory_.actors()) Keep(id, true);
}

Status HeadActors::MayKeep(const std::string& id, uint64_t incarnation, size_t bytes) const {
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor == nullptr || actor->dead() || actor->life.incarnation != incarnation)
    return Error{ErrorCode::kFenced, "this incarnation of the actor is over"};
  if (bytes > actors::kActorStateBytesMax) {
    return Error{ErrorCode::kResourceExhausted, "the state has " + std::to_string(bytes) +
                                                    " bytes; the limit is " +
                                                    std::to_string(actors::kActorStateBytesMax)};
  }
  return Status::Ok();
}

void HeadActors::OnOffer(const std::string& from, const actors::OfferState& offer) {
  const Status may = MayKeep(offer.actor, offer.incarnation, offer.bytes);
  if (may.ok()) return queue_->Put(step::OfferState{from, offer});
  const actors::ActorSaved never{offer.actor, offer.version, actors::ToChain(may.error())};
  Send(from, wire::Encode(actors::kFrameActorSaved, never));
}

void HeadActors::OnSave(const std::string& from, actors::SaveActor save) {
  const Status may = MayKeep(save.actor, save.incarnation, save.state.size());
  actors::ActorSaved answer{save.actor, save.version, {}};
  if (may.ok()) {
    auto& newest = saved_[save.actor];
    const std::pair given{save.incarnation, save.version};
    if (given >= newest) {
      newest = given;
      return queue_->Put(step::SaveState{from, std::move(save)});
    }  // Else it is a late repeat.
  } else {
    answer.error = actors::ToChain(may.error());
  }
  Send(from, wire::Encode(actors::kFrameActorSaved, answer));
}

void HeadActors::Assign(const std::string& name) {
  const ProcessOwner& owner = processes_.Find(name)->owner;
  if (IsRunActor(owner.actor)) {
    if (const auto work = head_->AssignmentOf(name))
      Send(name, wire::Encode(kFrameAssignment, *work));
    return;
  }
  if (owner.incarnation == 1) return Give(name, "");
  queue_->Put(step::LoadState{name, owner.actor});
}

void HeadActors::Give(const std::string& name, std::string saved) {
  const HeadProcess* process = processes_.Find(name);
  if (process == nullptr || !Lives(name, *process)) return;
  const auto& [id, incarnation, room] = process->owner;
  const actors::PlacedActor* actor = directory_.Find(id);
  Assignment assignment;
  assignment.id = MakeLeaseId(id, incarnation);
  assignment.name = actor->spec.type;
  assignment.kind = AssignmentKind::kActor;
  assignment.payload = wire::Encode(actors::kActorAssignment,
                                    actors::ActorAssignment{id, incarnation, actor->spec.blueprint,
                                                            std::move(saved), HasCpu(actor->spec)});
  Send(name, wire::Encode(kFrameAssignment, assignment));
}

// ---- what the directory wants done ----

void HeadActors::Do(const actors::DirectoryActions& actions) {
  for (const actors::DirectoryAction& action : actions) {
    if (const auto* keep = std::get_if<actors::KeepActor>(&action)) {
      if (!keep->spec && TROUPE_MUTATED("lives are not noted")) continue;
      Keep(keep->actor, keep->spec);
    } else if (const auto* forget = std::get_if<actors::ForgetActor>(&action)) {
      saved_.erase(forget->actor);
      for (const char* part : {"/spec", "/life"})
        queue_->Put(step::Keep{kRecords + forget->actor + part, ""});
      queue_->Put(step::Keep{ActorStateKey(forget->actor), ""});
    } else if (const auto* want = std::get_if<actors::WantPlace>(&action)) {
      Request(want->actor, want->incarnation);
    } else if (const auto* drop = std::get_if<actors::DropPlace>(&action)) {
      // One that was placed is given back when its process has been reaped.
      const std::string lease = MakeLeaseId(drop->actor, drop->incarnation);
      if (waiting_.erase(lease) > 0) Schedule(sched::Cancel{lease});
    } else if (const auto* end = std::get_if<actors::EndProcess>(&action)) {
      // Were the next head not to know why, it would make the actor anew.
      queue_->PutWhenKept("", step::EndProcess{end->process, end->reason});
    } else if (const auto* ask = std::get_if<actors::AskToLeave>(&action)) {
      TellToLeave(ask->actor, "nobody refers to it any more", true);
    } else if (const auto* tell = std::get_if<actors::TellActor>(&action)) {
      watch_.Changed(tell->actor);
      queue_->Put(step::ActorChanged{tell->actor});
      const actors::PlacedActor* actor = directory_.Find(tell->actor);
      if (actor == nullptr || !actor->dead()) continue;
      queue_->Put(step::OwnerEnded{actors::kActorOwner + tell->actor});
      ForgetHandles(tell->actor);
    }
  }
  WakeLater();
}

// What comes of it now comes before.
void HeadActors::WakeLater() {
  const Time wake = directory_.next_wake();
  if (wake >= wake_at_) return;
  wake_at_ = wake;
  queue_->PutAt(wake, step::WakeActors{wake});
}

void HeadActors::Wake(Time at) {
  if (wake_at_ != at) return;  // Another one is due before.
  wake_at_ = Time::Never();
  actors::DirectoryActions actions;
  directory_.Tick(Now(), actions);
  Do(actions);
}

void HeadActors::Request(const std::string& id, uint64_t incarnation) {
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor == nullptr) return;
  Result<LeaseRequest> request = LeaseFor(actor->spec, incarnation);
  if (request.ok()) {
    waiting_.insert(request->id);
    return Schedule(sched::Request{*request});
  }
  actors::DirectoryActions actions;
  directory_.Unplaced(Now(), id, incarnation, request.error(), true, actions);
  Do(actions);
}

void HeadActors::OnGranted(const sched::Granted& granted) {
  waiting_.erase(granted.lease);
  const auto [id, incarnation] = ParseLeaseId(granted.lease);
  const actors::PlacedActor* actor = directory_.Find(id);
  const bool current = actor != nullptr && !actor->dead() && actor->life.incarnation == incarnation;
  if (current && actor->life.node == granted.node &&
      processes_.Find(actor->life.process) != nullptr)
    return;  // It was claimed.
  if (!current && !ProcessOf(id, incarnation).empty())
    return;  // Likewise: its process has not ended yet.
  if (!current || actor->life.state != ActorState::kPending)
    return Schedule(sched::Release{granted.lease});
  const std::string name = "a" + options_.new_id();
  const WorkerRoom room{granted.bundle, IndicesOf(granted.devices), actor->spec.wish.group,
                        actor->spec.wish.resources};
  processes_.Add(Now(), name, granted.node, {id, incarnation, room});
  const actors::Program& program = *actor->program;
  StartWorker start{name, granted.lease, program.argv, program.env, room, true, program.spare_argv};
  if (IsRunActor(id)) {
    start.hide_devices =
        false;                 // Its assignment names its GPUs; without any it sees all there are.
    start.more_ahead = false;  // Its run says when there are to be spares.
  }
  start.head = log_;
  actors::DirectoryActions actions;
  directory_.Placed(Now(), id, incarnation, granted.node, name, actions);
  Do(actions);
  // The next head is to know it, or the actor would be made twice.
  queue_->PutWhenKept("", step::Launch{name, std::move(start)});
}

void HeadActors::OnRevoked(const sched::Revoked& revoked) {
  const auto [id, incarnation] = ParseLeaseId(revoked.lease);
  const std::string process = ProcessOf(id, incarnation);
  const Error why{ErrorCode::kPeerGone, revoked.reason};
  actors::DirectoryActions actions;
  TakeRoom(process);
  End(process, revoked.reason);
  if (waiting_.erase(revoked.lease) > 0) {  // What it was to be in is no more.
    const Error nowhere{ErrorCode::kResourceExhausted, revoked.reason};
    directory_.Unplaced(Now(), id, incarnation, nowhere, true, actions);
  } else {
    directory_.Died(Now(), id, incarnation, why, false, actions);
  }
  if (revoked.waits_again) Schedule(sched::Cancel{revoked.lease});  // The next life's turn.
  Do(actions);
}

void HeadActors::OnRefused(const sched::Refused& refused) {
  waiting_.erase(refused.what);
  const auto [id, incarnation] = ParseLeaseId(refused.what);
  TakeRoom(ProcessOf(id, incarnation));
  actors::DirectoryActions actions;
  // One that waits cannot be; one that was claimed after a restart has no room.
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor != nullptr && actor->life.incarnation == incarnation && !actor->life.process.empty())
    End(actor->life.process, refused.error.message);
  // What it was to be in is not there: that is no fault of its callers.
  Error why = refused.error;
  if (why.code == ErrorCode::kNotFound) why.code = ErrorCode::kResourceExhausted;
  directory_.Unplaced(Now(), id, incarnation, why, true, actions);
  Do(actions);
}

std::vector<std::string> HeadActors::TakeWaiting(size_t limit) {
  std::vector<std::string> some;
  for (auto it = waiting_.upper_bound(last_waiting_); it != waiting_.end() && some.size() < limit;
       ++it)
    some.push_back(*it);
  last_waiting_ = some.size() < limit ? "" : some.back();
  return some;
}

void HeadActors::SetReason(const std::string& lease, const std::string& reason, bool never) {
  const auto [id, incarnation] = ParseLeaseId(lease);
  actors::DirectoryActions actions;
  const ErrorCode code = never ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable;
  directory_.Unplaced(Now(), id, incarnation, Error{code, reason}, never, actions);
  Do(actions);
}

// ---- time ----

void HeadActors::OnTick() {
  actors::DirectoryActions actions;
  directory_.Tick(Now(), actions);
  Do(actions);
  std::map<std::string, std::string> gone;  // With the reason.
  for (const auto& [owner, heard] : owners_) {
    // Of an actor it is known whether it lives; one that waits for a place cannot speak.
    const bool actor = owner.starts_with(actors::kActorOwner);
    const actors::PlacedActor* placed =
        actor ? directory_.Find(owner.substr(std::string_view(actors::kActorOwner).size()))
              : nullptr;
    if (placed != nullptr && !placed->dead()) continue;
    if (!actor) {
      if (const auto why = head_->OwnerLost(owner, heard)) gone[owner] = *why;
    } else if (Now() > heard + options_.owner_lease) {
      gone[owner] = "its owner has been silent for " +
                    std::to_string(static_cast<int>(ToSeconds(options_.owner_lease))) + " s";
    }
  }
  for (const auto& [owner, why] : gone) OwnerGone(owner, why);
  Confirm(nullptr, 0);
  TellUnexplained();
  OrderHeld();
  TickHandles();
  for (const std::string& process : watch_.Forget(Now()))
    watch_.Changed(actors::kProcessPrefix + process + actors::kCallsSuffix);
  std::erase_if(ended_, [&](const auto& e) { return Now() > e.second + actors::kDeadKept; });
}

void HeadActors::TellRoomWanted(std::vector<std::string> waiting) {
  for (std::string& id : waiting) {
    if (id.starts_with(kActorLease)) id = ParseLeaseId(id).first;
  }
  std::set<std::string> peers = std::exchange(told_room_, {});
  if (!waiting.empty()) {
    for (const auto& [id, actor] : directory_.actors()) {
      if (actor.dead() || actor.spec.type != actors::kTaskRunner) continue;
      const auto owner = owner_peers_.find(actor.spec.owner);
      if (owner != owner_peers_.end()) told_room_.insert(owner->second);
    }
    peers.insert(told_room_.begin(), told_room_.end());
  }
  if (peers.empty()) return;
  const std::string frame = wire::Encode(actors::kFrameRoomWanted, actors::RoomWanted{waiting});
  for (const std::string& peer : peers) Send(peer, frame);
}

void HeadActors::OnStopped(Duration stopped) {
  for (auto& [owner, heard] : owners_) heard = std::min(Now(), heard + stopped);
  if (confirm_by_ != Time::Never()) confirm_by_ = confirm_by_ + stopped;
}

void HeadActors::OwnerGone(const std::string& owner, const std::string& reason) {
  if (!owner.starts_with(actors::kActorOwner)) holders_.Gone(Now(), owner);
  if (const auto peer = owner_peers_.find(owner); peer != owner_peers_.end())
    holders_.Gone(Now(), peer->second);
  owners_.erase(owner);
  owner_peers_.erase(owner);
  outputs_.erase(owner);
  queue_->Put(step::OwnerEnded{owner});
  actors::DirectoryActions actions;
  directory_.OwnerGone(Now(), owner, reason, actions);
  Do(actions);
}

// ---- requests ----

bool HeadActors::OnFrame(const std::string& from, const std::string& frame) {
  const Result<uint8_t> type = wire::PeekType(frame);
  if (!type.ok()) return false;
  const auto on = [&]<class T>(void (HeadActors::*handler)(const std::string&, const T&)) {
    Result<T> message = wire::Decode<T>(*type, frame);
    if (message.ok()) {
      (this->*handler)(from, *message);
    } else {
      queue_->Warn("dropped a frame: ", message.error().message);
    }
    return true;
  };
  switch (*type) {
    case actors::kFrameCreateActor:
      return on(&HeadActors::OnCreate);
    case actors::kFrameActorRequest:
      return on(&HeadActors::OnRequest);
    case actors::kFrameOfferState:
      return on(&HeadActors::OnOffer);
    case actors::kFrameSaveActor:
      if (Result<actors::SaveActor> save = wire::Decode<actors::SaveActor>(*type, frame); save.ok())
        OnSave(from, std::move(*save));
      return true;
    case actors::kFrameFollowActors:
      return on(&HeadActors::OnFollow);
    case actors::kFrameHoldActors:
      return on(&HeadActors::OnHold);
    default:
      return false;
  }
}

void HeadActors::OnFollow(const std::string& from, const actors::FollowActors& follow) {
  if (ended_.contains(from)) return;  // Its last words came by another way than its end.
  if (!follow.owner.empty() && owners_.contains(follow.owner)) OwnFrom(follow.owner, from);
  if (const auto it = outputs_.find(follow.owner); it != outputs_.end()) it->second.bytes = 0;
  watch_.OnFollow(Now(), from, follow);
  if (!follow.told || follow.log != log_) return;
  holders_.Heard(from);
  holders_.Heard(follow.owner);
}

void HeadActors::OnCreate(const std::string& from, const actors::CreateActor& create) {
  actors::ActorAnswer answer{create.request, {}, {}, {}, {}, {}};
  const bool repeated = directory_.Find(create.spec.actor) != nullptr;
  Result<LeaseRequest> lease = LeaseFor(create.spec, 1);
  actors::DirectoryActions actions;
  const Result<actors::ActorAddress> address = lease.ok() || repeated
                                                   ? directory_.Create(Now(), create.spec, actions)
                                                   : Result<actors::ActorAddress>(lease.error());
  if (address.ok()) {
    answer.address = *address;
    if (address->actor == create.spec.actor) MadeBy(from, create.spec, repeated);
    if (!create.spec.detached) {
      owners_[create.spec.owner] = Now();
      owner_peers_[create.spec.owner] = from;
    }
  } else {
    answer.error = actors::ToChain(address.error());
  }
  Do(actions);
  AnswerWhenKept(from, answer);
}

Status HeadActors::StartMembers(const std::vector<actors::ActorSpec>& members, size_t at_least,
                                std::optional<PlacementStrategy> together) {
  actors::DirectoryActions actions;
  for (const actors::ActorSpec& spec : members) {
    const Result<actors::ActorAddress> made = directory_.Create(Now(), spec, actions);
    if (!made.ok()) return made.error();
  }
  // Those with a place of their own in mind, or in a placement group, ask one by one.
  std::vector<LeaseRequest> gang;
  for (const actors::ActorSpec& spec : members) {
    Result<LeaseRequest> lease = LeaseFor(spec, 1);
    if (at_least > 1 && lease.ok() && lease->group.empty() && lease->node.empty())
      gang.push_back(std::move(*lease));
  }
  if (gang.size() < members.size()) gang.clear();
  if (!gang.empty()) {
    std::erase_if(actions, [](const actors::DirectoryAction& action) {
      return std::holds_alternative<actors::WantPlace>(action);
    });
  }
  Do(actions);
  if (gang.empty()) return Status::Ok();
  for (const LeaseRequest& lease : gang) waiting_.insert(lease.id);
  const PlacementStrategy strategy = together.value_or(gang[0].strategy);
  Schedule(sched::RequestGang{std::move(gang), strategy, at_least});
  return Status::Ok();
}

void HeadActors::EndActor(const std::string& actor, const std::string& reason) {
  actors::DirectoryActions actions;
  (void)directory_.Kill(Now(), actor, false, reason, "", actions);
  Do(actions);
}

void HeadActors::Forgive(const std::string& actor, uint64_t incarnation) {
  directory_.Forgive(Now(), actor, incarnation);
  WakeLater();
}

void HeadActors::Hold(const std::string& actor, bool held) {
  actors::DirectoryActions actions;
  held ? directory_.Hold(Now(), actor, actions) : directory_.Release(Now(), actor);
  Do(actions);
}

void HeadActors::TellToLeave(const std::string& id, const std::string& reason, bool unheld) {
  const actors::PlacedActor* actor = directory_.Find(id);
  if (actor == nullptr || actor->life.process.empty()) return;
  const std::string& process = actor->life.process;
  const uint64_t heard = unheld ? holders_.Heard(*actors::HandleOf(id), process) : 0;
  const actors::LeaveActor leave{id, actor->life.incarnation, reason, unheld, heard};
  Send(actor->life.process, wire::Encode(actors::kFrameLeaveActor, leave));
}

// What it promises, the next head will hold.
void HeadActors::AnswerWhenKept(const std::string& to, const actors::ActorAnswer& answer) {
  queue_->PutWhenKept(to + "#" + std::to_string(answer.request),
                      step::Send{to, wire::Encode(actors::kFrameActorAnswer, answer)});
}

void HeadActors::OnRequest(const std::string& from, const actors::ActorRequest& request) {
  actors::ActorAnswer answer{request.request, {}, {}, {}, {}, {}};
  actors::DirectoryActions actions;
  Status status = Status::Ok();
  if (request.verb == ActorVerb::kKill || request.verb == ActorVerb::kRestart) {
    status = directory_.Kill(Now(), request.actor, request.verb == ActorVerb::kRestart,
                             request.reason, from + "#" + std::to_string(request.request), actions);
  } else if (request.verb == ActorVerb::kLink) {
    status = directory_.Link(request.actor, request.reason, actions);
  } else if (request.verb == ActorVerb::kUnlink) {
    status = directory_.Unlink(request.actor, request.reason, actions);
  } else if (request.verb == ActorVerb::kExited) {
    directory_.Exited(Now(), request.actor, request.incarnation,
                      Error{ErrorCode::kPeerGone, request.reason}, actions);
  } else if (request.verb == ActorVerb::kFailed) {
    const actors::PlacedActor* actor = directory_.Find(request.actor);
    if (actor != nullptr && actor->life.incarnation == request.incarnation)
      End(actor->life.process, request.reason);
    directory_.Died(Now(), request.actor, request.incarnation,
                    Error{ErrorCode::kPeerGone, request.reason}, false, actions);
  } else if (request.verb == ActorVerb::kOwnerGone) {
    OwnerGone(request.actor, request.reason);
    TellProcess(from);
  } else if (request.verb == ActorVerb::kLookup) {
    const actors::PlacedActor* named = directory_.Named(request.actor);
    if (named == nullptr) {
      status = Error{ErrorCode::kNotFound, "no living actor has the name \"" + request.actor +
                                               "\"; look at `troupe actors`"};
    } else {
      answer.address = {named->spec.actor, named->life.incarnation, named->spec.type,
                        named->life.address, true};
    }
  }
  Do(actions);
  if (!status.ok()) answer.error = actors::ToChain(status.error());
  AnswerWhenKept(from, answer);
}

}  // namespace troupe::daemons
