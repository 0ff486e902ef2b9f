#include "actors/core/directory.h"

#include <algorithm>
#include <utility>

#include "runtime/mutation.h"

namespace troupe::actors {
namespace {

constexpr const char* kUnheld = "nobody refers to it any more";

Error DeadBecause(const PlacedActor& actor, const std::string& reason) {
  return Error{ErrorCode::kPeerGone, actor.spec.type + " " + actor.spec.actor + ": " + reason};
}

// What specifications say of times is not trusted to be sensible.
constexpr uint64_t kLongestMs = uint64_t{365} * 24 * 3600 * 1000;

Duration StartLimit(const ActorSpec& spec) {
  const double ms = spec.start_timeout_s * 1e3;
  if (!(ms >= 1)) return milliseconds(1);  // NaN, too.
  return milliseconds(static_cast<int64_t>(std::min(ms, static_cast<double>(kLongestMs))));
}

}  // namespace

// ---- look-ups ----

const PlacedActor* Directory::Find(const std::string& actor) const {
  const auto it = actors_.find(actor);
  return it == actors_.end() ? nullptr : &it->second;
}

const PlacedActor* Directory::Named(const std::string& name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? nullptr : Find(it->second);
}

PlacedActor* Directory::Living(const std::string& actor, uint64_t incarnation) {
  const auto it = actors_.find(actor);
  if (it == actors_.end() || it->second.dead()) return nullptr;
  return it->second.life.incarnation == incarnation ? &it->second : nullptr;
}

ActorLocation Directory::Where(const std::string& actor) const {
  const PlacedActor* known = Find(actor);
  if (known == nullptr) {
    const Error gone{ErrorCode::kPeerGone,
                     "no actor " + actor + " is known; it may have ended long ago"};
    return {actor, ActorState::kDead, 0, {}, ToChain(gone)};
  }
  const ActorLife& life = known->life;
  return {actor, life.state, life.incarnation, life.address, life.reason};
}

Time Directory::next_wake() const { return wakes_.empty() ? Time::Never() : wakes_.begin()->first; }

// ---- changes ----

void Directory::Schedule(PlacedActor& actor, Time wake) {
  if (actor.wake != Time::Never()) wakes_.erase({actor.wake, actor.spec.actor});
  actor.wake = wake;
  if (wake != Time::Never()) wakes_.insert({wake, actor.spec.actor});
}

void Directory::Set(Time now, PlacedActor& actor, ActorState state, const Error* why,
                    DirectoryActions& actions) {
  actor.life.state = state;
  actor.life.reason = why == nullptr ? ErrorChain{} : ToChain(*why);
  if (state != ActorState::kAlive) actor.life.address = {};
  actor.since = now;
  Schedule(actor, Time::Never());
  actions.emplace_back(KeepActor{actor.spec.actor, false});
  actions.emplace_back(TellActor{actor.spec.actor});
}

void Directory::Adopt(PlacedActor& actor) {
  auto& shared = programs_[actor.spec.program];
  actor.program = shared.lock();
  if (!actor.program) {
    actor.program = std::make_shared<const Program>(actor.spec.program);
    shared = actor.program;
    std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
  }
  actor.spec.program = {};
  if (actor.dead()) return;
  if (!actor.spec.name.empty()) names_[actor.spec.name] = actor.spec.actor;
  if (!actor.spec.detached) owned_[actor.spec.owner].insert(actor.spec.actor);
}

// A process for tasks goes when it is not needed any more, and its own processes for tasks with it;
// an actor must not.
std::string Directory::OwnerOf(const ActorSpec& spec) const {
  std::string owner = spec.owner;
  while (!spec.runs_tasks && owner.starts_with(kActorOwner)) {
    const PlacedActor* maker = Find(owner.substr(std::string_view(kActorOwner).size()));
    if (maker == nullptr || !maker->spec.runs_tasks) break;
    owner = maker->spec.owner;
  }
  return owner;
}

Result<ActorAddress> Directory::Create(Time now, ActorSpec spec, DirectoryActions& actions) {
  const auto address = [](const PlacedActor& actor) {
    return ActorAddress{actor.spec.actor, actor.life.incarnation, actor.spec.type,
                        actor.life.address, true};
  };
  if (const PlacedActor* known = Find(spec.actor)) return address(*known);  // Asked again.
  if (spec.actor.empty() || spec.name.size() > kActorNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "an actor's name has at most " + std::to_string(kActorNameBytesMax) + " bytes"};
  }
  spec.owner = OwnerOf(spec);
  if (!spec.detached && spec.owner.starts_with(kActorOwner)) {
    const PlacedActor* owner = Find(spec.owner.substr(std::string_view(kActorOwner).size()));
    if (owner == nullptr || owner->dead())
      return Error{ErrorCode::kPeerGone, "its owner " + spec.owner + " has ended"};
  }
  if (const PlacedActor* named = spec.name.empty() ? nullptr : Named(spec.name)) {
    if (spec.get_if_exists && named->spec.type == spec.type) return address(*named);
    return Error{ErrorCode::kAlreadyExists, "the name \"" + spec.name + "\" is taken by " +
                                                named->spec.type + " " + named->spec.actor +
                                                "; choose another, end that one, or get it with " +
                                                "get_if_exists"};
  }
  if (actors_.size() >= kActorsMax) {
    return Error{ErrorCode::kResourceExhausted,
                 "the cluster has " + std::to_string(kActorsMax) + " actors already"};
  }
  const std::string id = spec.actor;
  PlacedActor& actor = actors_[id];
  actor.spec = std::move(spec);
  actor.since = now;
  Adopt(actor);
  actions.emplace_back(KeepActor{id, true});
  actions.emplace_back(WantPlace{id, actor.life.incarnation});
  actions.emplace_back(TellActor{id});
  return address(actor);
}

