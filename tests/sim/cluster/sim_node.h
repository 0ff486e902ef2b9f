// A simulated node daemon: the real NodeCore, and processes that are simulated workers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemons/node/core/node_core.h"
#include "daemons/protocol/messages.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {

class SimNode {
 public:
  SimNode(World* world, const std::string& id, uint64_t incarnation, double cpus);

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::string& host() const { return port_.host(); }
  [[nodiscard]] uint64_t incarnation() const { return core_.incarnation(); }
  [[nodiscard]] double cpus() const { return cpus_; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool noticed() const { return !core_.notice().kind.empty(); }
  [[nodiscard]] SimPort& port() { return port_; }
  [[nodiscard]] std::vector<SimWorker*> workers() const;

  // With all it runs.
  void Die();
  void Notice(const std::string& why, Duration left);
  void OnWorkerEnded(SimWorker& worker, int signal);

 private:
  struct Entry {
    // None: a process that was started ahead, and had ended when it was given its work.
    std::unique_ptr<SimWorker> worker;
    StartWorker order;
    uint64_t incarnation = 0;
    bool killed = false;
  };
  // What the head was told of a process, and how often.
  struct Told {
    int deaths = 0;
    int ends = 0;
  };

  void Hello();
  void Act();
  void Act(const TellHead& tell);
  void Act(const StartProcess& start);
  void Act(const SignalProcess& signal);
  void Act(const GiveUpSpares& give_up);
  void Act(const BeginIncarnation& begin);
  void Act(const EndNode& end);
  void Act(const Warn& warn);
  void CheckStart(const StartWorker& start);
  void CheckFence();
  void CheckEnd(const Entry& entry, bool began);
  void Reap(const std::string& process, const ProcessEnd& end);
  void Later(Duration delay, std::function<void()> fn);

  World* const world_;
  const std::string id_;
  const double cpus_;
  SimPort port_;
  NodeCore core_;
  bool alive_ = true;
  Time heard_;   // The head.
  Time looked_;  // For that.
  std::map<std::string, Entry> workers_;
  std::map<std::string, Told> told_;
};

}  // namespace troupe::daemons::sim
