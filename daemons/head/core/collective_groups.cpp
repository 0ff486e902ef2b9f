#include "daemons/head/core/collective_groups.h"

#include <algorithm>
#include <utility>

#include "actors/core/error_chain.h"
#include "collective_groups/membership/group_keys.h"
#include "collective_groups/membership/messages.h"
#include "daemons/head/core/read_record.h"
#include "runtime/mutation.h"
#include "runtime/wire.h"

namespace troupe::daemons {

using actors::CollectiveRequest;
using actors::CollectiveSpec;
using actors::CollectiveStatus;
using actors::CollectiveVerb;

namespace {

groups::MemberId MemberOf(const CollectiveRecord::Seat& seat) { return {seat.actor, seat.number}; }

}  // namespace

// ---- the store ----

void CollectiveGroups::Restore(const std::map<std::string, std::string>& records) {
  for (const auto& [key, value] : records) {
    auto record = ReadRecord<CollectiveRecord>(*queue_, actors::kCollectiveRecord, key, value);
    if (!record) {
      unreadable_.insert(key.substr(std::string_view(kCollectiveRecords).size()));
      continue;
    }
    Record& group = groups_[record->spec.name] = std::move(*record);
    for (const Record::Seat& seat : group.seats) {
      if (!seat.actor.empty()) of_actor_[seat.actor].insert(group.spec.name);
    }
    Open(group);
  }
  // The head before may have noted a death, and not yet what it means here.
  std::vector<std::string> members;
  for (const auto& [actor, names] : of_actor_) members.push_back(actor);
  for (const std::string& actor : members) OnActor(actor);
}

void CollectiveGroups::Keep(const std::string& name) {
  const auto it = groups_.find(name);
  std::string record;
  if (it != groups_.end()) record = wire::Encode(actors::kCollectiveRecord, it->second);
  queue_->Put(step::Keep{kCollectiveRecords + name, std::move(record)});
}

void CollectiveGroups::RefreshKeys() {
  for (const auto& [name, record] : groups_) Keep(name);
}

// ---- requests ----

void CollectiveGroups::OnRequest(const std::string& from, const CollectiveRequest& request) {
  actors::ActorAnswer answer{request.request, {}, {}, {}, {}, {}};
  Status status;
  const std::string& name = request.spec.name;
  uint64_t number = 0;
  if (request.verb == CollectiveVerb::kCreate) {
    status = Create(request.spec);
  } else if (request.verb == CollectiveVerb::kJoin) {
    const Result<uint64_t> joined = Join(from, request);
    if (joined.ok()) number = *joined;
    if (!joined.ok()) status = joined.error();
  } else if (request.verb == CollectiveVerb::kLeave) {
    Leave(request);
  } else if (request.verb == CollectiveVerb::kDestroy) {
    Remove(name, "it was destroyed");
  }
  const auto it = groups_.find(name);
  if (it != groups_.end()) {
    answer.collective = StatusOf(it->second);
    answer.collective.number = number;
  } else if (request.verb == CollectiveVerb::kStatus) {
    status = NoGroup(name);
  }
  if (!status.ok()) answer.error = actors::ToChain(status.error());
  step::Send send{from, wire::Encode(actors::kFrameActorAnswer, answer)};
  if (TROUPE_MUTATED("CG-3 answers do not wait")) return queue_->Put(std::move(send));
  queue_->PutWhenKept(from + "#" + std::to_string(request.request), std::move(send));
}

Error CollectiveGroups::NoGroup(const std::string& name) const {
  const auto ended = ended_.find(name);
  return Error{ErrorCode::kNotFound,
               "there is no collective group \"" + name + "\"" +
                   (ended == ended_.end() ? "; create it, or let its members say its size"
                                          : ": " + ended->second.first)};
}

Status CollectiveGroups::CheckSpec(const CollectiveSpec& spec) const {
  if (spec.name.empty() || spec.name.size() > actors::kActorNameBytesMax)
    return InvalidArgument("the name of a collective group has 1 to 256 bytes");
  if (spec.size == 0 || spec.size > actors::kCollectiveMembersMax) {
    return InvalidArgument("a collective group has 1 to " +
                           std::to_string(actors::kCollectiveMembersMax) + " members, not " +
                           std::to_string(spec.size));
  }
  if (spec.trains && !spec.elastic) return InvalidArgument("a group to train in is an elastic one");
  if (spec.elastic && (spec.min_size == 0 || spec.min_size > spec.size))
    return InvalidArgument("need 1 <= min_size <= size");
  if (!spec.actors.empty() && spec.actors.size() != spec.size) {
    return InvalidArgument(std::to_string(spec.actors.size()) + " actors are not the " +
                           std::to_string(spec.size) + " of the group");
  }
  std::set<std::string> seen;
  for (const std::string& id : spec.actors) {
    if (!seen.insert(id).second) return InvalidArgument("actor " + id + " is named twice");
    const actors::PlacedActor* actor = directory_->Find(id);
    if (actor == nullptr) return Error{ErrorCode::kPeerGone, "there is no actor " + id};
    if (actor->dead()) return Error{ErrorCode::kPeerGone, "actor " + id + " is dead"};
  }
  return Status::Ok();
}

Status CollectiveGroups::Create(const CollectiveSpec& spec) {
  if (const auto it = groups_.find(spec.name); it != groups_.end()) {
    const CollectiveSpec& known = it->second.spec;
    const bool same = known.owner == spec.owner && known.size == spec.size &&
                      known.elastic == spec.elastic && known.min_size == spec.min_size &&
                      known.actors == spec.actors;
    if (same) return Status::Ok();  // A repeat.
    return Error{ErrorCode::kAlreadyExists,
                 "there is a collective group \"" + spec.name + "\" already; destroy it first"};
  }
  if (Status s = CheckSpec(spec); !s.ok()) return s;
  if (groups_.size() >= kCollectiveGroupsMax)
    return Error{ErrorCode::kResourceExhausted, "there are too many collective groups"};
  ended_.erase(spec.name);
  Record& record = groups_[spec.name];
  record.spec = spec;
  BeginLife(record);
  if (!spec.elastic) record.seats.resize(spec.size);
  for (size_t i = 0; i < spec.actors.size(); ++i) {
    if (spec.elastic) record.seats.emplace_back();
    record.seats[i].actor = spec.actors[i];
    of_actor_[spec.actors[i]].insert(spec.name);
  }
  Open(record);
  Keep(spec.name);
  return Status::Ok();
}

// Whose place it is, with who had it gone.
Result<CollectiveRecord::Seat*> CollectiveGroups::SeatFor(Record& record,
                                                          const CollectiveRequest& request) {
  const std::string group = "collective group \"" + record.spec.name + "\"";
  const auto mine = std::ranges::find(record.seats, request.actor, &Record::Seat::actor);
  if (record.spec.elastic) {
    if (mine != record.seats.end()) return &*mine;
    if (!record.spec.actors.empty())
      return InvalidArgument("this actor is none of those that " + group + " was made for");
    if (record.seats.size() >= record.spec.size) {
      return Error{ErrorCode::kResourceExhausted,
                   group + " has all of its " + std::to_string(record.spec.size) + " members"};
    }
    return &record.seats.emplace_back();
  }
  if (mine != record.seats.end()) {
    const auto rank = mine - record.seats.begin();
    if (request.rank < 0 || request.rank == rank) return &*mine;
    return InvalidArgument("this actor is rank " + std::to_string(rank) + " of " + group +
                           ", not " + std::to_string(request.rank));
  }
  if (!record.spec.actors.empty() || request.rank < 0)
    return InvalidArgument("this actor is none of those that " + group + " was made for");
  if (request.rank >= static_cast<int32_t>(record.seats.size())) {
    return InvalidArgument("rank " + std::to_string(request.rank) + " is not in 0.." +
                           std::to_string(record.seats.size() - 1) + " of " + group);
  }
  Record::Seat& seat = record.seats[static_cast<size_t>(request.rank)];
  if (seat.actor.empty()) return &seat;
  return Error{ErrorCode::kAlreadyExists, "rank " + std::to_string(request.rank) + " of " + group +
                                              " is that of actor " + seat.actor};
}

Result<uint64_t> CollectiveGroups::Join(const std::string& from, const CollectiveRequest& request) {
  const std::string& name = request.spec.name;
  const actors::PlacedActor* actor = directory_->Find(request.actor);
  if (actor == nullptr || actor->dead() || actor->life.incarnation != request.incarnation)
    return Error{ErrorCode::kFenced, "this life of the actor is over"};
  if (!groups_.contains(name)) {
    if (request.spec.size == 0) return NoGroup(name);
    CollectiveSpec spec = request.spec;
    spec.owner.clear();
    if (Status s = Create(spec); !s.ok()) return s.error();
  }
  Record& record = groups_.at(name);
  const bool fits = request.spec.size == 0 || (request.spec.size == record.spec.size &&
                                               request.spec.elastic == record.spec.elastic);
  if (fits && record.spec.elastic && request.spec.size != 0 &&
      request.spec.min_size != record.spec.min_size) {
    return InvalidArgument("collective group \"" + name + "\" has min_size " +
                           std::to_string(record.spec.min_size) + ", not " +
                           std::to_string(request.spec.min_size));
  }
  if (!fits) {
    return InvalidArgument("collective group \"" + name + "\" is " +
                           (record.spec.elastic ? "an elastic one of up to " : "a fixed one of ") +
                           std::to_string(record.spec.size) + " members, not " +
                           (request.spec.elastic ? "an elastic one of up to " : "a fixed one of ") +
                           std::to_string(request.spec.size));
  }
  if (Status s = Agree(record, request); !s.ok()) return s.error();
  const Result<Record::Seat*> found = SeatFor(record, request);
  if (!found.ok()) return found.error();
  Record::Seat& seat = **found;
  if (!seat.leaving.empty())
    return Error{ErrorCode::kDrained, "this member was asked to leave: " + seat.leaving};
  if (!seat.dismissed.empty()) return Error{ErrorCode::kDrained, seat.dismissed};
  const std::string id = from + "#" + std::to_string(request.request);
  const bool repeated = seat.number != 0 && seat.request == id;
  if (repeated && !TROUPE_MUTATED("CG-2 a repeat is another")) return seat.number;
  if (seat.number != 0) End(record, seat, "it joins again");
  if (!TROUPE_MUTATED("CG-1 numbers are given again") || record.joins == record.life)
    ++record.joins;
  seat = {request.actor, request.incarnation, record.joins, from, id, "", ""};
  of_actor_[request.actor].insert(name);
  TellOrder(record);
  Keep(name);
  return seat.number;
}

// Whoever comes first says how the group is used.
Status CollectiveGroups::Agree(Record& record, const CollectiveRequest& request) {
  const bool trains = request.spec.trains;
  if (trains && !record.spec.elastic) {
    return InvalidArgument("collective group \"" + record.spec.name +
                           "\" is a fixed one, and training needs an elastic one");
  }
  if (trains == record.spec.trains || TROUPE_MUTATED("CG-5 members train or not"))
    return Status::Ok();
  const bool used = std::ranges::any_of(record.seats, [&](const Record::Seat& seat) {
    return seat.number != 0 && seat.actor != request.actor;
  });
  if (used) {
    return InvalidArgument(
        "collective group \"" + record.spec.name + "\" is one that its members " +
        (record.spec.trains ? "train in; use the functions of the training library"
                            : "do not train in, but call collectives of one by one; "
                              "train in another group"));
  }
  record.spec.trains = trains;
  if (trains) BeginTraining(record);
  return Status::Ok();
}

void CollectiveGroups::Leave(const CollectiveRequest& request) {
  const auto it = groups_.find(request.spec.name);
  if (it == groups_.end()) return;
  Record& record = it->second;
  const auto seat = std::ranges::find(record.seats, request.actor, &Record::Seat::actor);
  if (seat == record.seats.end() || seat->incarnation != request.incarnation) return;
  End(record, *seat, "it has left the group");
  if (record.spec.actors.empty()) {
    of_actor_[request.actor].erase(record.spec.name);
    if (record.spec.elastic) {
      record.seats.erase(seat);
    } else {
      *seat = {};
    }
  }
  const bool empty = std::ranges::none_of(
      record.seats, [](const Record::Seat& other) { return other.number != 0; });
  if (empty && !record.stays)
    return Remove(std::string(record.spec.name), "all of its members have left");
  if (empty) return BeginAgain(record);
  Keep(record.spec.name);
}

// ---- memberships ----

void CollectiveGroups::End(Record& record, Record::Seat& seat, const std::string& reason) {
  if (seat.number == 0) return;
  const groups::MemberId member = MemberOf(seat);
  seat.number = 0;
  Tell(record.spec.name, groups::MemberDied{member, reason});
}

void CollectiveGroups::OnActor(const std::string& id) {
  const auto of = of_actor_.find(id);
  if (of == of_actor_.end()) return;
  const actors::PlacedActor* actor = directory_->Find(id);
  const bool dead = actor == nullptr || actor->dead();
  const std::string why =
      actor == nullptr ? "it is not known any more" : actors::FromChain(actor->life.reason).message;
  const std::set<std::string> names = of->second;  // Ending one may change the list.
  for (const std::string& name : names) {
    Record& record = groups_.at(name);
    const auto seat = std::ranges::find(record.seats, id, &Record::Seat::actor);
    if (seat == record.seats.end()) continue;
    const bool alive = !dead && actor->life.state == actors::ActorState::kAlive &&
                       actor->life.incarnation == seat->incarnation;
    const bool starts = !dead && actor->life.state == actors::ActorState::kStarting &&
                        actor->life.incarnation == seat->incarnation;
    if (!alive && !starts && seat->number != 0) {
      End(record, *seat, why);
      Keep(name);
    }
    if (!dead || TROUPE_MUTATED("CG-4 it waits for the dead")) continue;
    if (!record.spec.elastic) {
      Remove(name, Describe(record, *seat) + " is dead: " + why);
      continue;
    }
    record.seats.erase(seat);
    of_actor_[id].erase(name);
    if (record.seats.empty()) {
      Remove(name, "all of its members are dead");
    } else {
      Keep(name);
    }
  }
  if (dead) of_actor_.erase(id);
}

void CollectiveGroups::OwnerGone(const std::string& owner) {
  std::vector<std::string> gone;
  for (const auto& [name, record] : groups_) {
    if (record.spec.owner == owner) gone.push_back(name);
  }
  for (const std::string& name : gone) Remove(name, "who had made it has ended");
}

void CollectiveGroups::SetMembers(const step::SetGroupMembers& members) {
  const std::string& name = members.group;
  if (members.actors.empty()) return Remove(name, "its group of actors has ended");
  const bool made = !groups_.contains(name);
  Record& record = groups_[name];
  if (made) {
    ended_.erase(name);
    record.spec.name = name;
    record.spec.elastic = record.stays = true;
    record.spec.min_size = members.min_size;
    BeginLife(record);
  }
  record.spec.size = members.max_size;
  record.spec.actors = members.actors;
  for (const std::string& actor : members.actors) {
    if (std::ranges::find(record.seats, actor, &Record::Seat::actor) != record.seats.end())
      continue;
    record.seats.emplace_back().actor = actor;
    of_actor_[actor].insert(name);
  }
  if (made) Open(record);
  Keep(name);
}

void CollectiveGroups::Drain(const std::string& name, const std::string& actor,
                             const std::string& reason) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  const auto seat = std::ranges::find(it->second.seats, actor, &Record::Seat::actor);
  if (seat == it->second.seats.end()) return;
  seat->leaving = reason;
  Keep(name);
  if (seat->number != 0) Tell(name, groups::DrainRequested{MemberOf(*seat), reason});
}

