// The Coordinator's judgement of collectives: whether the members call the same ones, and who lets
// the others wait.
#include <algorithm>
#include <sstream>

#include "collective_groups/collectives/internal/recipe.h"
#include "collective_groups/membership/coordinator.h"

namespace troupe::groups {
namespace {

std::string Ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace

// How long a member stays where it is is measured between the first and the latest report of it,
// not up to now: a member that is not heard must not look like one that waits.
void Coordinator::NoteOperation(Peer& peer) {
  const Report& r = peer.report;
  const bool blocked = r.blocked && r.state == MemberState::kActive && !r.broken;
  const bool waits = blocked && !r.progress.partial;
  if (peer.at_epoch != r.epoch || peer.at != r.progress.sequence || peer.blocked != blocked ||
      peer.waits != waits) {
    peer.at_epoch = r.epoch;
    peer.at = r.progress.sequence;
    peer.blocked = blocked;
    peer.waits = waits;
    peer.at_reports = 0;
  }
  if (r.progress.joined && !peer.has_joined) peer.joined_at = now_;
  peer.has_joined = r.progress.joined;
  if (peer.at_reports == 0) peer.at_since = peer.moved_at = now_;
  if (peer.moved != r.moved) peer.moved_at = now_;
  peer.moved = r.moved;
  peer.at_until = now_;
  ++peer.at_reports;
}

bool Coordinator::ReconsiderOperations() {
  if (failed_epoch_ != 0) return false;  // The verdict is on its way.
  if (const std::string problem = AssistJoined(); !problem.empty()) {
    FailEpoch(problem);
    return true;
  }
  if (const std::string mismatch = FindMismatch(); !mismatch.empty()) {
    FailEpoch(mismatch);
    return true;
  }
  const Stall stall = FindStall();
  if (stall.missing.empty()) return false;
  const bool remove = !stall.busy && options_.stall_remove_after > Duration::zero() &&
                      stall.lasted >= options_.stall_remove_after;
  const bool told =
      stall_told_at_ != Time::Never() && now_ - stall_told_at_ < options_.stall_report_after;
  const bool tell = stall.lasted >= options_.stall_report_after && !told;
  if (!tell && !remove) return false;
  const std::string operation =
      peers_.at(current_.members[stall.waiting[0]].id).report.progress.operation;
  std::ostringstream reason;
  reason << Ranks(stall.waiting) << " waited for " << ToSeconds(stall.lasted) << " s in "
         << operation << " for " << Ranks(stall.missing);
  for (const int rank : stall.missing) reason << " " << current_.members[rank].id.ToString();
  out_.reason = reason.str();
  out_.actions.emplace_back(GroupStalled{current_, stall.missing, stall.waiting, operation,
                                         stall.lasted, remove, out_.reason});
  stall_told_at_ = now_;
  if (!remove) return false;
  RemoveStalled(stall.missing, out_.reason);
  return true;
}

// What a member that has not joined is in, or was in lately, at this place; sequence 0: unknown.
Progress Coordinator::OperationAt(uint64_t sequence) const {
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end() || it->second.at_epoch != current_.epoch) continue;
    const Report& report = it->second.report;
    const auto fits = [&](const Progress& p) {
      return p.sequence == sequence && !p.joined && !p.partial;
    };
    if (fits(report.progress)) return report.progress;
    const auto found = std::find_if(report.recent.begin(), report.recent.end(), fits);
    if (found != report.recent.end()) return *found;
  }
  return {};
}

// Tells those who have joined what the others are in, once per place of the sequence and again
// with each report that shows them still there.
std::string Coordinator::AssistJoined() {
  std::vector<std::pair<MemberId, Peer*>> joined;
  const Peer* last = nullptr;
  int last_rank = 0;
  bool everybody = true;
  for (size_t rank = 0; rank < current_.members.size(); ++rank) {
    const auto it = peers_.find(current_.members[rank].id);
    if (it == peers_.end() || it->second.report.state == MemberState::kFinished) continue;
    Peer& peer = it->second;
    const bool here = peer.waits && peer.at_epoch == current_.epoch;
    if (!here || !peer.report.progress.joined) {
      everybody = false;
      continue;
    }
    joined.emplace_back(it->first, &peer);
    if (last == nullptr || peer.joined_at >= last->joined_at) {
      last = &peer;
      last_rank = static_cast<int>(rank);
    }
  }
  if (joined.empty()) return "";
  const bool same = std::all_of(joined.begin(), joined.end(), [&](const auto& entry) {
    return entry.second->at == joined.front().second->at;
  });
  for (const auto& [id, peer] : joined) {
    Progress progress;
    if (everybody && same) {
      progress.sequence = peer->at;
      progress.recipe = std::string(kAllJoined) + " " + std::to_string(last_rank);
    } else {
      progress = OperationAt(peer->at);
      if (progress.sequence != 0 && progress.recipe.empty()) {
        return id.ToString() + " has joined, but others call " + progress.operation +
               ", which needs a share of everybody";
      }
      if (const auto root = RootOf(progress.recipe);
          root && static_cast<size_t>(*root) < current_.members.size() &&
          current_.members[static_cast<size_t>(*root)].id == id) {
        return id.ToString() + " has joined, but is the root of " + progress.operation +
               ", so that nobody has what is to be broadcast";
      }
    }
    if (progress.sequence != 0) SendAssist(id, progress);
  }
  // The others tell of their collectives at once from now on.
  for (const ViewMember& m : current_.members) {
    const auto it = peers_.find(m.id);
    if (it == peers_.end() || it->second.eager_epoch == current_.epoch) continue;
    it->second.eager_epoch = current_.epoch;
    SendAssist(m.id, Progress{});
  }
  return "";
}

