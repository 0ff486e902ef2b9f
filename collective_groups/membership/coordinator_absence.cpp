// The Coordinator's answer to members that are not heard, and to those that cannot reach each
// other: who is left out, for how long, and how often the same epoch may be tried.
#include <algorithm>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {
namespace {

constexpr int kFreeProposals = 2;               // Of the same list; later ones wait.
constexpr Duration kSettledAfter = seconds(1);  // An epoch active for so long was no failed try.
// Failed attempts of a pair before one of the two is left out; fewer, when the epoch before ended
// because a connection was lost and nobody has died since.
constexpr int kFaultsMax = 2;
constexpr int kFaultsMaxAfterLoss = 1;

Duration Doubled(Duration first, int times, Duration most) {
  return std::min(most, first * (int64_t{1} << std::min(times, 20)));
}

std::string Names(const std::vector<MemberId>& ids) {
  std::string text;
  for (const MemberId& id : ids) text.append(text.empty() ? "" : ", ").append(id.ToString());
  return text;
}

}  // namespace

// ---- silence (GM-12) ----

// For how long nobody has been heard, if that is so long that it says nothing about a member.
Duration Coordinator::Unheard() const {
  const Duration silence = now_ - last_heard_;
  return silence > options_.lease / 2 ? silence : Duration::zero();
}

// Whether the group would go back if `id` were given up now. Members of an epoch commit the same
// steps, so that one may be a step ahead of the others, not more.
bool Coordinator::HoldsLastState(const MemberId& id) const {
  const auto it = peers_.find(id);
  if (it == peers_.end() || !it->second.report.has_state) return false;
  return std::none_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const Report& other = entry.second.report;
    return other.id != id && now_ - entry.second.said <= options_.lease && other.has_state &&
           other.version + 1 >= it->second.report.version;
  });
}

void Coordinator::EvictSilent() {
  if (phase_ == GroupPhase::kRecovering) return;
  std::vector<MemberId> silent;
  for (const auto& [id, peer] : peers_) {
    if (now_ - peer.heard <= options_.lease) continue;
    const bool spared = Unheard() != Duration::zero() || HoldsLastState(id);
    if (!spared || now_ - peer.said > options_.silent_lease) silent.push_back(id);
  }
  for (const MemberId& id : silent) {
    const auto it = peers_.find(id);
    if (it == peers_.end()) continue;  // Sent away by what an earlier one caused.
    const auto ms = std::chrono::duration_cast<milliseconds>(now_ - it->second.heard).count();
    const std::string reason = id.ToString() + " was silent for " + std::to_string(ms) + " ms";
    out_.actions.emplace_back(FenceMember{id, reason});
    Evict(id, EpochCause::kSilence, reason);
  }
}

// The youngest missing member is evicted, unless it alone holds the state: then another one is,
// which may just as well be the cause.
MemberId Coordinator::LateToLink(const MemberId& youngest) const {
  const auto other = std::find_if(next_.members.rbegin(), next_.members.rend(),
                                  [&](const ViewMember& m) { return m.id != youngest; });
  return HoldsLastState(youngest) && other != next_.members.rend() ? other->id : youngest;
}

// ---- routes (GM-13) ----

Duration Coordinator::DelayBeforeEpoch(const std::vector<MemberId>& members) {
  const bool settled = settled_at_ != Time::Never() && now_ - settled_at_ >= kSettledAfter;
  settled_at_ = Time::Never();
  if (settled || members != proposed_) proposals_ = 0;
  proposed_ = members;
  if (++proposals_ <= kFreeProposals) return Duration::zero();
  return Doubled(options_.proposal_delay_min, proposals_ - kFreeProposals - 1,
                 options_.proposal_delay_max);
}