void Directory::Restore(Time now, ActorSpec spec, ActorLife life) {
  restored_ = true;
  const std::string id = spec.actor;
  PlacedActor& actor = actors_[id];
  actor.spec = std::move(spec);
  actor.life = std::move(life);
  actor.since = now;
  Adopt(actor);
  if (actor.life.state == ActorState::kRestarting) Schedule(actor, now);
  if (actor.life.state == ActorState::kStarting) Schedule(actor, now + StartLimit(actor.spec));
  if (actor.dead()) Schedule(actor, now + kDeadKept);
}

void Directory::Placed(Time now, const std::string& id, uint64_t incarnation,
                       const std::string& node, const std::string& process,
                       DirectoryActions& actions) {
  PlacedActor* actor = Living(id, incarnation);
  if (actor == nullptr || actor->life.state != ActorState::kPending) return;
  actor->life.node = node;
  actor->life.process = process;
  Set(now, *actor, ActorState::kStarting, nullptr, actions);
  Schedule(*actor, now + StartLimit(actor->spec));
}

void Directory::Unplaced(Time now, const std::string& id, uint64_t incarnation, const Error& why,
                         bool never, DirectoryActions& actions) {
  PlacedActor* actor = Living(id, incarnation);
  if (actor == nullptr || actor->life.state != ActorState::kPending) return;
  if (never) return End(now, *actor, why, actions);
  const ErrorChain reason = ToChain(why);
  const bool same = !actor->life.reason.empty() && actor->life.reason[0].message == why.message;
  if (same) return;
  actor->life.reason = reason;
  actions.emplace_back(TellActor{id});
}

void Directory::Ready(Time now, const std::string& id, uint64_t incarnation,
                      const PeerAddress& address, DirectoryActions& actions) {
  PlacedActor* actor = Living(id, incarnation);
  if (actor == nullptr || actor->life.state != ActorState::kStarting) return;
  actor->life.address = address;
  Set(now, *actor, ActorState::kAlive, nullptr, actions);
  if (actor->unheld) Ask(now, *actor, actions);
}