void CollectiveGroups::Dismiss(const std::string& name, const std::vector<std::string>& actors,
                               const std::string& reason) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  std::vector<Record::Seat*> members;
  for (Record::Seat& seat : it->second.seats) {
    if (std::ranges::count(actors, seat.actor) == 0) continue;
    seat.dismissed = reason;
    // They hear this first, and only then that the others have left.
    if (seat.number != 0)
      Expel(seat.process, actors::CollectiveGroupName(name), seat.number, reason, true);
    if (seat.number != 0) members.push_back(&seat);
  }
  for (Record::Seat* seat : members) End(it->second, *seat, reason);
  Keep(name);
}

void CollectiveGroups::Readmit(const std::string& name) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  for (Record::Seat& seat : it->second.seats) seat.dismissed.clear();
  Keep(name);
}

void CollectiveGroups::Remove(const std::string& name, const std::string& reason) {
  const auto it = groups_.find(name);
  if (it == groups_.end()) return;
  const Record record = std::move(it->second);
  groups_.erase(it);
  ended_[name] = {reason, queue_->now()};
  for (const Record::Seat& seat : record.seats) {
    if (seat.actor.empty()) continue;
    of_actor_[seat.actor].erase(name);
    if (seat.number != 0)
      Expel(seat.process, actors::CollectiveGroupName(name), seat.number, reason);
  }
  queue_->Put(step::CloseEpochs{actors::CollectiveGroupName(name)});
  Keep(name);
  queue_->Put(step::DropRecords{groups::KeysOfGroup(EpochsOf(record))});  // Not before.
}