// What the members of the epoch that could not be linked say of each other.
void Coordinator::NoteUnreachable() {
  std::set<std::pair<MemberId, MemberId>> pairs;  // Each once per epoch, whoever tells.
  for (const ViewMember& m : next_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) continue;
    const Report& r = it->second.report;
    if (r.epoch != next_.epoch || !r.broken || r.state != MemberState::kPrepared) continue;
    for (const ViewMember& other : next_.members) {
      if (std::find(r.unreachable.begin(), r.unreachable.end(), other.slot) !=
          r.unreachable.end()) {
        pairs.emplace(std::min(m.id, other.id), std::max(m.id, other.id));
      }
    }
    if (r.unreachable.empty()) pairs.emplace(m.id, m.id);
  }
  for (const auto& [a, b] : pairs) faults_.Failed(a, b);
}

// `members` without those that cannot be in an epoch with the others.
std::vector<MemberId> Coordinator::LeaveOutUnreachable(std::vector<MemberId> members) {
  uint64_t newest = 0;
  for (const MemberId& id : members) {
    const Report& r = peers_.at(id).report;
    if (r.has_state) newest = std::max(newest, r.version);
  }
  std::vector<PairFaults::Candidate> candidates;
  for (const MemberId& id : members) {
    const Report& r = peers_.at(id).report;
    candidates.push_back({id, InCurrent(id), r.has_state && r.version == newest});
  }
  const bool after_loss = cause_kind_ == EpochCause::kLostPeer;
  for (const MemberId& id :
       faults_.LeftOut(std::move(candidates), after_loss ? kFaultsMaxAfterLoss : kFaultsMax)) {
    LeaveOut(id, faults_.FaultyWith(id, members));
    std::erase(members, id);
  }
  return members;
}

void Coordinator::LeaveOut(const MemberId& id, const std::vector<MemberId>& peers) {
  Peer& peer = peers_.at(id);
  const Duration wait = Doubled(options_.absence_min, peer.absences++, options_.absence_max);
  peer.absent_until = now_ + wait;
  peer.prelink_attempt = 0;
  const std::string reason =
      id.ToString() + (peers.empty() ? " cannot be connected" : " cannot reach " + Names(peers)) +
      (peer.report.problem.empty() ? "" : " (" + peer.report.problem + ")") + "; next try in " +
      std::to_string(std::chrono::duration_cast<milliseconds>(wait).count()) + " ms";
  out_.actions.emplace_back(GroupUnreachable{id, peers, wait, reason});
  if (out_.reason.empty()) out_.reason = reason;
}

// A joiner that was not linked in time.
void Coordinator::LeaveOutColdJoiner(const MemberId& id) {
  const Peer& joiner = peers_.at(id);
  std::vector<MemberId> unlinked;
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (it != peers_.end() && !IsPrelinked(joiner, it->second)) unlinked.push_back(m.id);
  }
  for (const MemberId& member : unlinked)
    SendCancelPrelink(member, *joiner.slot, joiner.prelink_attempt);
  LeaveOut(id, unlinked);
}

// Who is in an epoch that goes on without it must come out.
void Coordinator::HaltAbsent() {
  const bool changing = next_.epoch > current_.epoch;
  for (const auto& [id, peer] : peers_) {
    const MemberState s = peer.report.state;
    const bool inside =
        s == MemberState::kActive || s == MemberState::kPrepared || s == MemberState::kLinked;
    const bool stays = InCurrent(id) && (!changing || next_planned_);
    if (inside && !stays && !(changing && InNext(id)))
      Send(id, MakeHalt("the group goes on without this member for now"));
  }
}

// In an epoch of this coordinator, on the way to one, or in the one that it took over; of a later
// one, which the store has forgotten, what the member says of itself counts.
bool Coordinator::WasMember(const Report& report) const {
  const Epoch known = std::max({current_.epoch, next_.epoch, stored_ ? stored_->view.epoch : 0});
  if (report.epoch > known) return true;
  return InCurrent(report.id) || InNext(report.id) ||
         (stored_ && RankOf(stored_->view, report.id) >= 0);
}

Command Coordinator::MakeHalt(const std::string& reason) const {
  Command halt;
  halt.kind = CommandKind::kHalt;
  halt.epoch = last_epoch_;
  halt.reason = reason;
  halt.failed = failed_epoch_;
  halt.verdict = verdict_;
  return halt;
}

}  // namespace troupe::groups
