#include "scheduler/node_table.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace troupe {
namespace {

std::string SilentFor(Duration silence) {
  std::ostringstream out;
  out.precision(3);
  out << "no heartbeat for " << ToSeconds(silence) << " s";
  return out.str();
}

}  // namespace

std::string_view NodeStateName(NodeState state) {
  switch (state) {
    case NodeState::kAlive:
      return "alive";
    case NodeState::kSuspect:
      return "suspect";
    case NodeState::kDead:
      return "dead";
    case NodeState::kLeft:
      return "left";
  }
  return "unknown";
}

// The record that a message of (id, incarnation) may change; null, and fenced, if that incarnation
// is over.
NodeRecord* NodeTable::Current(const std::string& id, uint64_t incarnation,
                               NodeDecision& decision) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.incarnation != incarnation || !found->second.up()) {
    decision.fenced = true;
    return nullptr;
  }
  return &found->second;
}

void NodeTable::Set(NodeRecord& node, NodeState state, std::string reason, NodeDecision& decision) {
  node.state = state;
  if (!reason.empty() || !node.draining) node.reason = std::move(reason);
  decision.changes.push_back({node.id, node.incarnation, node.state, node.draining, node.reason});
}

// Forgets the node that ended first; false if all are up.
bool NodeTable::MakeRoom() {
  auto oldest = nodes_.end();
  for (auto it = nodes_.begin(); it != nodes_.end(); ++it) {
    if (it->second.up()) continue;
    if (oldest == nodes_.end() || it->second.last_heard < oldest->second.last_heard) oldest = it;
  }
  if (oldest == nodes_.end()) return false;
  nodes_.erase(oldest);
  return true;
}

void NodeTable::Join(const NodeRecord& node, NodeDecision& decision) {
  const auto found = nodes_.find(node.id);
  if (found != nodes_.end()) {
    NodeRecord& known = found->second;
    if (node.incarnation <= known.incarnation && !known.up()) {
      decision.fenced = true;
      return;
    }
    if (node.incarnation < known.incarnation) return Contest(known, node.incarnation, decision);
    if (node.incarnation == known.incarnation) {
      Heard();
      known.last_heard = known.last_said = now_;
      if (known.state == NodeState::kSuspect) Set(known, NodeState::kAlive, "", decision);
      return;
    }
    if (known.up()) Set(known, NodeState::kDead, "a newer incarnation joined", decision);
  } else if (nodes_.size() >= kNodesMax && !MakeRoom()) {
    decision.refused = "the cluster has " + std::to_string(kNodesMax) + " nodes, its limit";
    return;
  }
  Heard();
  NodeRecord fresh = node;
  fresh.state = NodeState::kAlive;
  fresh.draining = false;
  fresh.drain_deadline = Time::Never();
  fresh.last_heard = fresh.last_said = now_;
  NodeRecord& stored = nodes_[node.id] = std::move(fresh);
  Set(stored, NodeState::kAlive, "", decision);
}

void NodeTable::Contest(NodeRecord& known, uint64_t rival, NodeDecision& decision) {
  const auto [it, first] = rivals_.try_emplace(known.id, Rival{rival, now_});
  if (!first && it->second.incarnation != rival) it->second = {rival, now_};
  const Time since = it->second.since;
  if (known.last_said > since) {
    decision.fenced = decision.replaced = true;
  } else if (now_ - since >= options_.suspect_after) {
    rivals_.erase(it);
    Set(known, NodeState::kDead, "another life of it has begun, and it is silent since", decision);
    decision.fenced = true;
  } else {
    decision.waits = true;
  }
}

// For how long none has been heard, if that is so long that it says nothing about a node.
Duration NodeTable::Unheard() const {
  const Duration silence = now_ - last_heard_;
  return silence > options_.suspect_after ? silence : Duration::zero();
}

