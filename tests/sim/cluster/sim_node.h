// A simulated node daemon, as the head knows it: what it runs, what it says.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "daemons/protocol/messages.h"
#include "tests/sim/cluster/sim_worker.h"

namespace troupe::daemons::sim {

class SimNode {
 public:
  SimNode(World* world, const std::string& id, uint64_t incarnation, double cpus);

  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] const std::string& host() const { return port_.host(); }
  [[nodiscard]] uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] double cpus() const { return cpus_; }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool noticed() const { return !notice_.empty(); }
  [[nodiscard]] SimPort& port() { return port_; }
  [[nodiscard]] std::vector<SimWorker*> workers() const;

  // With all it runs.
  void Die();
  void Notice(const std::string& why, Duration left);
  void OnWorkerEnded(SimWorker& worker, int signal);

 private:
  struct Entry {
    std::unique_ptr<SimWorker> worker;
    StartWorker order;
    uint64_t incarnation = 0;
    bool ended = false;
  };

  void Hello();
  void SayHello();
  void OnFrame(const std::string& frame);
  void OnStart(const StartWorker& start);
  void CheckStart(const StartWorker& start);
  void OnKill(const KillWorker& kill);
  void OnFenced(const NodeFenced& fenced);
  void Reap(const std::string& process, const std::string& how, int code);
  void Tell(const WorkerExited& exited);
  void Later(Duration delay, std::function<void()> fn);

  World* const world_;
  const std::string id_;
  uint64_t incarnation_;
  const double cpus_;
  SimPort port_;
  bool alive_ = true;
  std::map<std::string, Entry> workers_;
  NodeAnswer heard_;
  std::string notice_;
  Time notice_until_{};
  std::deque<std::string> ended_;
};

}  // namespace troupe::daemons::sim
