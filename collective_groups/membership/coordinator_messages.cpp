// What the Coordinator says and to whom, and its questions about who is where.
#include <algorithm>

#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {
namespace {

const LinkOffer* FindOffer(const std::vector<LinkOffer>& offers, uint32_t slot) {
  for (const LinkOffer& offer : offers) {
    if (offer.slot == slot) return &offer;
  }
  return nullptr;
}

}  // namespace

// Links between a joiner and the members are made while the members train.
void Coordinator::Prelink(const MemberId& id, Peer& joiner) {
  AssignSlot(joiner);
  joiner.prelink_attempt = ++prelink_attempt_;
  joiner.prelink_deadline = now_ + options_.prelink_timeout;
  SendPrelink(id, joiner, joiner);
  for (const ViewMember& m : current_.members) {
    if (const auto it = peers_.find(m.id); it != peers_.end())
      SendPrelink(m.id, it->second, joiner);
  }
}

void Coordinator::SendPrelink(const MemberId& to, const Peer& receiver, const Peer& joiner) {
  Command command;
  command.kind = CommandKind::kPrelink;
  command.plan = joiner.prelink_attempt;
  command.slot = *receiver.slot;
  const auto add = [&](const Peer& other) {
    command.relink.push_back(*other.slot);
    command.memories.push_back(other.report.memory);
    for (const LinkOffer& offer : other.report.prelinks) {
      if (offer.slot == *receiver.slot && offer.attempt == joiner.prelink_attempt) {
        command.offers.push_back({*other.slot, offer.attempt, offer.address});
      }
    }
  };
  if (&receiver == &joiner) {
    for (const ViewMember& m : current_.members) {
      if (const auto it = peers_.find(m.id); it != peers_.end()) add(it->second);
    }
  } else {
    add(joiner);
  }
  Send(to, std::move(command));
}

void Coordinator::SendCancelPrelink(const MemberId& to, uint32_t slot, uint64_t attempt) {
  Command command;
  command.kind = CommandKind::kCancelPrelink;
  command.plan = attempt;
  command.relink.push_back(slot);
  Send(to, std::move(command));
}

// Ahead-of-time offers to who is gone, or of an attempt that was given up.
void Coordinator::CancelStalePrelinks() {
  const auto wanted = [this](const Peer& from, bool member, const LinkOffer& offer) {
    return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
      const auto& [id, to] = entry;
      const Peer& joiner = member ? to : from;
      return to.slot == offer.slot && InCurrent(id) != member &&
             joiner.prelink_attempt == offer.attempt;
    });
  };
  for (const auto& [id, peer] : peers_) {
    for (const LinkOffer& offer : peer.report.prelinks) {
      if (!wanted(peer, InCurrent(id), offer)) SendCancelPrelink(id, offer.slot, offer.attempt);
    }
  }
}

// Hands fresh ahead-of-time offers to the other side at once instead of at the next repeat.
void Coordinator::ForwardPrelinks(const MemberId& from) {
  for (auto& [id, joiner] : peers_) {
    if (joiner.prelink_attempt == 0 || InCurrent(id) || IsWarm(joiner)) continue;
    if (id != from) {
      SendPrelink(id, joiner, joiner);
      continue;
    }
    for (const ViewMember& m : current_.members) {
      if (const auto it = peers_.find(m.id); it != peers_.end())
        SendPrelink(m.id, it->second, joiner);
    }
  }
}

// ---- sending ----

void Coordinator::Send(const MemberId& to, Command command) {
  out_.actions.emplace_back(SendCommand{to, std::move(command)});
}

void Coordinator::SendPrepare(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kPrepare;
  command.epoch = next_.epoch;
  command.planned = next_planned_;
  command.plan = plan_;
  command.boundary = plan_boundary_;
  command.view = next_;
  command.reason = next_.reason;
  command.failed = failed_epoch_;
  command.verdict = verdict_;
  const Peer& me = peers_.at(to);
  command.slot = *me.slot;
  for (const ViewMember& m : next_.members) {
    if (m.id == to) continue;
    const auto other = peers_.find(m.id);
    const bool ahead = !interrupted_ && other != peers_.end() && IsPrelinked(me, other->second);
    const bool up = ahead || links_.contains(MakeLink(*me.slot, m.slot));
    if (up) continue;
    command.relink.push_back(m.slot);
    command.memories.push_back(m.memory);
  }
  Send(to, std::move(command));
}