void Directory::Died(Time now, const std::string& id, uint64_t incarnation, const Error& how,
                     bool constructor, DirectoryActions& actions) {
  PlacedActor* actor = Living(id, incarnation);
  if (actor == nullptr) return;
  ActorLife& life = actor->life;
  if (life.state != ActorState::kStarting && life.state != ActorState::kAlive) return;
  actions.emplace_back(DropPlace{id, incarnation});
  if (life.state == ActorState::kAlive && now > actor->since + kProvenLife) life.failures = 0;
  const bool planned = std::exchange(actor->draining, false);
  if (actor->unheld && !TROUPE_MUTATED("DR-8 one that nobody refers to is started again"))
    return End(now, *actor, how, actions);
  if (!planned) {
    const bool left = actor->spec.max_restarts < 0 || life.restarts < actor->spec.max_restarts;
    // A constructor that has never succeeded is wrong, not unlucky.
    if (!left || (constructor && incarnation == 1)) return End(now, *actor, how, actions);
    ++life.restarts;
  }
  ++life.incarnation;
  life.node.clear();
  life.process.clear();
  const Error why = DeadBecause(*actor, how.message + "; it is being started again");
  Set(now, *actor, ActorState::kRestarting, &why, actions);
  Duration backoff{};
  if (!planned && life.failures > 0) {  // The first is started at once.
    const uint64_t factor = uint64_t{1} << std::min<uint32_t>(life.failures - 1, 20);
    const uint64_t most = std::min(actor->spec.backoff_max_ms, kLongestMs);
    const uint64_t least = std::min(actor->spec.backoff_ms, kLongestMs);
    backoff = milliseconds(static_cast<int64_t>(std::min(most, least * factor)));
  }
  if (!planned) ++life.failures;
  if (!actor->held) Schedule(*actor, now + backoff);
}

// ---- what those know that it works for ----

void Directory::Proven(const std::string& id) {
  const auto it = actors_.find(id);
  if (it != actors_.end()) it->second.life.failures = 0;
}

void Directory::Forgive(Time now, const std::string& id, uint64_t incarnation) {
  PlacedActor* actor = Living(id, incarnation + 1);
  if (actor == nullptr || actor->life.failures == 0) return;
  --actor->life.failures;
  if (actor->life.state == ActorState::kRestarting && !actor->held) Schedule(*actor, now);
}

void Directory::Hold(Time now, const std::string& id, DirectoryActions& actions) {
  const auto it = actors_.find(id);
  if (it == actors_.end() || it->second.dead() || std::exchange(it->second.held, true)) return;
  PlacedActor& actor = it->second;
  if (actor.life.state == ActorState::kPending) {
    actions.emplace_back(DropPlace{id, actor.life.incarnation});
    const Error why = DeadBecause(actor, "it is not needed for now");
    Set(now, actor, ActorState::kRestarting, &why, actions);
  }
  if (actor.life.state == ActorState::kRestarting) Schedule(actor, Time::Never());
}

void Directory::Release(Time now, const std::string& id) {
  const auto it = actors_.find(id);
  if (it == actors_.end() || !std::exchange(it->second.held, false)) return;
  if (it->second.life.state == ActorState::kRestarting) Schedule(it->second, now);
}

void Directory::End(Time now, PlacedActor& actor, const Error& reason, DirectoryActions& actions) {
  EndAll(now, {{actor.spec.actor, reason}}, actions);
}

// Owners and links may be chained to any depth, so this does not recurse.
void Directory::EndAll(Time now, Ending ending, DirectoryActions& actions) {
  while (!ending.empty()) {
    const auto [id, reason] = std::move(ending.back());
    ending.pop_back();
    const auto it = actors_.find(id);
    if (it == actors_.end() || it->second.dead()) continue;
    const std::vector<std::string> links = std::move(it->second.life.links);
    EndOne(now, it->second, reason, actions);
    for (const std::string& other : links) {
      if (const auto linked = actors_.find(other); linked != actors_.end())
        ending.emplace_back(
            other, DeadBecause(linked->second, "it is linked to " + id + ": " + reason.message));
    }
    AddOwned(kActorOwner + id, "its owner " + id + " has ended", ending);
  }
}

void Directory::AddOwned(const std::string& owner, const std::string& reason,
                         Ending& ending) const {
  const auto it = owned_.find(owner);
  if (it == owned_.end()) return;
  for (const std::string& id : it->second)
    ending.emplace_back(id, DeadBecause(actors_.at(id), reason));
}

