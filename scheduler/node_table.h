// Which nodes are there: a pure state machine from heartbeats and reports to alive, suspect, dead
// or left.
//
//   joined --> alive <--> suspect --> dead         (silence; a heartbeat makes a suspect alive)
//                |           |
//                +-----------+--> dead (reported), left (said goodbye)
//
// A node is (id, incarnation): a process that starts again under the same id is a new incarnation,
// with a greater number. Failure puts an incarnation aside, never the host: the next incarnation is
// welcome at once. One with a smaller number, where the time of day was set back and nothing else
// tells, waits until it is known whether the other one lives.
// Thread: one. Never reads a clock; the caller hands in the time and calls Step with a Tick at
// next_wake().
// Invariants: NT-1 an incarnation that is dead or left never comes back. NT-2 the incarnations of
// an id only grow. NT-3 a node that is silent for `dead_after` is dead at the first Step from then
// on. NT-4 time that runs backwards counts as no time. NT-5 while no node is heard none is dead
// before `all_dead_after`, and when one is heard again the others are given the time that none was:
// it may be the listener who is cut off. NT-6 of two processes with one id the one that is not the
// newest incarnation is told that it is replaced only if the newest has spoken since it came; if
// that is silent for `suspect_after` from then on it is dead.
// Limits: kNodesMax; ended nodes are forgotten after `forget_after`, the oldest first when the
// table is full.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/clock.h"
#include "scheduler/resources.h"

namespace troupe {

inline constexpr size_t kNodesMax = 10'000;

enum class NodeState : uint8_t { kAlive, kSuspect, kDead, kLeft };
// "alive", "suspect", "dead", "left".
[[nodiscard]] std::string_view NodeStateName(NodeState state);

struct NodeRecord {
  std::string id;
  uint64_t incarnation = 0;
  std::string host;
  std::string address;
  ResourceSet total;
  std::map<std::string, std::string> labels;
  NodeState state = NodeState::kAlive;
  bool draining = false;
  Time drain_deadline = Time::Never();
  Time last_heard;  // Later than it spoke by the time that no node could be heard.
  Time last_said;
  std::string reason;  // Why it is suspect, draining, dead or left.

  [[nodiscard]] bool up() const { return state <= NodeState::kSuspect; }
};

// The node speaks for the first time (or again: a repeat of the same incarnation counts as a
// heartbeat).
struct NodeJoined {
  NodeRecord node;
};
struct NodeHeartbeat {
  std::string id;
  uint64_t incarnation = 0;
};
// Somebody knows that it is dead: its connection was reset, its process was seen to end.
struct NodeLost {
  std::string id;
  uint64_t incarnation = 0;
  std::string reason;
};
// It ended as it was asked to.
struct NodeGoodbye {
  std::string id;
  uint64_t incarnation = 0;
};
// It will go away: a preemption notice, a scale-down or an operator's wish.
struct NodeDrain {
  std::string id;
  Time deadline = Time::Never();
  std::string reason;
};
// Who listens was itself stopped for so long: that it heard nothing meanwhile says nothing.
struct ListenerResumed {
  Duration stopped{};
};
struct Tick {};
using NodeEvent = std::variant<NodeJoined, NodeHeartbeat, NodeLost, NodeGoodbye, NodeDrain,
                               ListenerResumed, Tick>;

struct NodeChange {
  std::string id;
  uint64_t incarnation = 0;
  NodeState state = NodeState::kAlive;
  bool draining = false;
  std::string reason;
};

struct NodeDecision {
  std::vector<NodeChange> changes;  // In the order of happening.
  // A message came from an incarnation that is over: tell it that it is fenced and must end.
  bool fenced = false;
  // With `fenced`: the newest incarnation of its id lives, and it is another process.
  bool replaced = false;
  bool waits = false;   // To join; it is to say so again.
  std::string refused;  // Why a join was not accepted; empty otherwise.
};

struct NodeTableOptions {
  Duration suspect_after = seconds(2);
  Duration dead_after = seconds(10);
  Duration all_dead_after = seconds(30);
  Duration forget_after = seconds(600);
};

class NodeTable {
 public:
  explicit NodeTable(NodeTableOptions options) : options_(options) {}

  NodeDecision Step(Time now, const NodeEvent& event);
  // When the next Tick is due; Never when nothing can happen by itself.
  [[nodiscard]] Time next_wake() const;
  [[nodiscard]] const std::map<std::string, NodeRecord>& nodes() const { return nodes_; }

 private:
  NodeRecord* Current(const std::string& id, uint64_t incarnation, NodeDecision& decision);
  void Join(const NodeRecord& node, NodeDecision& decision);
  void Set(NodeRecord& node, NodeState state, std::string reason, NodeDecision& decision);
  void Advance(NodeDecision& decision);
  void Heard();
  [[nodiscard]] Duration Unheard() const;
  void Contest(NodeRecord& known, uint64_t rival, NodeDecision& decision);
  bool MakeRoom();

  const NodeTableOptions options_;
  Time now_;
  Time last_heard_;                          // Any.
  std::map<std::string, NodeRecord> nodes_;  // The newest incarnation of each id.
  struct Rival {
    uint64_t incarnation = 0;
    Time since{};
  };
  std::map<std::string, Rival> rivals_;  // Of those in nodes_ that are up: the last one.
};

}  // namespace troupe
