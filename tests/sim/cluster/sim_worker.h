// A simulated worker process: an actor that does nothing, or the production Member behind the
// worker's protocol and a training loop.
#pragma once

#include <optional>
#include <string>

#include "collective_groups/membership/member.h"
#include "daemons/protocol/messages.h"
#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

class SimWorker {
 public:
  SimWorker(World* world, SimNode* node, const StartWorker& start);

  [[nodiscard]] const std::string& process() const { return process_; }
  [[nodiscard]] const std::string& lease() const { return start_.lease; }
  [[nodiscard]] int64_t pid() const { return pid_; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool assigned() const { return core_.has_value() || !actor_.empty(); }
  [[nodiscard]] bool in_epoch() const { return alive_ && in_epoch_; }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool synced() const { return synced_; }
  [[nodiscard]] groups::Epoch epoch() const { return epoch_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] const std::optional<groups::MemberId>& id() const { return id_; }
  // That it hosts; empty: none.
  [[nodiscard]] const std::string& actor() const { return actor_; }
  [[nodiscard]] uint64_t actor_incarnation() const { return actor_incarnation_; }
  [[nodiscard]] const SimState& state() const { return state_; }
  [[nodiscard]] const std::string& host() const { return port_.host(); }
  [[nodiscard]] SimPort& port() { return port_; }
  [[nodiscard]] const SimPort& port() const { return port_; }

  void Raise() { raises_ = true; }  // Before its next step.
  // By a signal, or by its own end; its node notices.
  void Die(int signal);
  void Freeze(bool frozen) { port_.Freeze(frozen); }
  void Feed(const groups::MemberEvent& event);
  void TakeState(const SimState& state) { state_ = state; }
  void Synced();
  void CompleteStep(groups::Epoch epoch, uint64_t step);
  void Later(Duration delay, std::function<void()> fn);

 private:
  void Hello(bool again);
  void OnFrame(const std::string& frame);
  void OnAssignment(const Assignment& assignment);
  void Handle(const groups::MemberAction& action);
  void ArmTimer();
  void StartEpoch(const groups::View& view);
  void NextStep();
  void Return();
  void Unwind();
  void UnwindSoon();
  void SayResult(const std::string& payload, bool ok = true);

  World* const world_;
  SimNode* const node_;
  const StartWorker start_;
  const std::string process_;
  const int64_t pid_;
  SimPort port_;
  bool alive_ = true;
  bool released_ = false;
  Assignment assignment_;
  std::string actor_;
  uint64_t actor_incarnation_ = 0;
  std::optional<groups::MemberId> id_;
  std::optional<groups::Member> core_;
  TimerId timer_ = kNoTimer;
  bool in_epoch_ = false;
  bool synced_ = false;
  bool in_step_ = false;
  bool raises_ = false;
  bool over_ = false;  // Its function has returned, or it was sent away.
  groups::Epoch epoch_ = 0;
  groups::View view_;
  uint64_t step_ = 0;
  uint64_t generation_ = 0;
  SimState state_;
  int rank_ = -1;
};

}  // namespace troupe::daemons::sim