// Members that are in the same collective of the epoch but call it differently. Who takes part
// without waiting for all, like the root of a broadcast, may have gone on: it says what it was in.
std::string Coordinator::FindMismatch() const {
  struct Side {
    uint64_t signature = 0;
    std::vector<int> ranks;
    std::string operation;
    bool decided = false;  // One of its ranks does not wait to be told by the others.
  };
  std::map<uint64_t, std::vector<Side>> sides;  // By sequence number.
  const auto add = [&](size_t rank, const Progress& progress, bool decided) {
    std::vector<Side>& at = sides[progress.sequence];
    auto side = std::find_if(at.begin(), at.end(),
                             [&](const Side& s) { return s.signature == progress.signature; });
    if (side == at.end()) side = at.insert(at.end(), {progress.signature, {}, progress.operation});
    side->ranks.push_back(static_cast<int>(rank));
    side->decided |= decided;
  };
  std::vector<std::pair<size_t, const Peer*>> here;
  for (size_t rank = 0; rank < current_.members.size(); ++rank) {
    const auto it = peers_.find(current_.members[rank].id);
    if (it == peers_.end() || it->second.at_epoch != current_.epoch) continue;
    const Peer& peer = it->second;
    here.emplace_back(rank, &peer);
    const Progress& progress = peer.report.progress;
    const Duration lasted = peer.at_until - peer.at_since;
    const bool sure = peer.at_reports >= 2 || lasted >= options_.mismatch_grace;
    if (peer.waits && sure && progress.signature != 0)
      add(rank, progress, !progress.compares || lasted >= options_.compare_grace);
  }
  for (const auto& [rank, peer] : here) {
    if (peer->report.state != MemberState::kActive) continue;  // It tells of the epoch before.
    for (const Progress& past : peer->report.recent) {
      const bool known = past.signature != 0 && !past.partial && !past.joined;
      if (known && sides.contains(past.sequence)) add(rank, past, true);
    }
  }
  for (const auto& [sequence, at] : sides) {
    if (at.size() < 2 || std::ranges::none_of(at, &Side::decided)) continue;
    std::string text = "the ranks called different collectives: ";
    for (size_t i = 0; i < at.size(); ++i) {
      text += (i == 0 ? "" : ", but ") + Ranks(at[i].ranks) + " " + at[i].operation;
    }
    return text + " (number " + std::to_string(sequence) + " of epoch " +
           std::to_string(current_.epoch) + ")";
  }
  return "";
}

// The members that are furthest on wait for those that have not begun the same collective. If some
// of the latter are in no collective at all, it is these; else the ones furthest behind.
Coordinator::Stall Coordinator::FindStall() const {
  std::vector<std::pair<int, const Peer*>> all;
  Stall stall;
  uint64_t newest = 0;
  for (size_t i = 0; i < current_.members.size(); ++i) {
    const auto it = peers_.find(current_.members[i].id);
    if (it == peers_.end()) continue;
    const Peer& peer = it->second;
    // Nobody that matters waits for who has finished, or has left at a planned boundary.
    if (peer.report.state != MemberState::kActive || peer.at_epoch != current_.epoch) continue;
    all.emplace_back(static_cast<int>(i), &peer);
    if (peer.waits) newest = std::max(newest, peer.at);
  }
  bool idle = false;
  uint64_t least = newest;
  for (const auto& [rank, peer] : all) {
    least = std::min(least, peer->at);
    idle |= peer->at < newest && !peer->blocked;
  }
  const Peer* first = nullptr;  // Who has waited longest.
  Time since{};                 // When the last of those missing came to where they are,
  Time until = Time::Never();   // and until when all of them are known to have been there.
  for (const auto& [rank, peer] : all) {
    if (peer->at >= newest) {
      if (!peer->waits) continue;
      stall.waiting.push_back(rank);
      if (first == nullptr || peer->at_since < first->at_since) first = peer;
    } else if (idle ? !peer->blocked : peer->at == least) {
      stall.missing.push_back(rank);
      stall.busy |= peer->blocked && !peer->waits;
      since = std::max(since, peer->at_since);
      until = std::min(until, peer->at_until);
    }
  }
  if (first == nullptr) stall.missing.clear();
  if (stall.missing.empty()) return stall;
  stall.lasted = std::min(first->at_until, until) - std::max(first->at_since, since);
  return stall;
}

