// A simulated worker: the production Member, and a training loop that shares samples through the
// production ledger.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collective_groups/membership/member.h"
#include "tests/sim/sim_world.h"

namespace troupe::groups::sim {

class SimMember {
 public:
  // With `carried`, it comes with state that the group had committed.
  SimMember(World* world, const MemberId& id, bool carries);

  void Kill() { alive_ = false; }
  void Pause(bool paused);
  // Its thread stops before the next collective, for ever or for a while.
  void HangNext(bool for_ever) { hang_next_ = for_ever ? 2 : 1; }
  void MismatchNext() { mismatch_next_ = true; }
  // Its function returns before the next collective, which the others wait in for it.
  void ReturnNext() { return_next_ = true; }
  // Until then its communicator breaks in every epoch, soon after the beginning.
  void BreakUntil(Time until) { breaks_until_ = until; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool paused() const { return paused_; }
  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] bool expelled() const { return expelled_; }
  [[nodiscard]] bool usable() const { return alive_ && !finished_ && !expelled_; }
  [[nodiscard]] Time hung_since() const { return hung_since_; }  // Never: it does not hang.
  // Never: it is in no collective.
  [[nodiscard]] Time waits_since() const { return in_step_ ? step_since_ : Time::Never(); }
  // Never: its function has not returned early.
  [[nodiscard]] Time returned_at() const { return returned_at_; }
  [[nodiscard]] const Member& core() const { return core_; }
  [[nodiscard]] const MemberId& id() const { return id_; }
  [[nodiscard]] bool in_epoch() const { return in_epoch_; }
  [[nodiscard]] bool synced() const { return synced_; }
  [[nodiscard]] Epoch epoch() const { return epoch_; }
  [[nodiscard]] Epoch last_activated() const { return last_activated_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] bool carries() const { return carries_ && last_activated_ == 0; }
  [[nodiscard]] std::string host() const;
  [[nodiscard]] std::string memory() const;
  void NoticeCut();  // The kernel gives up connections to hosts that cannot be reached.
  [[nodiscard]] bool LinkedTo(
      const MemberId& id) const;  // By a link that nothing was cut short on.
  [[nodiscard]] const SimState& state() const { return state_; }
  void TakeState(SimState state);
  void Synced();
  void CompleteStep(Epoch epoch, uint64_t step, const std::vector<SampleLedger::Share>& shares);
  void Feed(const MemberEvent& event);
  void Later(Duration delay, std::function<void()> fn);

 private:
  void Receive(std::string frame);
  void OnCommand(const Command& command);
  void Handle(const MemberAction& action);
  void ArmTimer();
  void StartEpoch(const View& view);
  void NextStep();
  void Return();
  void EnterStep();
  void SpoilLinks();
  [[nodiscard]] std::string Address(const MemberId& id) const;
  void UnwindSoon();
  void Unwind();
  void ReturnLate();
  [[nodiscard]] bool Reaches(const std::string& address) const;

  World* const world_;
  const MemberId id_;
  std::unique_ptr<Transport> transport_;
  Member core_;
  TimerId timer_ = kNoTimer;
  bool alive_ = true;
  bool paused_ = false;
  bool finished_ = false;
  bool expelled_ = false;
  bool carries_ = false;
  std::deque<std::function<void()>> held_;  // Work that arrived while stopped.
  std::set<std::string> links_;             // To whom this member is linked.
  // The training loop.
  bool in_epoch_ = false;  // The user's thread is inside an epoch.
  Epoch epoch_ = 0;
  View view_;
  uint64_t step_ = 0;  // Collectives entered in this epoch.
  SampleLedger::Share share_;
  bool in_step_ = false;
  SimState state_;
  bool synced_ = false;
  Epoch last_activated_ = 0;
  Epoch failed_ = 0;         // By a verdict.
  uint64_t generation_ = 0;  // Invalidates late completions after an unwind.
  int hang_next_ = 0;        // 1: for a while, 2: for ever.
  bool mismatch_next_ = false;
  bool return_next_ = false;
  Time breaks_until_{};
  Time hung_since_ = Time::Never();
  Time step_since_{};
  Time returned_at_ = Time::Never();
};

}  // namespace troupe::groups::sim
