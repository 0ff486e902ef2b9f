// A simulated head: the production Coordinator with a store that answers late or not at all.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collective_groups/membership/coordinator.h"
#include "tests/sim/sim_world.h"

namespace troupe::groups::sim {

class SimHead {
 public:
  SimHead(World* world, std::string owner, std::optional<EpochRecord> record);
  void Receive(Report report);
  void Feed(const CoordinatorEvent& event);
  void Stop() { running_ = false; }
  [[nodiscard]] bool running() const { return running_; }
  [[nodiscard]] const Coordinator& core() const { return core_; }

 private:
  void Handle(const CoordinatorAction& action);
  void Persist(const PersistRecord& request);
  void Answer(const PersistRecord& request, bool lie);
  void NoteReused(Epoch epoch);
  void CheckReused();
  void CheckSilent(const MemberId& id);
  void CheckReleased(const MemberId& id);
  void SendTo(const MemberId& to, Command command);
  void ArmTimer();
  void OnTimer();

  World* const world_;
  const std::string owner_;
  Coordinator core_;
  TimerId timer_ = kNoTimer;
  bool running_ = true;
  std::map<MemberId, std::pair<Time, Report>> heard_;  // The last word of each member.
  std::vector<Report> known_;    // Before the last tick, which may have sent some away.
  std::set<MemberId> released_;  // Those who were drained.
  Epoch reused_ = 0;             // Not told to anybody yet.
};

}  // namespace troupe::groups::sim
