#include "autoscaler/fleet.h"

#include <algorithm>
#include <utility>

namespace troupe {

FleetNode* Fleet::Find(const std::string& id) {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

// Phases only go forward.
void Fleet::Enter(Time now, FleetNode& node, NodePhase phase) {
  if (node.phase >= phase) return;
  node.phase = phase;
  node.since = now;
}

void Fleet::Update(Time now, const std::vector<ProviderNode>& listed) {
  std::set<std::string> present;
  for (const ProviderNode& node : listed) {
    if (node.asked_for) continue;
    present.insert(node.id);
    FleetNode fresh;
    fresh.id = node.id;
    fresh.token = node.token;
    fresh.pool = node.pool;
    fresh.since = now;
    FleetNode& known = nodes_.try_emplace(node.id, std::move(fresh)).first->second;
    if (node.terminating) Enter(now, known, NodePhase::kTerminating);
  }
  std::erase_if(nodes_, [&](const auto& entry) { return !present.contains(entry.first); });
}

void Fleet::NodeUp(Time now, const std::string& id) {
  FleetNode* node = Find(id);
  if (node == nullptr || node->phase != NodePhase::kLaunching) return;
  Enter(now, *node, NodePhase::kUp);
  node->idle_since = now;
}

std::vector<std::string> Fleet::Lost(Time now, const std::set<std::string>& known) {
  std::vector<std::string> lost;
  std::map<std::string, Time> missing;
  for (const auto& [id, node] : nodes_) {
    const bool up = node.phase == NodePhase::kUp || node.phase == NodePhase::kDraining;
    if (!up || known.contains(id)) continue;
    const auto before = missing_since_.find(id);
    const Time since = before == missing_since_.end() ? now : before->second;
    missing[id] = since;
    if (now >= since + kNodeMissing) lost.push_back(id);
  }
  missing_since_ = std::move(missing);
  return lost;
}

void Fleet::SetIdle(Time now, const std::string& id, bool idle) {
  FleetNode* node = Find(id);
  if (node == nullptr) return;
  if (!idle) {
    node->idle_since = Time::Never();
  } else if (node->idle_since == Time::Never()) {
    node->idle_since = now;
  }
}

void Fleet::Noticed(const std::string& id, Time deadline) {
  FleetNode* node = Find(id);
  if (node != nullptr) node->notice_deadline = std::min(node->notice_deadline, deadline);
}

void Fleet::SetAtRisk(const std::string& id, bool at_risk) {
  if (FleetNode* node = Find(id)) node->at_risk = at_risk;
}

bool Fleet::DrainsByItself(Time now, const std::string& id, Time deadline) {
  FleetNode* node = Find(id);
  if (node == nullptr || node->phase > NodePhase::kUp) return false;
  Noticed(id, deadline);
  Enter(now, *node, NodePhase::kDraining);
  return true;
}

void Fleet::Draining(Time now, const std::string& id) {
  if (FleetNode* node = Find(id)) Enter(now, *node, NodePhase::kDraining);
}

void Fleet::Terminating(Time now, const std::string& id) {
  if (FleetNode* node = Find(id)) Enter(now, *node, NodePhase::kTerminating);
}

std::vector<FleetNode> Fleet::nodes() const {
  std::vector<FleetNode> nodes;
  nodes.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) nodes.push_back(node);
  return nodes;
}

}  // namespace troupe