void Coordinator::SendInstall(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kInstall;
  command.epoch = next_.epoch;
  command.at_once = at_once_;
  command.view = next_;
  const uint32_t slot = *peers_.at(to).slot;
  command.slot = slot;
  for (const ViewMember& m : next_.members) {
    if (m.id == to) continue;
    if (const LinkOffer* offer = FindOffer(peers_.at(m.id).report.offers, slot)) {
      command.offers.push_back({m.slot, 0, offer->address});
    }
  }
  Send(to, std::move(command));
}

void Coordinator::SendActivate(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kActivate;
  command.epoch = current_.epoch;
  Send(to, std::move(command));
}

void Coordinator::SendPlan(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kPlan;
  command.epoch = current_.epoch;
  command.plan = plan_;
  command.boundary = plan_boundary_;
  Send(to, std::move(command));
}

void Coordinator::SendFail(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kFail;
  command.epoch = failed_epoch_;
  command.reason = verdict_;
  Send(to, std::move(command));
}

void Coordinator::SendAssist(const MemberId& to, const Progress& progress) {
  Command command;
  command.kind = CommandKind::kAssist;
  command.epoch = current_.epoch;
  command.progress = progress;
  Send(to, std::move(command));
}

void Coordinator::SendLeave(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kLeave;
  command.epoch = current_.epoch;
  command.plan = plan_;
  command.boundary = plan_boundary_;
  Send(to, std::move(command));
}

void Coordinator::SendBuildFirst(const MemberId& to) {
  Command command;
  command.kind = CommandKind::kBuildFirst;
  command.epoch = current_.epoch;
  Send(to, std::move(command));
}

void Coordinator::RepeatOutstanding() {
  const bool in_view = phase_ == GroupPhase::kPreparing || phase_ == GroupPhase::kLinking ||
                       phase_ == GroupPhase::kActive || phase_ == GroupPhase::kPlanning;
  if (in_view) HaltAbsent();
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (failed_epoch_ == 0 || it == peers_.end()) continue;
    const Report& r = it->second.report;
    if (r.state == MemberState::kActive && r.epoch == failed_epoch_ && !r.broken) SendFail(m.id);
  }
  switch (phase_) {
    case GroupPhase::kPreparing:
      for (const MemberId& id : MissingFrom(MemberState::kPrepared)) SendPrepare(id);
      if (next_planned_) {
        for (const ViewMember& m : current_.members) {
          if (!InNext(m.id) && peers_.contains(m.id)) SendLeave(m.id);
        }
      }
      break;
    case GroupPhase::kLinking:
      for (const MemberId& id : MissingFrom(MemberState::kLinked)) SendInstall(id);
      break;
    case GroupPhase::kPlanning:
      for (const ViewMember& m : current_.members) {
        if (const auto it = peers_.find(m.id);
            it != peers_.end() && it->second.report.plan != plan_)
          SendPlan(m.id);
      }
      break;
    case GroupPhase::kActive:
      for (const ViewMember& m : current_.members) {
        const auto it = peers_.find(m.id);
        if (it != peers_.end() && it->second.report.state == MemberState::kLinked)
          SendActivate(m.id);
        if (it != peers_.end() && plan_boundary_ == 0 && it->second.report.plan != plan_)
          SendPlan(m.id);
      }
      CancelStalePrelinks();
      for (auto& [id, peer] : peers_) {
        if (peer.prelink_attempt == 0 || InCurrent(id) || IsWarm(peer)) continue;
        SendPrelink(id, peer, peer);
        for (const ViewMember& m : current_.members) {
          if (const auto it = peers_.find(m.id); it != peers_.end())
            SendPrelink(m.id, it->second, peer);
        }
      }
      break;
    case GroupPhase::kForming:  // Who is in an epoch of an earlier coordinator must come out of it.
    case GroupPhase::kParked:
      for (const auto& [id, peer] : peers_) {
        const MemberState s = peer.report.state;
        if (s == MemberState::kReady || s == MemberState::kIdle || s == MemberState::kLeaving ||
            s == MemberState::kFinished) {
          continue;
        }
        Send(id, MakeHalt(waiting_for_));
      }
      break;
    default:
      break;
  }
}