void NodeTable::Heard() {
  for (auto& [id, node] : nodes_) {
    if (!node.up()) continue;
    const Time most = std::max(node.last_heard, node.last_said + options_.all_dead_after);
    node.last_heard = std::min({now_, most, node.last_heard + Unheard()});
  }
  last_heard_ = now_;
}

// What silence alone has brought about by now.
void NodeTable::Advance(NodeDecision& decision) {
  const bool deaf = Unheard() > Duration::zero();
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    NodeRecord& node = it->second;
    const Duration silence = now_ - node.last_heard;
    if (!node.up()) rivals_.erase(node.id);
    if (!node.up() && silence >= options_.forget_after) {
      it = nodes_.erase(it);
      continue;
    }
    const bool certain = !deaf || now_ - node.last_said >= options_.all_dead_after;
    if (node.up() && silence >= options_.dead_after && certain) {
      Set(node, NodeState::kDead, SilentFor(silence), decision);
    } else if (node.state == NodeState::kAlive && silence >= options_.suspect_after) {
      Set(node, NodeState::kSuspect, SilentFor(silence), decision);
    }
    ++it;
  }
}

NodeDecision NodeTable::Step(Time now, const NodeEvent& event) {
  now_ = std::max(now_, now);
  NodeDecision decision;
  if (const auto* resumed = std::get_if<ListenerResumed>(&event)) {
    for (auto& [id, node] : nodes_) {
      node.last_heard = std::min(now_, node.last_heard + resumed->stopped);
      node.last_said = std::min(now_, node.last_said + resumed->stopped);
    }
    for (auto& [id, rival] : rivals_) rival.since = std::min(now_, rival.since + resumed->stopped);
    last_heard_ = std::min(now_, last_heard_ + resumed->stopped);
  }
  Advance(decision);
  if (const auto* joined = std::get_if<NodeJoined>(&event)) {
    Join(joined->node, decision);
  } else if (const auto* beat = std::get_if<NodeHeartbeat>(&event)) {
    if (NodeRecord* node = Current(beat->id, beat->incarnation, decision)) {
      Heard();
      node->last_heard = node->last_said = now_;
      if (node->state == NodeState::kSuspect) Set(*node, NodeState::kAlive, "", decision);
    }
  } else if (const auto* lost = std::get_if<NodeLost>(&event)) {
    NodeDecision ignored;  // A report on an incarnation that is over is old news, and its sender is
                           // not that node.
    if (NodeRecord* node = Current(lost->id, lost->incarnation, ignored)) {
      node->last_heard = now_;
      Set(*node, NodeState::kDead, lost->reason, decision);
    }
  } else if (const auto* goodbye = std::get_if<NodeGoodbye>(&event)) {
    if (NodeRecord* node = Current(goodbye->id, goodbye->incarnation, decision)) {
      node->last_heard = now_;
      Set(*node, NodeState::kLeft, node->draining ? "" : "said goodbye", decision);
    }
  } else if (const auto* drain = std::get_if<NodeDrain>(&event)) {
    const auto found = nodes_.find(drain->id);
    if (found != nodes_.end() && found->second.up()) {
      NodeRecord& node = found->second;
      // A second notice may only bring the deadline nearer.
      node.drain_deadline = std::min(node.drain_deadline, drain->deadline);
      if (!node.draining) {
        node.draining = true;
        Set(node, node.state, drain->reason, decision);
      }
    }
  }
  return decision;
}

Time NodeTable::next_wake() const {
  Time wake = Time::Never();
  for (const auto& [id, node] : nodes_) {
    const Duration limit = node.state == NodeState::kAlive     ? options_.suspect_after
                           : node.state == NodeState::kSuspect ? options_.dead_after
                                                               : options_.forget_after;
    const bool spared = node.state == NodeState::kSuspect && now_ - node.last_heard >= limit;
    wake =
        std::min(wake, spared ? node.last_said + options_.all_dead_after : node.last_heard + limit);
  }
  return wake;
}

}  // namespace troupe
