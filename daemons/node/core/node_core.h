// NodeCore: what a node decides: which orders it takes, what it says of its workers, when it joins,
// starts over, and ends what it runs, or itself.
//
// Pure: what happens goes in, with the time; what is to be done comes out by TakeEffects, in order.
// NodeService carries it out, and says what came of it. Thread: owner only.
// Invariants: NC-1 an order of another head than the one heard last starts nothing. NC-2 while a
// worker of an incarnation before may live the node does not join, for at most kEndLimit. NC-3 the
// end of each order that was taken is told once, its death before that at most once. NC-4 an order
// whose process had ended ahead of it is carried out by another. NC-5 no actor outlives `fence` of
// silence.
// Limits: kDeathWatchSlots workers; kEndedMax ends kept.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemons/node/core/node_effects.h"
#include "daemons/protocol/messages.h"
#include "runtime/watchdog.h"

namespace troupe::daemons {

struct NodeIdentity {
  std::string node;
  std::string host;
  std::string data_address;
  int64_t pid = 0;
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  Duration fence = seconds(600), lease = Duration::zero();  // As of NodeOptions.
};

// What the host says of the processes, for a hello.
struct NodeSight {
  struct Process {
    int64_t pid = 0;
    uint64_t cpu_ms = 0;
    uint64_t rss_bytes = 0;
  };
  std::map<std::string, Process> processes;
  bool spares_end = false;  // Some that were given up are not gone.
  uint64_t output = 0;      // As of NodeHello.
};

struct ProcessEnd {
  std::string how;
  int code = 0;
  bool began = true;  // It had taken its life lock.
  std::vector<std::string> last_lines = {};
};

class NodeCore {
 public:
  static constexpr size_t kEndedMax = 1024;
  static constexpr Duration kEndLimit = seconds(10);
  static constexpr Duration kEndedKept = seconds(60);
  struct Worker {
    std::string lease;
    WorkerRoom room;
    uint64_t incarnation = 0;  // The node's that started it.
    uint32_t slot = 0;
    bool death_told = false;
    bool killed = false;  // By this node.
    // Of a process that was started ahead: it may have been dead when it got its work.
    std::optional<StartWorker> order = {};
  };
  NodeCore(NodeIdentity identity, uint64_t incarnation, Time now);
  // True: it is for others than this core.
  bool OnFrame(const std::string& frame, Time now);
  void OnStarted(const std::string& process, bool ahead);
  void OnNotStarted(const std::string& process, const std::string& why, Time now);
  void OnLifeLost(const std::string& process);
  // Whether that was the end of the order as well.
  bool OnExited(const std::string& process, ProcessEnd end, Time now);
  void OnIncarnation(uint64_t incarnation) { incarnation_ = incarnation; }
  // The node drains until then. False: it did; a later notice may only bring its end nearer.
  bool Notice(NodeNotice notice, Time until);
  // What may become a notice; it replaces the one before. Of no kind: it is over.
  void AtRisk(NodeNotice warning, Time at);
  void Leave() { leaving_ = true; }  // No more orders.
  void Tick(Time now);               // Before a hello.
  void Hello(const NodeSight& sight, Time now);
  [[nodiscard]] Duration UntilHello(Time now) const;
  [[nodiscard]] std::vector<NodeEffect> TakeEffects() { return std::exchange(effects_, {}); }

  [[nodiscard]] const std::map<std::string, Worker>& workers() const { return workers_; }
  [[nodiscard]] uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] const NodeAnswer& heard() const { return heard_; }
  [[nodiscard]] const NodeNotice& notice() const { return notice_; }
  [[nodiscard]] const NodeNotice& warning() const { return warning_; }
  // It drains, the head knows that, and all that it ran or was ordered to run has ended.
  [[nodiscard]] bool drained() const;
  [[nodiscard]] bool leaving() const { return leaving_; }

 private:
  void OnStart(const StartWorker& start, Time now);
  void OnKill(const KillWorker& kill);
  void OnAnswer(const NodeAnswer& answer, Time now);
  void OnFenced(const NodeFenced& fenced, Time now);
  void Begin(const StartWorker& start, uint32_t slot, bool again = false);
  void Refuse(const std::string& process, const std::string& why, Time now);
  void Kill(const std::string& process, Worker& worker, int signal);
  void NoteEnd(const std::string& process, Time now);
  [[nodiscard]] uint32_t FreeSlot() const;
  [[nodiscard]] bool Joins(const NodeSight& sight, Time now) const;
  void Tell(const WorkerExited& exited);

  const NodeIdentity identity_;
  const Time begun_;
  uint64_t incarnation_;
  Time join_by_{};  // This incarnation joins then at the latest.
  NodeAnswer heard_;
  Time heard_since_{};  // This head.
  Watchdog head_;
  Watchdog lease_;
  std::map<std::string, Worker> workers_;
  std::deque<std::pair<Time, std::string>> ended_;
  bool all_ended_ = true;  // None was left out there.
  bool leaving_ = false;
  NodeNotice notice_;
  Time notice_until_ = Time::Never();
  NodeNotice warning_;
  Time warning_at_ = Time::Never();
  bool notice_told_ = false;
  int answers_ = 0;  // To hellos since then.
  std::vector<NodeEffect> effects_;
};

}  // namespace troupe::daemons