// All are in the same collective, and between hosts nothing moves: no member is at fault that can
// be named, so all reconnect; a member that cannot is left out.
bool Coordinator::ReconsiderFrozen() {
  std::vector<int> waiting;
  Duration lasted = std::min(options_.frozen_after, options_.stall_report_after);
  bool between_hosts = false;
  const Peer* first = nullptr;
  for (size_t i = 0; i < current_.members.size(); ++i) {
    const auto it = peers_.find(current_.members[i].id);
    if (it == peers_.end() || finished_.contains(it->first)) return false;
    const Peer& peer = it->second;
    const bool here = peer.waits && peer.at_epoch == current_.epoch && !peer.report.progress.joined;
    if (!here || (first != nullptr && peer.at != first->at)) return false;
    if (peer.at_until - peer.moved_at < lasted) return false;
    if (first == nullptr) first = &peer;
    between_hosts |= peer.moved != 0;
    waiting.push_back(static_cast<int>(i));
  }
  if (!between_hosts) return false;
  lasted = first->at_until - first->moved_at;
  std::ostringstream reason;
  reason << "nothing has moved between the hosts for " << ToSeconds(lasted) << " s in "
         << first->report.progress.operation << "; the members reconnect";
  out_.reason = reason.str();
  out_.actions.emplace_back(GroupStalled{
      current_, {}, waiting, first->report.progress.operation, lasted, false, out_.reason});
  cause_at_ = Time::Never();
  NoteCause(EpochCause::kLostPeer, out_.reason);
  Propose(out_.reason, false, Survivors());
  return true;
}

bool Coordinator::ReconsiderFinished() {
  std::vector<int> finished;
  std::vector<int> waiting;
  const Peer* first = nullptr;
  uint64_t done = 0;  // The last collective that one of those who have finished took part in.
  for (size_t i = 0; i < current_.members.size(); ++i) {
    const auto it = peers_.find(current_.members[i].id);
    const bool returned = finished_.contains(current_.members[i].id);
    if (returned) finished.push_back(static_cast<int>(i));
    if (it == peers_.end() || it->second.at_epoch != current_.epoch) continue;
    if (returned) {
      done = std::max(done, it->second.report.progress.sequence);
    } else if (it->second.waits) {
      waiting.push_back(static_cast<int>(i));
      if (first == nullptr || it->second.at_since < first->at_since) first = &it->second;
    }
  }
  if (first == nullptr || first->at <= done) return false;
  const Duration lasted = first->at_until - first->at_since;
  if (lasted < options_.finish_grace) return false;
  const std::string operation = first->report.progress.operation;
  out_.reason = Ranks(waiting) + " waited in " + operation + " for " + Ranks(finished) +
                ", whose function has returned; the group goes on without";
  out_.actions.emplace_back(
      GroupStalled{current_, finished, waiting, operation, lasted, false, out_.reason});
  cause_at_ = Time::Never();
  NoteCause(EpochCause::kFinish, out_.reason);
  Propose(out_.reason, false, Survivors());
  return true;
}

void Coordinator::FailEpoch(const std::string& reason) {
  failed_epoch_ = current_.epoch;
  verdict_ = reason;
  cause_at_ = Time::Never();
  NoteCause(EpochCause::kMismatch, reason);
  out_.reason = reason;
  for (const ViewMember& m : current_.members) {
    if (peers_.contains(m.id)) SendFail(m.id);
  }
}

void Coordinator::RemoveStalled(const std::vector<int>& ranks, const std::string& reason) {
  for (const int rank : ranks) {
    const MemberId& id = current_.members[rank].id;
    out_.actions.emplace_back(FenceMember{id, reason});
    gone_.emplace(id, ExpelKind::kFenced);
    peers_.erase(id);
    faults_.Forget(id);
  }
  cause_at_ = Time::Never();  // A plan that it held up is not the cause.
  NoteCause(EpochCause::kStall, reason);
  if (!EndIfFinished()) Propose(reason, false, Survivors());
}

}  // namespace troupe::groups
