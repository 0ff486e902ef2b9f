#include "daemons/head/core/actor_groups.h"

#include <algorithm>
#include <utility>

#include "actors/core/error_chain.h"

namespace troupe::daemons {

using actors::ActorGroupSpec;
using actors::ActorState;

namespace {

Error Invalid(const std::string& what) { return Error{ErrorCode::kInvalidArgument, what}; }

std::string Named(uint32_t number) { return "member " + std::to_string(number); }

}  // namespace

// ---- making and ending ----

Status ActorGroups::Check(const ActorGroupSpec& spec) const {
  if (spec.group.empty()) return Invalid("a group of actors has an id");
  if (spec.name.size() > actors::kActorNameBytesMax) {
    return Invalid("the name of a group has at most " + std::to_string(actors::kActorNameBytesMax) +
                   " bytes");
  }
  if (spec.min_size == 0 || spec.min_size > spec.size || spec.size > spec.max_size) {
    return Invalid("need 1 <= min_size <= size <= max_size, got " + std::to_string(spec.min_size) +
                   ", " + std::to_string(spec.size) + ", " + std::to_string(spec.max_size));
  }
  if (spec.max_size > actors::kGroupMembersMax) {
    return Invalid("a group has at most " + std::to_string(actors::kGroupMembersMax) +
                   " members, not " + std::to_string(spec.max_size));
  }
  if (!(spec.below_min_s > 0)) return Invalid("the time below min_size is more than 0 s");
  if (!spec.member.name.empty())
    return Invalid("members of a group have no names of their own; name the group");
  return Status::Ok();
}

Status ActorGroups::Create(Time now, const ActorGroupSpec& asked, ActorGroupActions& actions) {
  if (groups_.contains(asked.group)) return Status::Ok();  // A repeat.
  if (Status s = Check(asked); !s.ok()) return s;
  ActorGroupSpec spec = asked;
  if (spec.name.empty()) spec.name = spec.group;
  spec.member.program.env[actors::kActorGroupVariable] = spec.name;
  if (names_.contains(spec.name)) {
    return Error{ErrorCode::kAlreadyExists, "there is a group named \"" + spec.name +
                                                "\" already; end it first, or take "
                                                "another name"};
  }
  if (names_.size() >= kActorGroupsMax)
    return Error{ErrorCode::kResourceExhausted, "there are too many groups of actors"};
  names_[spec.name] = spec.group;
  Group& group = groups_[spec.group];
  group.size = spec.size;
  group.spec = std::move(spec);
  group.below_since = now;
  actions.emplace_back(KeepGroup{group.spec.group});
  Add(group, group.size, group.spec.min_size, actions);
  return Status::Ok();
}

void ActorGroups::Restore(Time now, ActorGroupRecord record, ActorGroupActions& actions) {
  Group& group = groups_[record.spec.group];
  group.spec = std::move(record.spec);
  group.size = record.size;
  group.next_member = record.next_member;
  group.restarts = record.restarts + 1;
  group.sequence = group.restarts << 32;
  group.below_since = now;
  names_[group.spec.name] = group.spec.group;
  for (ActorGroupRecord::Member& known : record.members) {
    members_[known.actor] = {group.spec.group, known.number};
    Member& member = group.members[known.number];
    if (known.draining) member.leave_by = now + kDrainLimit;
    member.record = std::move(known);
  }
  actions.emplace_back(KeepGroup{group.spec.group});
}

void ActorGroups::End(Time now, const std::string& id, const std::string& reason,
                      ActorGroupActions& actions) {
  const auto it = groups_.find(id);
  if (it == groups_.end() || it->second.ended) return;
  Group& group = it->second;
  group.ended = reason;
  group.ended_at = now;
  names_.erase(group.spec.name);
  actions.emplace_back(ForgetGroup{id});
  for (const auto& [number, member] : std::exchange(group.members, {})) {
    members_.erase(member.record.actor);
    actions.emplace_back(EndMember{member.record.actor, "its group has ended: " + reason});
  }
  Note(group, GroupEventKind::kEnded, -1, reason, actions);
}

void ActorGroups::OwnerGone(Time now, const std::string& owner, ActorGroupActions& actions) {
  for (auto& [id, group] : groups_) {
    if (!group.spec.detached && group.spec.owner == owner)
      End(now, id, "its owner has ended", actions);
  }
}

Result<ActorGroups::Group*> ActorGroups::Living(const std::string& id) {
  const auto it = groups_.find(id);
  if (it == groups_.end())
    return Error{ErrorCode::kNotFound, "there is no group " + id + "; `troupe groups` lists them"};
  if (!it->second.ended) return &it->second;
  return Error{ErrorCode::kPeerGone,
               "group \"" + it->second.spec.name + "\" has ended: " + *it->second.ended};
}

// ---- members ----

actors::ActorSpec ActorGroups::SpecOf(const Group& group, const Member& member) {
  actors::ActorSpec spec = group.spec.member;
  spec.actor = member.record.actor;
  spec.owner = group.spec.owner;
  spec.detached = true;  // The group ends it.
  return spec;
}

uint32_t ActorGroups::Staying(const Group& group) {
  return static_cast<uint32_t>(std::ranges::count_if(
      group.members, [](const auto& m) { return !m.second.record.draining; }));
}

uint32_t ActorGroups::Alive(const Group& group) {
  return static_cast<uint32_t>(std::ranges::count_if(
      group.members, [](const auto& m) { return m.second.state == GroupMemberState::kAlive; }));
}

void ActorGroups::Note(Group& group, GroupEventKind kind, int32_t member, const std::string& detail,
                       ActorGroupActions& actions) {
  group.events.push_back({++group.sequence, kind, member, detail});
  if (group.events.size() > kGroupEventsKept) group.events.pop_front();
  actions.emplace_back(TellGroup{group.spec.group});
}

void ActorGroups::Add(Group& group, uint32_t count, size_t at_least, ActorGroupActions& actions) {
  if (count == 0) return;
  StartMembers start{group.spec.group, {}, at_least};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t number = group.next_member++;
    Member& member = group.members[number];
    member.record.number = number;
    member.record.actor = group.spec.group + "-" + std::to_string(number);
    members_[member.record.actor] = {group.spec.group, number};
    start.actors.push_back(SpecOf(group, member));
    Note(group, GroupEventKind::kAdded, static_cast<int32_t>(number), "", actions);
  }
  actions.emplace_back(std::move(start));
}