void Directory::EndOne(Time now, PlacedActor& actor, const Error& reason,
                       DirectoryActions& actions) {
  if (actor.dead()) return;
  const std::string id = actor.spec.actor;
  unheld_.erase(id);
  if (!actor.life.process.empty())
    actions.emplace_back(EndProcess{actor.life.process, reason.message});
  actions.emplace_back(DropPlace{id, actor.life.incarnation});
  Set(now, actor, ActorState::kDead, &reason, actions);
  if (const auto it = names_.find(actor.spec.name); it != names_.end() && it->second == id)
    names_.erase(it);
  if (const auto it = owned_.find(actor.spec.owner); it != owned_.end()) {
    it->second.erase(id);
    if (it->second.empty()) owned_.erase(it);
  }
  actor.spec.blueprint.clear();
  actor.spec.blueprint.shrink_to_fit();
  Schedule(actor, now + kDeadKept);
  actions.emplace_back(ForgetActor{id});
}

void Directory::Exited(Time now, const std::string& id, uint64_t incarnation, const Error& reason,
                       DirectoryActions& actions) {
  if (PlacedActor* actor = Living(id, incarnation)) End(now, *actor, reason, actions);
}

void Directory::Lost(Time now, const std::string& id, uint64_t incarnation, const Error& how,
                     DirectoryActions& actions) {
  PlacedActor* actor = Living(id, incarnation);
  if (actor == nullptr || actor->life.state != ActorState::kStarting) return;
  actor->draining = true;
  Died(now, id, incarnation, how, false, actions);
}

Status Directory::Kill(Time now, const std::string& id, bool restart, const std::string& reason,
                       const std::string& request, DirectoryActions& actions) {
  const auto it = actors_.find(id);
  if (it == actors_.end()) {
    // That it has ended is what was asked for; perhaps by a head that did not live to say so.
    if (!restart) return Status::Ok();
    return Error{ErrorCode::kNotFound, "no actor " + id + " is known; it may have ended long ago"};
  }
  PlacedActor& actor = it->second;
  if (actor.dead()) return Status::Ok();
  if (!restart) {
    End(now, actor, DeadBecause(actor, reason), actions);
  } else if (request.empty() || actor.life.restart != request) {
    actor.life.restart = request;
    if (actor.life.process.empty()) {  // It is about to be started anyway.
      actions.emplace_back(KeepActor{id, false});
      return Status::Ok();
    }
    actions.emplace_back(EndProcess{actor.life.process, reason});
    Died(now, id, actor.life.incarnation, Error{ErrorCode::kPeerGone, reason}, false, actions);
  }
  return Status::Ok();
}

void Directory::OwnerGone(Time now, const std::string& owner, const std::string& reason,
                          DirectoryActions& actions) {
  Ending ending;
  AddOwned(owner, reason, ending);
  EndAll(now, std::move(ending), actions);
}

// ---- actors that nobody refers to ----

void Directory::Unheld(Time now, const std::string& id, DirectoryActions& actions) {
  const auto it = actors_.find(id);
  if (it == actors_.end() || it->second.dead() || it->second.unheld) return;
  PlacedActor& actor = it->second;
  actor.unheld = true;
  if (actor.life.process.empty())  // Whatever it was called for has been given up.
    return End(now, actor, DeadBecause(actor, kUnheld), actions);
  if (!actor.spec.name.empty()) {
    names_.erase(actor.spec.name);
    actor.freed_name = std::exchange(actor.spec.name, "");
    actions.emplace_back(KeepActor{id, true});
  }
  Ask(now, actor, actions);
}

// One that is not made yet is asked when it is.
void Directory::Ask(Time now, const PlacedActor& actor, DirectoryActions& actions) {
  unheld_[actor.spec.actor] = now + kLeaveRepeat;
  if (actor.life.state == ActorState::kAlive) actions.emplace_back(AskToLeave{actor.spec.actor});
}

void Directory::Held(const std::string& id, DirectoryActions& actions) {
  if (unheld_.erase(id) == 0) return;
  PlacedActor& actor = actors_.at(id);
  actor.unheld = false;
  if (actor.freed_name.empty() || !names_.try_emplace(actor.freed_name, id).second) return;
  actor.spec.name = std::exchange(actor.freed_name, "");
  actions.emplace_back(KeepActor{id, true});
}

// ---- links ----

