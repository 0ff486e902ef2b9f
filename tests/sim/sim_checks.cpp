// The invariants of the group simulation.
#include <algorithm>

#include "tests/sim/sim_head.h"
#include "tests/sim/sim_member.h"

namespace troupe::groups::sim {

void World::CheckMemberList(Epoch epoch, const View& view, const char* where) {
  std::vector<MemberId> ids;
  for (const ViewMember& m : view.members) ids.push_back(m.id);
  const auto [it, is_new] = lists_.try_emplace(epoch, ids);
  if (!is_new && it->second != ids)
    Fail(std::string("GM-2: two member lists of one epoch, seen at ") + where);
}

void World::CheckActivated(const SimMember& member, const View& view) {
  CheckMemberList(view.epoch, view, "activate");
  if (view.epoch <= member.last_activated())
    Fail("GM-1: a member entered an epoch that is not newer");
  for (const ViewMember& m : view.members) {
    if (!prepared_.contains({m.id, view.epoch}))
      Fail("GM-3: active before " + m.id.ToString() + " was prepared");
    if (!member.LinkedTo(m.id)) Fail("GM-3: active without a clean link to " + m.id.ToString());
  }
  if (static_cast<int>(view.members.size()) < options_.min_members && !any_finished_) {
    Fail("GM-6: active below the minimum");
  }
  if (!newest_.contains(view.epoch)) NoteNewest(view);
}

// What the members of a view hold when it begins, whatever the view says. Everybody is prepared, so
// nothing changes until all are active.
void World::NoteNewest(const View& view) {
  Newest& newest = newest_[view.epoch];
  for (const ViewMember& m : view.members) {
    const SimMember* member = Find(m.id);
    if (member == nullptr || !member->state().has_state) continue;
    // Of equal versions that counts which was committed with the group, not beside it.
    const uint64_t version = member->state().version;
    if (newest.any && (version < newest.version ||
                       (version == newest.version && member->last_activated() <= newest.epoch)))
      continue;
    newest = {true, version, member->state().hash, member->last_activated()};
  }
  // What was committed beyond that is lost; whoever brings it later was too late.
  std::erase_if(committed_,
                [&](const SimState& s) { return !newest.any || s.version > newest.version; });
  for (auto& [id, member] : members_) {
    const bool outside = RankOf(view, id) < 0 && member->carries();
    if (outside && member->state().has_state && member->state().version > newest.version)
      member->Kill();
  }
}

void World::ForgetEpochs(Epoch from) {
  const auto forget = [&](auto& map) { map.erase(map.lower_bound(from), map.end()); };
  forget(lists_);
  forget(newest_);
  forget(entered_);
  forget(mismatched_);
  called_.erase(called_.lower_bound({from, 0}), called_.end());
  forget(verdicts_);
  std::erase_if(synced_, [&](const auto& entry) { return entry.first.first >= from; });
  store_.newest = from - 1;
}

void World::CheckStored(const EpochRecord& record) {
  if (record.ended && !any_finished_) Fail("GM-14: the group ended, but no member has finished");
  stored_at_.push_back(Now());
  const Time first = Now() - seconds(1);
  while (stored_at_.front() < first) stored_at_.pop_front();
  const auto all = static_cast<int>(stored_at_.size());
  const auto since_healed =
      std::ranges::count_if(stored_at_, [this](Time at) { return at >= healed_; });
  result_.busiest = std::max(result_.busiest, all);
  if (since_healed > kEpochsPerSecondMax || all > kEpochsPerSecondFaults)
    Fail("GM-13: " + std::to_string(all) + " epochs in a second");
}

// Of the hosts between which the route was cut, the one with more members goes on, of equals the
// one without the youngest; whoever reaches both stays.
void World::CheckSides() {
  if (whole_.members.empty()) return Fail("GM-13: no route was cut");
  const std::string one = cut_.begin()->first;
  const std::string other = cut_.begin()->second;
  std::map<std::string, int> sizes;
  std::string youngest;
  for (const ViewMember& m : whole_.members) {
    ++sizes[m.host];
    if (m.host == one || m.host == other) youngest = m.host;
  }
  std::string left_out = sizes[one] < sizes[other] ? one : other;
  if (sizes[one] == sizes[other]) left_out = youngest;
  const View& now = heads_.back()->core().view();
  for (const ViewMember& m : whole_.members) {
    const bool stays = m.host != left_out;
    if ((RankOf(now, m.id) >= 0) == stays) continue;
    return Fail("GM-13: " + m.id.ToString() + " on " + m.host +
                (stays ? " was left out" : " went on") + " though there are " +
                std::to_string(sizes[one]) + " on " + one + " and " + std::to_string(sizes[other]) +
                " on " + other);
  }
}

void World::CheckSent(const Command& command) {
  const bool epoch_message =
      command.kind == CommandKind::kPrepare || command.kind == CommandKind::kInstall;
  if (!epoch_message) return;
  CheckMemberList(command.epoch, command.view, "send");
  const bool stored =
      std::any_of(store_.history.begin(), store_.history.end(), [&](const EpochRecord& r) {
        return r.view.epoch == command.epoch &&
               r.view.members.size() == command.view.members.size();
      });
  if (!stored) Fail("GM-7: a message of an epoch left before the epoch was stored");
}

void World::CheckSynced(const SimMember& member, const View& view) {
  const SimState& mine = member.state();
  const Newest& newest = newest_[view.epoch];
  if (newest.any && (mine.version != newest.version || mine.hash != newest.hash)) {
    return Fail("GM-8: " + member.id().ToString() + " began without the newest committed state");
  }
  for (const ViewMember& m : view.members) {
    const SimMember* other = Find(m.id);
    const bool comparable = other != nullptr && other->in_epoch() && other->synced() &&
                            other->epoch() == view.epoch && other->state().version == mine.version;
    if (comparable && other->state().hash != mine.hash)
      Fail("GM-8: members of an active view hold different state");
  }
}

void World::CheckLedger(const SimMember& member) {
  const SimState& s = member.state();
  const auto committed = static_cast<ptrdiff_t>(s.ledger.committed());
  const auto middle = s.counts.begin() + committed;
  const bool once = std::count(s.counts.begin(), middle, 1) == committed &&
                    std::count(middle, s.counts.end(), 0) == s.counts.end() - middle;
  if (!once || s.ledger.committed() != s.version * kBatch) {
    return Fail("GM-9: " + member.id().ToString() + " has samples that are in no step or in two");
  }
  CheckLeaving();
  result_.steps = std::max(result_.steps, s.version);
  if (!committed_.empty() && committed_.back().version >= s.version) return;
  if (committed_.size() >= 8) committed_.erase(committed_.begin());
  committed_.push_back(s);
}

void World::CheckStall(const View& view, const std::vector<int>& missing) {
  for (const int rank : missing) {
    const SimMember* member = Find(view.members[static_cast<size_t>(rank)].id);
    if (member != nullptr && member->usable() && member->hung_since() == Time::Never())
      Fail("GM-10: " + member->id().ToString() + " was put aside though it keeps nobody waiting");
  }
}

void World::CheckVerdict(Epoch epoch) {
  const auto differs = [epoch](const auto& step) {
    return step.first.first == epoch && step.second.size() > 1;
  };
  if (std::none_of(called_.begin(), called_.end(), differs))
    Fail("GM-11: collectives failed that do match");
}

void World::CheckNoticed() {
  for (const auto& [id, member] : members_) {
    if (!member->usable() || !member->in_epoch()) continue;
    const auto overdue = [&](Time since) {
      const Time settled = std::max({healed_, fenced_, calm_});
      return since != Time::Never() && Now() - std::max(since, settled) > kStallSlack;
    };
    const auto list = lists_.find(member->epoch());
    const bool awaited = list != lists_.end() && list->second.size() > 1;
    if (awaited && overdue(member->hung_since()))
      Fail("GM-10: " + id.ToString() + " keeps the others waiting and is not put aside");
    const auto mismatch = mismatched_.find(member->epoch());
    if (mismatch != mismatched_.end() && overdue(mismatch->second))
      Fail("GM-11: collectives that do not match were not noticed");
    if (list != lists_.end()) CheckReturned(*member, list->second);
  }
}

// Who was asked to leave does, once enough others are there that hold the state.
void World::CheckLeaving() {
  const SimHead* head = OnlyHead();
  const Coordinator* core = head == nullptr ? nullptr : &head->core();
  const bool settled =
      core != nullptr && core->phase() == GroupPhase::kActive && !chaos_ && !any_finished_;
  int staying = 0;
  bool leaving = false;
  for (const ViewMember& m : settled ? core->view().members : std::vector<ViewMember>()) {
    const SimMember* member = Find(m.id);
    const bool usable = member != nullptr && member->usable() && member->in_epoch() &&
                        member->synced() && member->hung_since() == Time::Never();
    if (core->IsDraining(m.id))
      leaving = true;
    else if (usable)
      ++staying;
  }
  if (!leaving || staying < options_.min_members) return void(needless_since_ = Time::Never());
  if (needless_since_ == Time::Never()) needless_since_ = Now();
  if (Now() - std::max({needless_since_, healed_, fenced_, calm_}) > kLeaveSlack)
    Fail("GM-17: a member that nobody needs is not let go");
}

// Who waits in a collective for a member whose function has returned goes on without it.
void World::CheckReturned(const SimMember& member, const std::vector<MemberId>& view) {
  if (member.waits_since() == Time::Never()) return;
  for (const MemberId& id : view) {
    const SimMember* other = Find(id);
    if (other == nullptr || other->returned_at() == Time::Never()) continue;
    const Time since =
        std::max({member.waits_since(), other->returned_at(), healed_, fenced_, calm_});
    if (Now() - since > kReturnSlack)
      Fail("GM-10: " + member.id().ToString() + " waits for " + id.ToString() +
           ", which has returned");
  }
}

}  // namespace troupe::groups::sim
