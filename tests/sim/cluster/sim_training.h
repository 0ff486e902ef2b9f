// One collective group of the simulated cluster: its members' steps complete together, and what
// they commit is looked at.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "collective_groups/membership/view.h"
#include "runtime/clock.h"
#include "tests/sim/cluster/sim_state.h"

namespace troupe::daemons::sim {

class World;
class SimMember;

class SimTraining {
 public:
  // `group`: as frames name it. `fixed`: each step needs so many members, and they have no state to
  // hand on; 0: it is elastic, and they have.
  SimTraining(World* world, std::string group, uint32_t fixed = 0);

  [[nodiscard]] const std::string& group() const { return group_; }
  [[nodiscard]] bool elastic() const { return fixed_ == 0; }
  void Add(SimMember* member);
  void Remove(SimMember* member);
  // Null: there is none, or it has ended.
  [[nodiscard]] SimMember* Find(const groups::MemberId& id) const;

  void EnterStep(const SimMember& member, const groups::View& view, uint64_t step);
  void LeaveSteps(const SimMember& member);
  // Hands on the state of an epoch's source.
  void Sync(SimMember& member, const groups::View& view);
  // Completes the steps that all members have entered, if bytes get from each to each.
  void RetrySteps();
  void OnCommitted(const SimMember& member);
  void OnActivated(const SimMember& member, const groups::View& view);

  // At which version its members return.
  [[nodiscard]] uint64_t finish_at() const { return finish_at_; }
  // In some steps from now.
  void FinishSoon();
  void Raise();
  [[nodiscard]] groups::Epoch newest() const {
    return newest_.empty() ? 0 : newest_.rbegin()->second;
  }
  [[nodiscard]] uint64_t steps() const { return steps_; }
  [[nodiscard]] int lost() const { return lost_; }  // Times that nobody was left who trained.
  [[nodiscard]] bool trains() const;
  // What keeps `size` members from training in one epoch; empty: nothing.
  [[nodiscard]] std::string NotSettled(size_t size) const;

 private:
  // A group that was made again under its name begins with the first epoch.
  using Era = std::pair<uint64_t, groups::Epoch>;  // Its life, and the epoch.
  [[nodiscard]] static Era EraOf(const SimMember& member);

  World* const world_;
  const std::string group_;
  const uint32_t fixed_;
  std::map<groups::MemberId, SimMember*> members_;
  std::map<Era, std::map<groups::MemberId, uint64_t>> entered_;
  std::map<Era, groups::View> views_;
  std::map<std::pair<Era, groups::MemberId>, SimState> synced_;
  std::map<std::pair<Era, uint64_t>, uint64_t> committed_;  // Hash, by version.
  std::map<uint64_t, groups::Epoch> newest_;                // By life.
  uint64_t finish_at_ = UINT64_MAX;
  uint64_t steps_ = 0;
  int lost_ = 0;
};

}  // namespace troupe::daemons::sim
