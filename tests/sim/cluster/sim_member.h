// A member of a collective group in a simulated process: the production Member, and a loop that
// takes it from step to step.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "collective_groups/membership/member.h"
#include "tests/sim/cluster/sim_state.h"

namespace troupe::daemons::sim {

class World;
class SimTraining;
class SimWorker;

class SimMember {
 public:
  enum class Over {
    kReturned,  // Its function has.
    kRaised,
    kFenced,  // It was sent away, and may come back as another member;
    kEnded,   // it may not.
  };
  using OnOver = std::function<void(Over)>;

  // `life`: of the group. `state`: what it has kept of an earlier membership.
  SimMember(World* world, SimTraining* training, SimWorker* at, groups::MemberId id, uint64_t life,
            const SimState& state, OnOver over);
  ~SimMember();
  SimMember(const SimMember&) = delete;
  SimMember& operator=(const SimMember&) = delete;

  void Begin();
  // Its process has ended, or this membership.
  void Stop();
  [[nodiscard]] const groups::MemberId& id() const { return id_; }
  [[nodiscard]] uint64_t life() const { return life_; }
  [[nodiscard]] const SimWorker& at() const { return *at_; }
  [[nodiscard]] bool in_epoch() const { return in_epoch_ && !stopped_; }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool synced() const { return synced_; }
  [[nodiscard]] groups::Epoch epoch() const { return epoch_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const SimState& state() const { return state_; }

  void Raise() { raises_ = true; }  // Before its next step.
  void Feed(const groups::MemberEvent& event);
  void TakeState(const SimState& state) { state_ = state; }
  void Synced();
  void CompleteStep(groups::Epoch epoch, uint64_t step);
  void Later(Duration delay, std::function<void()> fn);

 private:
  void Handle(const groups::MemberAction& action);
  void Link(const groups::LinkEpoch& link);
  void OnExpelled(const groups::Expelled& expelled);
  void ArmTimer();
  void StartEpoch(const groups::View& view);
  void NextStep();
  void UnwindSoon();
  void Unwind();
  void End(Over how);

  World* const world_;
  SimTraining* const training_;
  SimWorker* const at_;
  const groups::MemberId id_;
  const uint64_t life_;
  const OnOver on_over_;
  groups::Member core_;
  TimerId timer_ = kNoTimer;
  bool stopped_ = false;
  bool in_epoch_ = false;
  bool synced_ = false;
  bool in_step_ = false;
  bool raises_ = false;
  bool over_ = false;
  groups::Epoch epoch_ = 0;
  groups::View view_;
  uint64_t step_ = 0;
  uint64_t generation_ = 0;
  SimState state_;
  int rank_ = -1;
};

}  // namespace troupe::daemons::sim
