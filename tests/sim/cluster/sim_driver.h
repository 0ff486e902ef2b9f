// A simulated driver: submits a run, asks for its events, and checks what it is told.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemons/protocol/messages.h"
#include "tests/sim/cluster/sim_cluster.h"

namespace troupe::daemons::sim {

class SimDriver {
 public:
  explicit SimDriver(World* world);

  void Submit();
  // Repeated until it is answered.
  void Command(RunCommand command);
  // It says so to the head, or nothing, and is not there any more.
  void Leave(bool says_so);
  [[nodiscard]] bool submitted() const { return submitted_; }
  [[nodiscard]] uint32_t target() const { return target_; }
  [[nodiscard]] bool asking() const { return !asked_.empty(); }
  [[nodiscard]] const std::vector<std::string>& members() const { return members_; }
  [[nodiscard]] uint64_t epoch() const { return epoch_; }
  [[nodiscard]] const std::optional<std::string>& done() const { return done_; }
  [[nodiscard]] const std::map<std::string, std::string>& results() const { return results_; }
  [[nodiscard]] const std::string& last() const { return last_; }

 private:
  void Beat();
  void Repeat(uint64_t request);
  void OnFrame(const std::string& frame);
  void OnReply(const DriverReply& reply);
  void OnEvents(RunEvents batch);
  void Take(const RunEvent& event);
  void SendSubscribe(bool lost);

  World* const world_;
  SimPort port_;
  bool submitted_ = false;
  bool left_ = false;
  uint64_t next_request_ = 1;
  std::map<uint64_t, std::pair<std::string, RunCommand>> asked_;  // The frame, and what it asks.
  uint32_t target_;
  std::string log_;
  uint64_t next_ = 0;
  bool asked_lost_ = false;
  std::vector<std::string> members_;  // Of the newest epoch.
  uint64_t epoch_ = 0;
  std::optional<std::string> done_;
  std::map<std::string, std::string> results_;  // By worker.
  std::string last_;                            // For people.
};

}  // namespace troupe::daemons::sim