Status ActorGroups::Resize(Time now, const std::string& id, uint32_t size,
                           ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return living.error();
  Group& group = **living;
  if (size < group.spec.min_size || size > group.spec.max_size) {
    return Invalid("cannot resize group \"" + group.spec.name + "\" to " + std::to_string(size) +
                   ": it has " + std::to_string(group.spec.min_size) + " to " +
                   std::to_string(group.spec.max_size) + " members");
  }
  if (size != group.size) {
    const uint32_t before = std::exchange(group.size, size);
    Note(group, GroupEventKind::kResized, -1,
         std::to_string(before) + " -> " + std::to_string(size), actions);
  }
  const uint32_t there = Staying(group);
  actions.emplace_back(KeepGroup{id});
  if (there < size) Add(group, size - there, 0, actions);
  // Who does nothing yet goes first, then the youngest.
  std::vector<uint32_t> order;
  for (const auto& [number, member] : group.members)
    if (!member.record.draining) order.push_back(number);
  std::ranges::sort(order, {}, [&](uint32_t number) {
    const bool alive = group.members.at(number).state == GroupMemberState::kAlive;
    return std::pair{alive ? 1 : 0, -static_cast<int64_t>(number)};
  });
  for (uint32_t i = 0; i + size < there; ++i) {
    StartDraining(now, group, group.members.at(order[i]), "the group has become smaller",
                  kDrainLimit, actions);
  }
  return Status::Ok();
}

Status ActorGroups::Drain(Time now, const std::string& id, uint32_t number,
                          const std::string& reason, Duration limit, ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return living.error();
  Group& group = **living;
  const auto it = group.members.find(number);
  if (it == group.members.end()) {
    if (number < group.next_member) return Status::Ok();  // It has left.
    return Error{ErrorCode::kNotFound, "group \"" + group.spec.name + "\" has no " + Named(number)};
  }
  if (it->second.record.draining) {
    it->second.leave_by = std::min(it->second.leave_by, now + limit);
    return Status::Ok();
  }
  actions.emplace_back(KeepGroup{id});
  StartDraining(now, group, it->second, reason, limit, actions);
  if (Staying(group) < group.size) Add(group, 1, 0, actions);
  return Status::Ok();
}

