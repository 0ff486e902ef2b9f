#include "tests/sim/cluster/sim_training.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/cluster/sim_cluster.h"
#include "tests/sim/cluster/sim_member.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {
namespace {

constexpr size_t kCommitsKept = 10'000;
constexpr uint64_t kLastSteps = 20;

}  // namespace

SimTraining::SimTraining(World* world, std::string group, uint32_t fixed)
    : world_(world), group_(std::move(group)), fixed_(fixed) {}

void SimTraining::Add(SimMember* member) {
  if (!members_.try_emplace(member->id(), member).second)
    world_->Fail("two processes are member " + member->id().ToString() + " of " + group_);
}

void SimTraining::Remove(SimMember* member) {
  const auto it = members_.find(member->id());
  if (it != members_.end() && it->second == member) members_.erase(it);
}

SimMember* SimTraining::Find(const groups::MemberId& id) const {
  const auto it = members_.find(id);
  return it == members_.end() ? nullptr : it->second;
}

SimTraining::Era SimTraining::EraOf(const SimMember& member) {
  return {member.life(), member.epoch()};
}

// ---- steps ----

void SimTraining::EnterStep(const SimMember& member, const groups::View& view, uint64_t step) {
  entered_[EraOf(member)][member.id()] = step;
  views_[EraOf(member)] = view;
  RetrySteps();
}

void SimTraining::LeaveSteps(const SimMember& member) {
  if (const auto it = entered_.find(EraOf(member)); it != entered_.end())
    it->second.erase(member.id());
}

void SimTraining::RetrySteps() {
  std::erase_if(entered_, [](const auto& entry) { return entry.second.empty(); });
  for (auto& [era, entered] : entered_) {
    const groups::View& view = views_[era];
    uint64_t step = 0;
    bool all = !view.members.empty();
    std::vector<SimMember*> members;
    for (const groups::ViewMember& m : view.members) {
      const auto it = entered.find(m.id);
      SimMember* member = it == entered.end() ? nullptr : Find(m.id);
      all = all && member != nullptr && (members.empty() || it->second == step);
      if (!all) break;
      step = it->second;
      for (const SimMember* other : members)
        all = all && !world_->AreCut(other->at().host(), member->at().host());
      members.push_back(member);
    }
    if (!all) continue;
    if (fixed_ > 0 && members.size() != fixed_)
      world_->Fail(group_ + " steps with " + std::to_string(members.size()) + " members");
    entered.clear();
    for (SimMember* member : members) {
      member->Later(world_->Between(microseconds(20), milliseconds(2)),
                    [member, e = era.second, step, g = member->generation()] {
                      if (member->generation() == g) member->CompleteStep(e, step);
                    });
    }
  }
}

void SimTraining::Sync(SimMember& member, const groups::View& view) {
  if (fixed_ > 0) {
    uint64_t most = 0;  // What others have done without it is not done again.
    for (const groups::ViewMember& m : view.members) most = std::max(most, m.version);
    member.TakeState({most, 0, true});
    return member.Synced();
  }
  const auto source = static_cast<size_t>(groups::SourceRank(view));
  const std::vector<int> lacking = groups::RanksWithoutState(view);
  const bool lacks = std::ranges::find(lacking, groups::RankOf(view, member.id())) != lacking.end();
  const groups::MemberId from_id = view.members[source].id;
  member.Later(world_->Between(microseconds(50), milliseconds(5)), [this, &member, from_id, lacks,
                                                                    view, g = member.generation()] {
    if (!member.in_epoch() || member.generation() != g) return;
    if (lacks) {
      const SimMember* from = Find(from_id);
      const bool gone = from == nullptr || world_->AreCut(member.at().host(), from->at().host()) ||
                        from->epoch() > view.epoch ||
                        (from->epoch() == view.epoch && !from->in_epoch());
      if (!gone && (from->epoch() < view.epoch || !from->synced())) return Sync(member, view);
      if (gone) {
        member.Feed(groups::CommunicatorBroke{view.epoch, "state transfer broke"});
        return;
      }
      if (!world_->Mutated(Mutation::kNoStateSent))
        member.TakeState(synced_[{EraOf(member), from_id}]);
    }
    if (member.id() == from_id) synced_[{EraOf(member), from_id}] = member.state();
    member.Synced();
  });
}

// ---- what must hold ----

void SimTraining::OnCommitted(const SimMember& member) {
  const SimState& state = member.state();
  steps_ = std::max(steps_, state.version);
  if (fixed_ > 0) return;
  const auto [it, fresh] = committed_.try_emplace({EraOf(member), state.version}, state.hash);
  if (!fresh && it->second != state.hash) world_->Fail("members of one epoch diverge");
  while (committed_.size() > kCommitsKept) committed_.erase(committed_.begin());
}

void SimTraining::OnActivated(const SimMember& member, const groups::View& view) {
  groups::Epoch& newest = newest_[member.life()];
  if (view.epoch <= newest) return;
  newest = view.epoch;
  const bool any = std::ranges::any_of(view.members, [](const auto& m) { return m.has_state; });
  if (any || steps_ == 0) return;
  ++lost_;
  if (world_->Disturbed()) return;
  for (const auto& [id, other] : members_) {
    if (other->state().has_state && !other->over() && other->life() == member.life())
      world_->Fail("epoch " + std::to_string(view.epoch) + " of " + group_ +
                   " begins from nothing, while " + id.ToString() + " holds the state");
  }
}

void SimTraining::FinishSoon() {
  finish_at_ = 0;
  for (const auto& [id, member] : members_)
    finish_at_ = std::max(finish_at_, member->state().version + kLastSteps);
}

void SimTraining::Raise() {
  for (const auto& [id, member] : members_) {
    if (member->in_epoch()) member->Raise();
  }
}

bool SimTraining::trains() const {
  return std::ranges::any_of(members_, [](const auto& m) { return m.second->in_epoch(); });
}

std::string SimTraining::NotSettled(size_t size) const {
  for (const auto& [id, member] : members_) {
    const std::string who = id.ToString() + " of " + group_;
    if (!member->in_epoch()) return who + " does not train";
    if (member->life() != members_.begin()->second->life()) return who + " is in another group";
    if (member->epoch() != newest_.at(member->life())) return who + " is in an older epoch";
  }
  if (members_.size() == size) return "";
  return std::to_string(members_.size()) + " train in " + group_ + ", of " + std::to_string(size);
}

}  // namespace troupe::daemons::sim