Status Directory::Link(const std::string& one, const std::string& other,
                       DirectoryActions& actions) {
  if (one == other)
    return Error{ErrorCode::kInvalidArgument, "an actor cannot be linked to itself"};
  for (const std::string& id : {one, other}) {
    const PlacedActor* actor = Find(id);
    if (actor == nullptr || actor->dead())
      return Error{ErrorCode::kPeerGone, "actor " + id + " has ended; nothing was linked"};
  }
  std::vector<std::string>& links = actors_.at(one).life.links;
  std::vector<std::string>& back = actors_.at(other).life.links;
  if (std::ranges::count(links, other) > 0) return Status::Ok();
  if (links.size() >= kLinksMax || back.size() >= kLinksMax) {
    return Error{ErrorCode::kResourceExhausted,
                 "an actor has at most " + std::to_string(kLinksMax) + " links"};
  }
  links.push_back(other);
  back.push_back(one);
  actions.emplace_back(KeepActor{one, false});
  actions.emplace_back(KeepActor{other, false});
  return Status::Ok();
}

Status Directory::Unlink(const std::string& one, const std::string& other,
                         DirectoryActions& actions) {
  const auto from = [&](const std::string& id, const std::string& linked) {
    const auto it = actors_.find(id);
    if (it != actors_.end() && std::erase(it->second.life.links, linked) > 0)
      actions.emplace_back(KeepActor{id, false});
  };
  from(one, other);
  from(other, one);
  return Status::Ok();
}

// The store may have what was true of one of the two only.
void Directory::CheckLinks(Time now, DirectoryActions& actions) {
  Ending ending;
  std::vector<std::pair<std::string, std::string>> links;
  for (const auto& [id, actor] : actors_) {
    for (const std::string& other : actor.life.links) links.emplace_back(id, other);
  }
  std::sort(links.begin(), links.end());
  for (const auto& [id, other] : links) {
    const auto it = actors_.find(other);
    if (it == actors_.end() || it->second.dead()) {
      ending.emplace_back(
          id, DeadBecause(actors_.at(id), "it is linked to " + other + ", which has ended"));
    } else if (std::ranges::count(it->second.life.links, id) == 0) {
      it->second.life.links.push_back(id);
      actions.emplace_back(KeepActor{other, false});
    }
  }
  EndAll(now, std::move(ending), actions);
}

void Directory::Drain(Time now, const std::string& node, const std::string& reason,
                      DirectoryActions& actions,
                      const std::function<bool(const std::string& actor)>& cared_for) {
  std::vector<std::string> there;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && actor.life.node == node && actor.spec.max_restarts != 0)
      there.push_back(id);
  }
  std::sort(there.begin(), there.end());
  for (const std::string& id : there) {
    PlacedActor& actor = actors_.at(id);
    if (actor.life.process.empty() || (cared_for && cared_for(id))) continue;
    actor.draining = true;
    actions.emplace_back(EndProcess{actor.life.process, reason});
    Died(now, id, actor.life.incarnation, Error{ErrorCode::kPeerGone, reason}, false, actions);
  }
}

void Directory::Tick(Time now, DirectoryActions& actions) {
  if (std::exchange(restored_, false)) CheckLinks(now, actions);
  for (auto& [id, again] : unheld_) {
    if (now >= again) Ask(now, actors_.at(id), actions);
  }
  while (!wakes_.empty() && wakes_.begin()->first <= now) {
    PlacedActor& actor = actors_.at(wakes_.begin()->second);
    Schedule(actor, Time::Never());
    const std::string id = actor.spec.actor;
    if (actor.dead()) {
      actors_.erase(id);
      actions.emplace_back(ForgetActor{id});  // Again: the store may have been away when it ended.
    } else if (actor.life.state == ActorState::kRestarting) {
      const ErrorChain reason = actor.life.reason;
      Set(now, actor, ActorState::kPending, nullptr, actions);
      actor.life.reason = reason;
      actions.emplace_back(WantPlace{id, actor.life.incarnation});
    } else if (actor.life.state == ActorState::kStarting) {
      const std::string process = actor.life.process;
      actions.emplace_back(EndProcess{process, "it did not start in time"});
      Died(now, id, actor.life.incarnation,
           Error{ErrorCode::kDeadlineExceeded,
                 actor.spec.type + " did not start within its time-out"},
           false, actions);
    }
  }
}

}  // namespace troupe::actors
