// The fleet as the policy wants to see it, kept up from what the provider lists and what the head
// knows of each node.
//
//   listed --> launching --NodeUp--> up --Draining--> draining --Terminating--> terminating --> no
//   longer listed
//
// Thread: one. A pure core: the caller hands in the time.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "autoscaler/node_provider.h"
#include "autoscaler/plan.h"

namespace troupe {

inline constexpr Duration kNodeMissing = seconds(60);

class Fleet {
 public:
  // What the provider lists now: new nodes are launching, nodes that are gone are forgotten.
  void Update(Time now, const std::vector<ProviderNode>& listed);
  // The node registered with the head and has no work yet. Unknown ids are ignored by all of these.
  void NodeUp(Time now, const std::string& id);
  // `known`: the nodes that the head knows now. Those that were up and have been missing there for
  // kNodeMissing: their machines are still there, and nobody works on them. A head that was just
  // restarted knows none for a while.
  [[nodiscard]] std::vector<std::string> Lost(Time now, const std::set<std::string>& known);
  // Whether work runs on the node. Repeats do not move the time since when it is idle.
  void SetIdle(Time now, const std::string& id, bool idle);
  // A notice; a second one may only bring the deadline nearer.
  void Noticed(const std::string& id, Time deadline);
  // Word that it may be taken back, or the end of that.
  void SetAtRisk(const std::string& id, bool at_risk);
  // It drains, and nobody here has asked for that: it has a notice of its own, or an operator wants
  // it. True if that is news.
  bool DrainsByItself(Time now, const std::string& id, Time deadline);
  // A Drain or Terminate action of the policy was carried out.
  void Draining(Time now, const std::string& id);
  void Terminating(Time now, const std::string& id);

  // In the order of ids.
  [[nodiscard]] std::vector<FleetNode> nodes() const;

 private:
  FleetNode* Find(const std::string& id);
  static void Enter(Time now, FleetNode& node, NodePhase phase);

  std::map<std::string, FleetNode> nodes_;
  std::map<std::string, Time> missing_since_;
};

}  // namespace troupe