// ---- who is where ----

// Once somebody finished, the others only have their last steps to end: they may do so in any
// number.
uint32_t Coordinator::MinMembers() const { return Finishing() ? 1 : options_.min_members; }

std::vector<MemberId> Coordinator::Survivors() const {
  std::vector<MemberId> ids;
  const auto add = [&](const View& view) {
    for (const ViewMember& m : view.members) {
      const auto it = peers_.find(m.id);
      const bool usable = it != peers_.end() && !finished_.contains(m.id) && !IsAbsent(it->second);
      if (usable && std::find(ids.begin(), ids.end(), m.id) == ids.end()) ids.push_back(m.id);
    }
  };
  add(current_);
  // Members of an epoch that was being formed; once somebody finished, newcomers have nothing left
  // to join. Where the store has lost the members that there were, nobody knows who is new.
  if (next_.epoch > current_.epoch && (!Finishing() || current_.epoch == 0)) add(next_);
  return ids;
}

bool Coordinator::MayEnter(const Peer& peer) const {
  return peer.report.state == MemberState::kReady && !IsLateFounder(peer) && !IsAbsent(peer);
}

bool Coordinator::IsLateFounder(const Peer& peer) const {
  return peer.report.founder && current_.epoch > 0;
}

std::vector<MemberId> Coordinator::ReadyOutside() const {
  std::vector<MemberId> ids;
  for (const auto& [id, peer] : peers_) {
    if (!InCurrent(id) && peer.report.state == MemberState::kReady) ids.push_back(id);
  }
  return ids;
}

std::vector<MemberId> Coordinator::Joiners() const {
  std::vector<MemberId> ids = ReadyOutside();
  std::erase_if(ids, [this](const MemberId& id) { return !MayEnter(peers_.at(id)); });
  return ids;
}

std::vector<MemberId> Coordinator::Candidates() const {
  std::vector<MemberId> ids;
  for (const auto& [id, peer] : peers_) {
    if (MayEnter(peer) && !peer.draining) ids.push_back(id);
  }
  return ids;
}

std::vector<MemberId> Coordinator::MissingFrom(MemberState wanted) const {
  std::vector<MemberId> missing;
  for (const ViewMember& m : next_.members) {
    const auto it = peers_.find(m.id);
    const bool there =
        it != peers_.end() && it->second.report.epoch == next_.epoch &&
        (it->second.report.state == wanted || it->second.report.state == MemberState::kLinked ||
         it->second.report.state == MemberState::kActive ||
         it->second.report.state == MemberState::kFinished);
    if (!there) missing.push_back(m.id);
  }
  return missing;
}

bool Coordinator::IsPrelinked(const Peer& a, const Peer& b) const {
  if (!a.slot || !b.slot) return false;
  const LinkOffer* at_a = FindOffer(a.report.linked, *b.slot);
  const LinkOffer* at_b = FindOffer(b.report.linked, *a.slot);
  return at_a != nullptr && at_b != nullptr && at_a->attempt == at_b->attempt;
}

bool Coordinator::IsWarm(const Peer& joiner) const {
  if (joiner.prelink_attempt == 0) return false;
  return std::all_of(current_.members.begin(), current_.members.end(), [&](const ViewMember& m) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end()) return true;
    const LinkOffer* link =
        it->second.slot ? FindOffer(joiner.report.linked, *it->second.slot) : nullptr;
    return link != nullptr && link->attempt == joiner.prelink_attempt &&
           IsPrelinked(joiner, it->second);
  });
}

void Coordinator::AssignSlot(Peer& peer) {
  if (peer.slot) return;
  std::set<uint32_t> used;
  for (const auto& [id, other] : peers_) {
    if (other.slot) used.insert(*other.slot);
  }
  for (const View* view : {&current_, &next_}) {
    for (const ViewMember& m : view->members) used.insert(m.slot);
  }
  uint32_t slot = 0;
  while (used.contains(slot)) ++slot;
  peer.slot = slot;
}

}  // namespace troupe::groups