void CollectiveGroups::OnTick() {
  const Time now = queue_->now();
  std::erase_if(ended_, [&](const auto& e) { return now > e.second.second + kEndedGroupKept; });
}

// ---- for people ----

std::string CollectiveGroups::Describe(const Record& record, const Record::Seat& seat) const {
  const actors::PlacedActor* actor = directory_->Find(seat.actor);
  const std::string type = actor == nullptr ? "actor" : actor->spec.type;
  std::string who = type + " " + seat.actor;
  if (record.spec.elastic) return who;
  return "rank " + std::to_string(&seat - record.seats.data()) + " (" + who + ")";
}

CollectiveStatus CollectiveGroups::StatusOf(const Record& record) const {
  CollectiveStatus status;
  status.spec = record.spec;
  status.life = record.life;
  for (const Record::Seat& seat : record.seats) {
    std::string state = "free";
    if (const actors::PlacedActor* actor = directory_->Find(seat.actor); actor != nullptr) {
      const bool alive = actor->life.state == actors::ActorState::kAlive;
      state = seat.number != 0 ? "member"
              : alive          ? "awaited: it has not called a collective of this group yet"
                               : actors::ActorStateName(actor->life.state);
    }
    status.seats.push_back({seat.actor, seat.number, std::move(state)});
  }
  if (const groups::Coordinator* c =
          coordinators_->Find(actors::CollectiveGroupName(record.spec.name));
      c != nullptr) {
    status.phase = groups::GroupPhaseName(c->phase());
    status.epoch = c->view().epoch;
    status.reason = c->waiting_for();
  } else {
    status.phase = "loading";
  }
  return status;
}

std::vector<CollectiveStatus> CollectiveGroups::List() const {
  std::vector<CollectiveStatus> all;
  for (const auto& [name, record] : groups_) all.push_back(StatusOf(record));
  return all;
}

}  // namespace troupe::daemons
