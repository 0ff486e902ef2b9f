// What ActorGroups tells of its groups.
#include <utility>

#include "daemons/head/core/actor_groups.h"

namespace troupe::daemons {

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
  ActorGroupRecord record{group.spec,     group.size, group.next_member,
                          group.restarts, {},         group.formed};
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

std::vector<std::string> ActorGroups::WaitingIn(const std::string& id) const {
  std::vector<std::string> waiting;
  if (const auto it = groups_.find(id); it != groups_.end())
    for (const auto& [number, member] : it->second.members)
      if (!member.placed && !member.record.finished) waiting.push_back(member.record.actor);
  return waiting;
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

bool ActorGroups::Stays(const std::string& actor) const {
  const auto it = members_.find(actor);
  if (it == members_.end()) return false;
  return !groups_.at(it->second.first).members.at(it->second.second).record.draining;
}

std::vector<std::string> ActorGroups::groups() const {
  std::vector<std::string> all;
  for (const auto& [id, group] : groups_) all.push_back(id);
  return all;
}

}  // namespace troupe::daemons
