#include "daemons/head/core/actor_groups.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "actors/core/error_chain.h"
#include "runtime/mutation.h"

namespace troupe::daemons {

using actors::ActorGroupSpec;
using actors::ActorState;

namespace {

std::string Named(uint32_t number) { return "member " + std::to_string(number); }

std::string ActorOf(const ActorGroupSpec& spec, uint32_t number) {
  return spec.group + (spec.of_run ? "/w" : "-") + std::to_string(number);
}

std::string Overdue(uint64_t limit_ms, const std::string& reason) {
  std::ostringstream text;
  text << "ended by force: it was still there " << static_cast<double>(limit_ms) / 1e3
       << " s after it was asked to leave: " << reason;
  return text.str();
}

}  // namespace

// ---- making and ending ----

Status ActorGroups::Check(const ActorGroupSpec& spec) const {
  if (spec.group.empty()) return InvalidArgument("a group of actors has an id");
  if (spec.name.size() > actors::kActorNameBytesMax) {
    return InvalidArgument("the name of a group has at most " +
                           std::to_string(actors::kActorNameBytesMax) + " bytes");
  }
  if (spec.min_size == 0 || spec.min_size > spec.size || spec.size > spec.max_size) {
    return InvalidArgument("need 1 <= min_size <= size <= max_size, got " +
                           std::to_string(spec.min_size) + ", " + std::to_string(spec.size) + ", " +
                           std::to_string(spec.max_size));
  }
  if (spec.max_size > actors::kGroupMembersMax) {
    return InvalidArgument("a group has at most " + std::to_string(actors::kGroupMembersMax) +
                           " members, not " + std::to_string(spec.max_size));
  }
  if (!(spec.below_min_s > 0)) return InvalidArgument("the time below min_size is more than 0 s");
  if (!spec.member.name.empty())
    return InvalidArgument("members of a group have no names of their own; name the group");
  return Status::Ok();
}

Status ActorGroups::Create(Time now, const ActorGroupSpec& asked, ActorGroupActions& actions,
                           uint32_t first) {
  if (groups_.contains(asked.group)) return Status::Ok();  // A repeat.
  if (Status s = Check(asked); !s.ok()) return s;
  ActorGroupSpec spec = asked;
  if (spec.name.empty()) spec.name = spec.group;
  if (!spec.of_run) spec.member.program.env[actors::kActorGroupVariable] = spec.name;
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
  group.next_member = first;
  group.spec = std::move(spec);
  group.below_since = now;
  Fill(group, actions);
  return Status::Ok();
}

void ActorGroups::Restore(Time now, ActorGroupRecord record, ActorGroupActions& actions) {
  Group& group = groups_[record.spec.group];
  group.spec = std::move(record.spec);
  group.size = record.size;
  if (!TROUPE_MUTATED("AG-1 numbers are given again")) group.next_member = record.next_member;
  group.restarts = record.restarts + 1;
  group.formed = record.formed;
  group.sequence = group.restarts << 32;
  group.below_since = now;
  names_[group.spec.name] = group.spec.group;
  for (ActorGroupRecord::Member& known : record.members) {
    members_[known.actor] = {group.spec.group, known.number};
    Member& member = group.members[known.number];
    member.life = ++lives_;
    if (known.draining && known.limit_ms > 0)
      member.leave_by = now + milliseconds(static_cast<int64_t>(known.limit_ms));
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
    if (TROUPE_MUTATED("AG-3 members of an ended group stay")) continue;
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

// Enough of the first ones have room at once.
void ActorGroups::Fill(Group& group, ActorGroupActions& actions) {
  const uint32_t there = Staying(group);
  if (group.ended || there >= group.size) return;
  if (group.closed && !TROUPE_MUTATED("AG-7 a closed group is filled")) return;
  actions.emplace_back(KeepGroup{group.spec.group});
  Add(group, group.size - there, group.members.empty() ? group.spec.min_size : 0, actions);
}

void ActorGroups::Add(Group& group, uint32_t count, size_t at_least, ActorGroupActions& actions) {
  StartMembers start{group.spec.group, {}, count > 1 ? at_least : 0, group.spec.strategy};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t number = group.next_member++;
    Member& member = group.members[number];
    member.record.number = number;
    member.record.actor = ActorOf(group.spec, number);
    member.life = ++lives_;
    members_[member.record.actor] = {group.spec.group, number};
    start.actors.push_back(SpecOf(group, member));
    Note(group, GroupEventKind::kAdded, static_cast<int32_t>(number), "", actions);
  }
  actions.emplace_back(std::move(start));
}

Status ActorGroups::Resize(Time now, const std::string& id, uint32_t size,
                           const std::string& reason, Duration limit, ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return living.error();
  Group& group = **living;
  if (size < group.spec.min_size || size > group.spec.max_size) {
    return InvalidArgument("cannot resize group \"" + group.spec.name + "\" to " +
                           std::to_string(size) + ": it has " +
                           std::to_string(group.spec.min_size) + " to " +
                           std::to_string(group.spec.max_size) + " members");
  }
  if (size != group.size) {
    const uint32_t before = std::exchange(group.size, size);
    Note(group, GroupEventKind::kResized, -1,
         std::to_string(before) + " -> " + std::to_string(size), actions);
  }
  actions.emplace_back(KeepGroup{id});
  Fill(group, actions);
  // Who does nothing yet goes first, then the youngest; who has finished is not in the way.
  const uint32_t there = Staying(group);
  std::vector<Member*> order;
  for (auto& [number, member] : group.members)
    if (!member.record.draining && !member.record.finished) order.push_back(&member);
  std::ranges::sort(order, {}, [](const Member* member) {
    const bool alive = member->state == GroupMemberState::kAlive;
    return std::pair{alive ? 1 : 0, -static_cast<int64_t>(member->life)};
  });
  for (uint32_t i = 0; i + size < there && i < order.size(); ++i)
    StartDraining(now, group, *order[i], reason, limit, actions);
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
  actions.emplace_back(KeepGroup{id});
  if (it->second.record.finished) return Status::Ok();  // It does.
  if (it->second.record.draining) {
    SetLimit(now, it->second, limit);
    return Status::Ok();
  }
  StartDraining(now, group, it->second, reason, limit, actions);
  Fill(group, actions);
  return Status::Ok();
}

Status ActorGroups::Shrink(Time now, const std::string& id, uint32_t number,
                           const std::string& reason, Duration limit, ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok()) return living.error();
  Group& group = **living;
  const auto it = group.members.find(number);
  const bool goes =
      it != group.members.end() && !it->second.record.draining && !it->second.record.finished;
  if (goes && group.size <= group.spec.min_size) {
    return InvalidArgument("draining " + Named(number) + " would leave fewer than min_size = " +
                           std::to_string(group.spec.min_size));
  }
  if (goes || TROUPE_MUTATED("AG-2 a repeated shrink is another")) --group.size;
  return Drain(now, id, number, reason, limit, actions);
}

// A shorter time than it has been given.
void ActorGroups::SetLimit(Time now, Member& member, Duration limit) {
  if (limit == kNoDrainLimit || now + limit >= member.leave_by) return;
  member.leave_by = now + limit;
  member.record.limit_ms = std::max<uint64_t>(1, static_cast<uint64_t>(limit / milliseconds(1)));
}

void ActorGroups::StartDraining(Time now, Group& group, Member& member, const std::string& reason,
                                Duration limit, ActorGroupActions& actions) {
  member.record.draining = true;
  member.record.reason = reason;
  member.record.limit_ms = 0;
  member.leave_by = Time::Never();
  SetLimit(now, member, limit);
  Note(group, GroupEventKind::kDraining, static_cast<int32_t>(member.record.number), reason,
       actions);
  // A run knows of its own how far one has come that has a process.
  if (member.state == GroupMemberState::kAlive || (group.spec.of_run && member.placed)) {
    AskToLeave(now, group, member, actions);
  } else {
    actions.emplace_back(EndMember{member.record.actor, reason});
  }
}

void ActorGroups::Left(const std::string& actor, const std::string& reason,
                       ActorGroupActions& actions) {
  const auto [group, member] = Lookup(actor);
  if (member == nullptr) return;
  member->leave_by = member->ask_again = Time::Never();
  member->record.limit_ms = 0;
  if (!std::exchange(member->record.draining, true)) {
    member->record.reason = reason;
    Note(*group, GroupEventKind::kDraining, static_cast<int32_t>(member->record.number), reason,
         actions);
  }
  actions.emplace_back(KeepGroup{group->spec.group});
  Fill(*group, actions);
}

void ActorGroups::Finished(const std::string& actor, ActorGroupActions& actions) {
  const auto [group, member] = Lookup(actor);
  if (member == nullptr || std::exchange(member->record.finished, true)) return;
  actions.emplace_back(KeepGroup{group->spec.group});
}

void ActorGroups::SetClosed(const std::string& id, bool closed, ActorGroupActions& actions) {
  const Result<Group*> living = Living(id);
  if (!living.ok() || std::exchange((*living)->closed, closed) == closed) return;
  Group& group = **living;
  for (const auto& [number, member] : group.members) {
    const bool joins = !member.placed && !member.record.draining && !member.record.finished;
    if (joins) actions.emplace_back(HoldMember{member.record.actor, closed});
  }
  Fill(group, actions);
}

void ActorGroups::Missing(Time now, const std::string& actor, ActorGroupActions& actions) {
  const auto [group, member] = Lookup(actor);
  if (member == nullptr || member->record.finished) return;
  Remove(now, *group, member->record.number, "nothing is known of it", actions);
}

std::pair<ActorGroups::Group*, ActorGroups::Member*> ActorGroups::Lookup(const std::string& actor) {
  const auto known = members_.find(actor);
  if (known == members_.end()) return {nullptr, nullptr};
  Group& group = groups_.at(known->second.first);
  return {&group, &group.members.at(known->second.second)};
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
  if (group.spec.of_run) {  // One that has never had a place may not be able to: not at once.
    if (member.placed || member.incarnation > 1) Fill(group, actions);
    return;
  }
  if (group.members.size() < group.spec.min_size && !TROUPE_MUTATED("AG-4 too few go on")) {
    return End(now, group.spec.group,
               "fewer than " + std::to_string(group.spec.min_size) + " members are left; " +
                   Named(number) + ": " + reason,
               actions);
  }
  CheckSize(now, group, Named(number) + ": " + reason, actions);
}

void ActorGroups::CheckSize(Time now, Group& group, const std::string& why,
                            ActorGroupActions& actions) {
  if (group.spec.of_run) return;
  if (Alive(group) >= group.spec.min_size) {
    if (!std::exchange(group.formed, true)) actions.emplace_back(KeepGroup{group.spec.group});
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
  const auto [of, found] = Lookup(actor.actor);
  if (found == nullptr) return;
  Group& group = *of;
  Member& member = *found;
  const uint32_t number = member.record.number;
  const std::string why =
      actor.reason.empty() ? std::string() : actors::FromChain(actor.reason).message;
  if (actor.state == ActorState::kDead)
    return member.record.finished ? void() : Remove(now, group, number, why, actions);
  if (actor.incarnation < member.incarnation) return;  // Late news.
  const bool was_alive = member.state == GroupMemberState::kAlive;
  const bool next_life = actor.incarnation > member.incarnation && member.incarnation != 0;
  const bool alive = actor.state == ActorState::kAlive;
  const GroupMemberState state = alive                   ? GroupMemberState::kAlive
                                 : actor.incarnation > 1 ? GroupMemberState::kRestarting
                                                         : GroupMemberState::kStarting;
  if (was_alive && (!alive || next_life))
    Note(group, GroupEventKind::kDied, static_cast<int32_t>(number), why, actions);
  if (next_life) member.life = ++lives_;
  member.incarnation = actor.incarnation;
  member.state = state;
  member.placed = alive || actor.state == ActorState::kStarting;
  member.reason = why;
  if (alive && (!was_alive || next_life)) {
    Note(group, GroupEventKind::kAlive, static_cast<int32_t>(number), "", actions);
    // It was asked in another life, or by a head that is gone.
    if (member.record.draining) AskToLeave(now, group, member, actions);
  } else if (!alive &&
             (member.record.draining ||
              (member.record.finished && !TROUPE_MUTATED("AG-7 the finished live again")))) {
    // It need not come back.
    if (!group.spec.of_run || !member.placed)
      actions.emplace_back(EndMember{actor.actor, member.record.reason});
  } else if (group.closed && !member.placed &&
             !TROUPE_MUTATED("AG-7 the dead of a closed group live")) {
    actions.emplace_back(HoldMember{actor.actor});
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
    if (TROUPE_MUTATED("AG-4 too few alive go on")) group.below_since = Time::Never();
    if (group.formed && group.below_since != Time::Never() && now >= group.below_since + limit) {
      End(now, id, "for too long " + group.below_reason, actions);
      continue;
    }
    if (now >= group.dismiss_at) Dismiss(group, actions);
    if (group.spec.of_run) Fill(group, actions);
    for (auto& [number, member] : group.members) {
      if (now >= member.ask_again) AskToLeave(now, group, member, actions);
      if (now < member.leave_by || TROUPE_MUTATED("AG-5 the overdue stay")) continue;
      member.leave_by = Time::Never();
      actions.emplace_back(EndMember{member.record.actor,
                                     Overdue(member.record.limit_ms, member.record.reason), true});
    }
  }
  std::erase_if(groups_, [&](const auto& g) {
    return g.second.ended && now > g.second.ended_at + actors::kDeadKept;
  });
}

}  // namespace troupe::daemons
