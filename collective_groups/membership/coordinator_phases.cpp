// The Coordinator's transitions: what it does on entering each phase.
#include <algorithm>
#include <tuple>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {
namespace {

constexpr uint64_t kPlanMarginMax = 1 << 20;

}  // namespace

// ---- transitions ----

void Coordinator::Propose(const std::string& reason, bool planned, std::vector<MemberId> members) {
  if (members.size() < MinMembers() || members.empty()) {
    Park(reason + "; " + std::to_string(members.size()) + " left, below the minimum of " +
         std::to_string(options_.min_members));
    return;
  }
  SortByRank(members);
  members.resize(std::min<size_t>(members.size(), kGroupMembersMax));
  const Duration delay = planned ? Duration::zero() : DelayBeforeEpoch(members);
  next_ = View{options_.group, ++last_epoch_, {}, reason};
  for (const MemberId& id : members) {
    Peer& peer = peers_.at(id);
    if (peer.seniority == 0) peer.seniority = next_seniority_++;
    AssignSlot(peer);
    next_.members.push_back(
        {id, peer.seniority, *peer.slot, peer.report.host, peer.report.memory, 0, false});
  }
  next_planned_ = planned;
  if (!planned) interrupted_ = true;
  broken_since_ = Time::Never();
  out_.reason = "epoch " + std::to_string(next_.epoch) + " with " + std::to_string(members.size()) +
                " members: " + reason;
  if (delay == Duration::zero()) return Persist();
  phase_ = GroupPhase::kPersisting;  // It changes like one whose store does not answer.
  phase_deadline_ = Time::Never();
  store_retry_at_ = now_ + delay;
  waiting_for_ = "a short while before the same members try again: " + reason;
}

void Coordinator::SortByRank(std::vector<MemberId>& members) const {
  const auto key = [&](const MemberId& id) {
    const Peer& peer = peers_.at(id);
    const auto place = std::find(options_.order.begin(), options_.order.end(), id.actor);
    return std::tuple(place - options_.order.begin(),
                      peer.seniority == 0 ? UINT64_MAX : peer.seniority, peer.arrival);
  };
  std::sort(members.begin(), members.end(),
            [&](const MemberId& a, const MemberId& b) { return key(a) < key(b); });
}

void Coordinator::BeginPreparing() {
  phase_ = GroupPhase::kPreparing;
  phase_deadline_ = now_ + options_.prepare_timeout;
  if (interrupted_) KeepCleanLinks();
  for (const ViewMember& m : next_.members) SendPrepare(m.id);
  if (next_planned_) {
    for (const ViewMember& m : current_.members) {
      if (!InNext(m.id) && peers_.contains(m.id)) SendLeave(m.id);
    }
  }
}

// A link that may have carried half an operation is made anew. Memory is not: what is in it belongs
// to the epoch that is stamped on it.
void Coordinator::KeepCleanLinks() {
  std::map<uint32_t, std::string> memories;  // By slot, of those that were there and stay.
  for (const ViewMember& m : current_.members) {
    if (InNext(m.id)) memories[m.slot] = m.memory;
  }
  std::erase_if(links_, [&](const Link& link) {
    const std::string& memory = memories[link.first];
    return memory.empty() || memory != memories[link.second];
  });
}

void Coordinator::BeginLinking() {
  phase_ = GroupPhase::kLinking;
  phase_deadline_ = now_ + options_.link_timeout;
  std::optional<uint64_t> newest;  // Of those that were members before.
  for (const ViewMember& m : next_.members) {
    const Report& r = peers_.at(m.id).report;
    if (InCurrent(m.id) && r.has_state) newest = std::max(newest.value_or(0), r.version);
  }
  for (ViewMember& m : next_.members) {
    const Report& r = peers_.at(m.id).report;
    m.version = r.version;
    // A member that was left out may hold a step of the same number that was done with others.
    m.has_state = r.has_state && (InCurrent(m.id) || !newest || r.version > *newest);
  }
  at_once_ = std::all_of(next_.members.begin(), next_.members.end(), [&](const ViewMember& m) {
    return peers_.at(m.id).report.offers.empty();
  });
  for (const ViewMember& m : next_.members) SendInstall(m.id);
  ReleaseDrained();
}

