// Who goes of those that were asked to leave, and who has to stay for a while (GM-17).
#include <algorithm>
#include <ranges>

#include "collective_groups/membership/coordinator.h"
#include "runtime/mutation.h"

namespace troupe::groups {
namespace {

bool Contains(const std::vector<MemberId>& ids, const MemberId& id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

// Whoever goes on, with as few of those who were asked to leave as they need. Too few in any case:
// only the state keeps somebody.
std::vector<MemberId> Coordinator::WithNeeded(
    std::vector<MemberId> staying, std::vector<MemberId> leaving,
    const std::function<bool(const MemberId&)>& holds) const {
  SortByRank(leaving);
  const auto stay = [&](const MemberId& id) {
    if (!Contains(staying, id)) staying.push_back(id);
  };
  const bool enough = staying.size() + leaving.size() >= MinMembers();
  if (std::ranges::none_of(staying, holds) && !TROUPE_MUTATED("GM-17 the state goes")) {
    const auto holder = std::ranges::find_if(leaving, holds);
    if (holder != leaving.end()) stay(*holder);
  }
  for (const MemberId& id : leaving) {
    const bool few = enough && staying.size() < MinMembers();
    if ((few && !TROUPE_MUTATED("GM-17 too few stay")) || TROUPE_MUTATED("GM-17 all stay"))
      stay(id);
  }
  return staying;
}

std::vector<MemberId> Coordinator::AfterDrain() const {
  std::vector<MemberId> staying;
  std::vector<MemberId> leaving;
  for (const MemberId& id : Survivors()) (IsDraining(id) ? leaving : staying).push_back(id);
  for (const MemberId& id : Joiners()) {
    const Peer& joiner = peers_.at(id);
    const bool admit = !joiner.draining && IsWarm(joiner);
    if (admit && staying.size() < kGroupMembersMax) staying.push_back(id);
  }
  uint64_t newest = 0;  // When this epoch began. Who has come that far has the state.
  bool told = false;    // Else all have it by the boundary: an epoch begins with it.
  for (const ViewMember& m : current_.members) {
    if (m.has_state) newest = std::max(newest, m.version);
    const auto it = peers_.find(m.id);
    told |= it != peers_.end() && it->second.report.has_state;
  }
  return WithNeeded(std::move(staying), std::move(leaving), [&](const MemberId& id) {
    const Report& report = peers_.at(id).report;
    return InCurrent(id) && (!told || (report.has_state && report.version >= newest));
  });
}

bool Coordinator::SomeoneLeaves(const std::vector<MemberId>& members) const {
  return std::ranges::any_of(current_.members, [&](const ViewMember& m) {
    return IsDraining(m.id) && !Contains(members, m.id);
  });
}

// Outside an epoch: those that may begin one. Who is not needed for that goes at once; while
// somebody is still on the way out of a step nobody knows who holds the newest state.
std::vector<MemberId> Coordinator::ReadyToForm(bool unwinding) {
  uint64_t newest = 0;
  std::vector<MemberId> leaving;
  for (const auto& [id, peer] : peers_) {
    if (!peer.report.has_state) continue;
    newest = std::max(newest, peer.report.version);
    if (peer.draining && MayEnter(peer)) leaving.push_back(id);
  }
  std::vector<MemberId> ready =
      WithNeeded(Candidates(), std::move(leaving), [&](const MemberId& id) {
        const Report& report = peers_.at(id).report;
        return report.has_state && report.version == newest;
      });
  std::vector<MemberId> released;
  for (const auto& [id, peer] : peers_) {
    const MemberState state = peer.report.state;
    const bool outside = state == MemberState::kReady || state == MemberState::kIdle;
    const bool may_hold = peer.report.has_state && (unwinding || IsAbsent(peer));
    if (peer.draining && outside && !may_hold && !Contains(ready, id)) released.push_back(id);
  }
  for (const MemberId& id : released) {
    Expel(id, ExpelKind::kDrained, "drained");
    if (options_.start_members > 1) --options_.start_members;  // Nobody comes in its place.
  }
  return ready;
}

void Coordinator::ReleaseDrained() {
  std::vector<MemberId> drained;
  for (const auto& [id, peer] : peers_) {
    if (peer.draining && !InNext(id)) drained.push_back(id);
  }
  for (const MemberId& id : drained) Expel(id, ExpelKind::kDrained, "drained");
}

}  // namespace troupe::groups