void ActorGroups::StartDraining(Time now, Group& group, Member& member, const std::string& reason,
                                Duration limit, ActorGroupActions& actions) {
  member.record.draining = true;
  member.record.reason = reason;
  member.leave_by = now + limit;
  Note(group, GroupEventKind::kDraining, static_cast<int32_t>(member.record.number), reason,
       actions);
  if (member.state == GroupMemberState::kAlive) {
    AskToLeave(now, group, member, actions);
  } else {
    actions.emplace_back(EndMember{member.record.actor, reason});
  }
}

void ActorGroups::AskToLeave(Time now, const Group& group, Member& member,
                             ActorGroupActions& actions) {
  member.ask_again = now + kAskAgain;
  actions.emplace_back(DrainMember{group.spec.group, member.record.actor, member.record.reason});
}

// It has ended for good.
void ActorGroups::Remove(Time now, Group& group, uint32_t number, const std::string& reason,
                         ActorGroupActions& actions) {
  const auto it = group.members.find(number);
  const Member member = std::move(it->second);
  group.members.erase(it);
  members_.erase(member.record.actor);
  actions.emplace_back(KeepGroup{group.spec.group});
  if (member.record.draining) {
    Note(group, GroupEventKind::kLeft, static_cast<int32_t>(number), member.record.reason, actions);
  } else {
    Note(group, GroupEventKind::kLost, static_cast<int32_t>(number), reason, actions);
  }
  if (group.members.size() < group.spec.min_size) {
    return End(now, group.spec.group,
               "fewer than " + std::to_string(group.spec.min_size) + " members are left; " +
                   Named(number) + ": " + reason,
               actions);
  }
  CheckSize(now, group, Named(number) + ": " + reason, actions);
}

void ActorGroups::CheckSize(Time now, Group& group, const std::string& why,
                            ActorGroupActions& actions) {
  if (Alive(group) >= group.spec.min_size) {
    group.formed = true;
    group.below_since = Time::Never();
    group.below_reason.clear();
    return;
  }
  if (!group.formed || group.below_since != Time::Never()) return;
  group.below_since = now;
  group.below_reason = std::to_string(Alive(group)) + " of at least " +
                       std::to_string(group.spec.min_size) + " members are alive; " + why;
  Note(group, GroupEventKind::kBelowMin, -1, group.below_reason, actions);
}

void ActorGroups::OnActor(Time now, const actors::ActorLocation& actor,
                          ActorGroupActions& actions) {
  const auto known = members_.find(actor.actor);
  if (known == members_.end()) return;
  Group& group = groups_.at(known->second.first);
  const uint32_t number = known->second.second;
  Member& member = group.members.at(number);
  const std::string why =
      actor.reason.empty() ? std::string() : actors::FromChain(actor.reason).message;
  if (actor.state == ActorState::kDead) return Remove(now, group, number, why, actions);
  if (actor.incarnation < member.incarnation) return;  // Late news.
  const bool was_alive = member.state == GroupMemberState::kAlive;
  const bool next_life = actor.incarnation > member.incarnation && member.incarnation != 0;
  const bool alive = actor.state == ActorState::kAlive;
  const GroupMemberState state = alive                   ? GroupMemberState::kAlive
                                 : actor.incarnation > 1 ? GroupMemberState::kRestarting
                                                         : GroupMemberState::kStarting;
  if (was_alive && (!alive || next_life))
    Note(group, GroupEventKind::kDied, static_cast<int32_t>(number), why, actions);
  member.incarnation = actor.incarnation;
  member.state = state;
  member.reason = why;
  if (alive && (!was_alive || next_life)) {
    Note(group, GroupEventKind::kAlive, static_cast<int32_t>(number), "", actions);
    // It was asked in another life, or by a head that is gone.
    if (member.record.draining) AskToLeave(now, group, member, actions);
  } else if (!alive && member.record.draining) {
    actions.emplace_back(EndMember{actor.actor, member.record.reason});  // It need not come back.
  }
  CheckSize(now, group, Named(number) + ": " + why, actions);
}

// ---- runs ----

void ActorGroups::RunBegins(const std::string& id, ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return;
  (*living)->returned.clear();
  (*living)->dismiss_at = Time::Never();
  actions.emplace_back(ReadmitMembers{id});
}

void ActorGroups::Returned(Time now, const std::string& id, uint32_t member) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return;
  Group& group = **living;
  const auto it = group.members.find(member);
  if (it == group.members.end() || it->second.record.draining) return;  // It was to.
  group.returned.insert(member);
  group.dismiss_at = std::min(group.dismiss_at, now + kReturnGrace);
}