void Coordinator::BeginActive() {
  const int old_size = static_cast<int>(current_.members.size());
  current_ = next_;
  phase_ = GroupPhase::kActive;
  phase_deadline_ = Time::Never();
  waiting_for_.clear();
  interrupted_ = false;
  links_.clear();
  faults_.Connected(current_);
  settled_at_ = now_;
  if (next_planned_) proposals_ = 0;  // Those who agreed on it were in a group that works.
  for (const ViewMember& a : current_.members) {
    Peer& peer = peers_.at(a.id);
    peer.prelink_attempt = 0;
    peer.absences = 0;
    peer.ready_since = Time::Never();
    for (const ViewMember& b : current_.members) {
      if (a.slot < b.slot) links_.insert({a.slot, b.slot});
    }
  }
  for (auto& [id, peer] : peers_) {
    if (!InCurrent(id)) peer.prelink_attempt = 0;  // Its links must match the new members.
  }
  for (const ViewMember& m : current_.members) {
    if (peers_.at(m.id).report.state == MemberState::kLinked) SendActivate(m.id);
  }
  out_.actions.emplace_back(EpochActivated{
      current_, cause_kind_, old_size,
      cause_at_ == Time::Never() ? Duration::zero() : now_ - cause_at_, next_planned_});
  cause_at_ = Time::Never();
  broken_since_ = Time::Never();
  parked_since_ = Time::Never();
  failed_epoch_ = 0;
  verdict_.clear();
  plan_round_ = 0;
}

void Coordinator::BeginPlanning(const std::string& reason) {
  phase_ = GroupPhase::kPlanning;
  phase_deadline_ = now_ + options_.plan_timeout;
  plan_round_ = 0;
  out_.reason = "planning a step boundary: " + reason;
  StartPlanRound();
}

void Coordinator::StartPlanRound() {
  uint64_t newest = 0;
  for (const ViewMember& m : current_.members)
    newest = std::max(newest, peers_.at(m.id).report.boundary);
  // A refusal means that steps pass faster than messages: look further ahead each time.
  const uint64_t margin =
      std::min(kPlanMarginMax, options_.plan_margin << std::min<uint64_t>(plan_round_, 20));
  ++plan_round_;
  ++plan_;
  plan_boundary_ = newest + margin;
  for (const ViewMember& m : current_.members) SendPlan(m.id);
}

void Coordinator::Park(const std::string& reason) {
  // The epoch that is halted: whatever members may be in or on their way to.
  for (auto& [id, peer] : peers_) {
    if (!InCurrent(id) && !InNext(id)) continue;
    Send(id, MakeHalt(reason));
  }
  phase_ = GroupPhase::kParked;
  phase_deadline_ = Time::Never();
  parked_since_ = now_;
  interrupted_ = true;
  links_.clear();
  waiting_for_ = reason;
  out_.actions.emplace_back(GroupParked{reason});
  out_.reason = "parked: " + reason;
}

void Coordinator::End(GroupPhase phase) {
  phase_ = phase;
  phase_deadline_ = Time::Never();
  store_retry_at_ = Time::Never();
  std::vector<MemberId> left;
  for (const auto& [id, peer] : peers_) left.push_back(id);
  for (const MemberId& id : left) {
    if (!finished_.contains(id)) Expel(id, ExpelKind::kEnded, "the group ended");
  }
}

// True (and ended) if every member of the last view finished or is gone, and at least one finished.
bool Coordinator::EndIfFinished() {
  if (!Finishing()) return false;
  if (current_.epoch == 0) {  // The store has lost the group's record: its members still know.
    // Others may yet be heard that go on.
    if (phase_ == GroupPhase::kForming && now_ < phase_deadline_) return false;
    for (const auto& [id, peer] : peers_) {
      if (peer.report.epoch > 0 && !finished_.contains(id)) return false;
    }
  }
  for (const ViewMember& m : current_.members) {
    if (peers_.contains(m.id) && !finished_.contains(m.id)) return false;
  }
  PersistEnd();
  return true;
}

void Coordinator::Expel(const MemberId& id, ExpelKind kind, const std::string& reason) {
  Command command;
  command.kind = CommandKind::kExpel;
  command.expel = kind;
  command.reason = reason;
  Send(id, std::move(command));
  gone_.emplace(id, kind);
  peers_.erase(id);
  faults_.Forget(id);
}

}  // namespace troupe::groups
