// What the parts of the cluster simulation share: network, hosts, store, and the checkers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "collective_groups/membership/view.h"
#include "runtime/loopback_transport.h"
#include "runtime/store.h"
#include "tests/sim/cluster/cluster_sim.h"
#include "tests/sim/cluster/sim_port.h"
#include "tests/sim/cluster/sim_state.h"

namespace troupe::daemons::sim {

class SimHead;
class SimNode;
class SimWorker;
class SimDriver;
class SimActors;
class SimTraining;

class World {
 public:
  explicit World(const ClusterOptions& options);
  ~World();

  ClusterResult Run();
  void CountSteps(ClusterResult& result) const;

  // ---- used by the parts ----
  [[nodiscard]] Time Now() const { return network_.Now(); }
  LoopbackNetwork& network() { return network_; }
  MemoryStore& store() { return store_; }
  EventLoop& loop() { return own_->loop(); }
  [[nodiscard]] bool Mutated(Mutation how) const { return options_.mutation == how; }
  double Uniform() { return std::uniform_real_distribution<>(0, 1)(random_); }
  Duration Between(Duration a, Duration b) {
    return a + Duration(static_cast<int64_t>(Uniform() * static_cast<double>((b - a).count())));
  }
  [[nodiscard]] std::string NewId();
  [[nodiscard]] int64_t NewPid() { return ++last_pid_; }
  [[nodiscard]] uint64_t NewLife() { return ++last_life_; }
  void Fail(const std::string& what);
  template <class... Parts>
  void Tell(const Parts&... parts) {
    if (options_.tell) Print((std::ostringstream() << ... << parts).str());
  }

  // ---- the network ----
  void Know(SimPort* port) { ports_[port->self()] = port; }
  void Forget(SimPort* port);
  // Whether what this host sends to that process does not arrive now.
  [[nodiscard]] bool IsCut(const std::string& host, const std::string& to) const;
  [[nodiscard]] bool AreCut(const std::string& host, const std::string& other) const {
    return cut_.contains({host, other}) || cut_.contains({other, host});
  }
  void HoldOrLose(SimPort* port, const std::string& to, std::string frame);

  // ---- processes ----
  void HeadDies(bool between_writes);
  void NodeDies(SimNode& node);
  void Bury(std::unique_ptr<SimWorker> worker);
  [[nodiscard]] std::vector<SimWorker*> Workers() const;
  // Null: there is none of this name.
  [[nodiscard]] const SimNode* FindNode(const std::string& id) const;

  // ---- training ----
  // Of the run, or of a collective group.
  [[nodiscard]] SimTraining& training(const std::string& name) { return *trainings_.at(name); }
  // Those that this actor takes part in.
  [[nodiscard]] std::vector<SimTraining*> TrainingsOf(const std::string& actor) const;
  // Whether somebody is or was cut off or stopped, and leases may not be over.
  [[nodiscard]] bool Disturbed() const;
  // Whether the store may lack what a head has written: it was harmed, or all comes to its end.
  [[nodiscard]] bool StoreMayLack() const { return Now() < store_harmed_ || ends_; }
  void OnDone(const std::string& state, const std::string& reason);  // The driver is told so.

  const ClusterOptions options_;
  ClusterResult result_;

 private:
  void Print(const std::string& what);
  void StartHead();
  void StartNode(size_t host, bool same_run_dir);
  void Chaos();
  void Disturb(double dice);
  void Cut();
  void Mend(const std::string& host);
  void RetrySteps();
  void KillSomeWorker();
  void DisturbNode();
  void DisturbHead();
  void DisturbStore();
  void Ask();
  void Heal();
  [[nodiscard]] std::string NotSettled();
  [[nodiscard]] std::string ProcessLeft();
  [[nodiscard]] std::string KeyLeft();
  // Until it returns nothing, and has done so for a while.
  bool Await(Duration limit, const std::function<std::string()>& what, const char* name,
             Duration hold = Duration::zero());
  void Stop();  // The run.
  void CheckProcesses();
  void CheckResults();

  LoopbackNetwork network_;
  SimClock clock_{&network_};
  MemoryStore store_{&clock_};
  std::mt19937_64 random_;
  std::unique_ptr<Transport> own_;
  std::map<std::string, SimPort*> ports_;
  std::set<std::pair<std::string, std::string>> cut_;  // Hosts.
  bool cut_holds_ = false;  // What is sent meanwhile arrives when it is mended.
  struct Late {
    std::string from;
    uint64_t life = 0;
    std::string to;
    std::string frame;
  };
  void SendLate(Late late);
  std::vector<Late> late_;
  // Before the processes, whose members leave them.
  std::map<std::string, std::unique_ptr<SimTraining>> trainings_;
  std::unique_ptr<SimHead> head_;
  std::vector<std::unique_ptr<SimHead>> dead_heads_;
  std::map<size_t, std::unique_ptr<SimNode>> nodes_;  // By host.
  std::vector<std::unique_ptr<SimNode>> dead_nodes_;
  std::vector<std::unique_ptr<SimWorker>> dead_;
  std::unique_ptr<SimDriver> driver_;
  std::unique_ptr<SimActors> actors_;
  std::map<size_t, Time> crowded_;           // Since when a host runs more than it has room for.
  std::map<size_t, uint64_t> incarnations_;  // What a node's run directory holds.
  Time disturbed_{};                         // When somebody was cut off or stopped last.
  bool chaos_ = true;
  bool ends_ = false;
  int64_t last_pid_ = 1000;
  uint64_t last_life_ = 0;
  Time store_harmed_{};  // Until then the head is not to be killed: it alone knows all.
};

}  // namespace troupe::daemons::sim