void ActorGroups::Dismiss(Group& group, ActorGroupActions& actions) {
  group.dismiss_at = Time::Never();
  DismissMembers dismiss{group.spec.group, {}, "others have returned from the run that it is in"};
  for (const auto& [number, member] : group.members) {
    if (!group.returned.contains(number)) dismiss.actors.push_back(member.record.actor);
  }
  if (!dismiss.actors.empty()) actions.emplace_back(std::move(dismiss));
}

// ---- time ----

void ActorGroups::Tick(Time now, ActorGroupActions& actions) {
  for (auto& [id, group] : groups_) {
    if (group.ended) continue;
    const Duration limit = milliseconds(static_cast<int64_t>(group.spec.below_min_s * 1e3));
    if (group.formed && group.below_since != Time::Never() && now >= group.below_since + limit) {
      End(now, id, "for too long " + group.below_reason, actions);
      continue;
    }
    if (now >= group.dismiss_at) Dismiss(group, actions);
    for (auto& [number, member] : group.members) {
      if (now >= member.ask_again) AskToLeave(now, group, member, actions);
      if (now < member.leave_by) continue;
      member.leave_by = Time::Never();
      actions.emplace_back(
          EndMember{member.record.actor, "it was to leave by now: " + member.record.reason});
    }
  }
  std::erase_if(groups_, [&](const auto& g) {
    return g.second.ended && now > g.second.ended_at + actors::kDeadKept;
  });
}

// ---- looking ----

std::string ActorGroups::Find(const std::string& name) const {
  if (const auto it = names_.find(name); it != names_.end()) return it->second;
  return groups_.contains(name) ? name : "";
}

Result<ActorGroupStatus> ActorGroups::StatusOf(const std::string& id, uint64_t since) const {
  const auto it = groups_.find(id);
  if (it == groups_.end())
    return Error{ErrorCode::kNotFound, "there is no group " + id + "; `troupe groups` lists them"};
  const Group& group = it->second;
  ActorGroupStatus status;
  status.id = id;
  status.name = group.spec.name;
  status.type = group.spec.member.type;
  status.min_size = group.spec.min_size;
  status.size = group.size;
  status.max_size = group.spec.max_size;
  status.ended = group.ended.has_value();
  status.reason = group.ended.value_or(group.below_reason);
  for (const auto& [number, member] : group.members) {
    const GroupMemberState state =
        member.record.draining ? GroupMemberState::kDraining : member.state;
    status.members.push_back({number, member.record.actor, member.incarnation, state,
                              member.record.draining ? member.record.reason : member.reason});
  }
  for (const GroupEvent& event : group.events)
    if (event.sequence > since) status.events.push_back(event);
  status.sequence = group.sequence;
  const uint64_t first = status.events.empty() ? group.sequence + 1 : status.events[0].sequence;
  status.missed = first > since + 1 ? first - since - 1 : 0;
  return status;
}

std::optional<ActorGroupRecord> ActorGroups::RecordOf(const std::string& id) const {
  const auto it = groups_.find(id);
  if (it == groups_.end() || it->second.ended) return std::nullopt;
  const Group& group = it->second;
  ActorGroupRecord record{group.spec, group.size, group.next_member, group.restarts, {}};
  for (const auto& [number, member] : group.members) record.members.push_back(member.record);
  return record;
}

std::vector<actors::ActorSpec> ActorGroups::SpecsOf(const std::string& id) const {
  std::vector<actors::ActorSpec> specs;
  if (const auto it = groups_.find(id); it != groups_.end())
    for (const auto& [number, member] : it->second.members)
      specs.push_back(SpecOf(it->second, member));
  return specs;
}

std::optional<GroupMembership> ActorGroups::MembershipOf(const std::string& id) const {
  const auto it = groups_.find(id);
  if (it == groups_.end() || it->second.ended) return std::nullopt;
  const Group& group = it->second;
  GroupMembership membership{group.spec.name, group.spec.min_size, group.spec.max_size, {}};
  for (const auto& [number, member] : group.members)
    membership.actors.push_back(member.record.actor);
  return membership;
}

std::optional<std::pair<std::string, uint32_t>> ActorGroups::MemberOf(
    const std::string& actor) const {
  const auto it = members_.find(actor);
  if (it == members_.end()) return std::nullopt;
  return it->second;
}

std::vector<std::string> ActorGroups::groups() const {
  std::vector<std::string> all;
  for (const auto& [id, group] : groups_) all.push_back(id);
  return all;
}

}  // namespace troupe::daemons
