// NodeService: the node daemon. Starts and reaps workers, watches their lives, forwards what they
// print.
//
// A death is reported twice: at once when the worker's life lock breaks, then with the exit status
// when it is reaped.
// Thread: the transport's loop, but for the constructor and Stop.
// Owns: its workers: Stop ends them all.
// Limits: kDeathWatchSlots workers; kOutputLineBytesMax per line; kOutputLinesPerTurn lines per
// worker and turn.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/death_watch.h"
#include "runtime/process.h"
#include "runtime/transport.h"
#include "scheduler/protocol.h"

namespace troupe::daemons {

inline constexpr size_t kOutputLineBytesMax = 16 << 10;
inline constexpr size_t kOutputLinesPerTurn = 1000;
inline constexpr size_t kLastLinesKept = 20;

struct NodeOptions {
  std::string node;
  std::string data_address = "127.0.0.1";
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  std::string run_dir;  // Private directory (0700) for the death-watch page and sockets.
  PeerAddress head;
  std::string key_file;  // Empty on one host.
  std::string bin_dir;   // Of the program that loads plugins; empty: it is on PATH.
  std::string log_dir;   // If set, per-worker output files are written here too.
  std::string
      notice_file;  // If this file appears, the node is being preempted; its first line is the
                    // reason, its second the seconds left (default: `notice`).
  Duration notice = seconds(120);
};

class NodeService {
 public:
  NodeService(Transport* transport, NodeOptions options);
  ~NodeService();
  Status Start();
  // Tells the head that the node leaves, then ends all workers. Blocks up to `grace`.
  void Stop(Duration grace);
  // Set when another node has taken this one's name.
  [[nodiscard]] bool replaced() const { return replaced_; }
  // Set when the whole cluster is taken down.
  [[nodiscard]] bool down() const { return down_; }
  // A preemption notice from outside (SIGTERM with a grace period, a file, a cloud's metadata).
  void Notice(const std::string& reason, Duration left);

 private:
  struct Stream {
    int fd = -1;
    bool is_stderr = false;
    std::string partial;
  };
  struct Worker {
    ChildProcess child;
    std::string job;
    WorkerRoom room;
    uint64_t incarnation = 0;  // The node's that started it.
    uint32_t slot = 0;
    Stream out;
    Stream err;
    std::deque<std::string> last_lines;
    bool death_reported = false;
    int log_fd = -1;
  };

  void OnFrame(const std::string& frame);
  void OnStart(const StartWorker& start);
  void OnReadLog(const ReadLog& read);
  void StartOver(uint64_t newest, const std::string& reason);
  void OnLifeLost(const std::string& process);
  void OnExit(const std::string& process);
  void ReadOutput(const std::string& process, Stream& stream, bool to_the_end);
  void SendOutput(const std::string& process, Stream& stream, std::vector<std::string> lines,
                  uint64_t dropped);
  void Hello();
  [[nodiscard]] bool Alone();  // No worker of an incarnation before is left.
  void Tell(uint8_t type, const std::string& frame);
  uint32_t FreeSlot() const;

  Transport* const transport_;
  const NodeOptions options_;
  uint64_t incarnation_;
  Time join_by_{};  // This incarnation joins then at the latest.
  NodeAnswer heard_;
  std::unique_ptr<DeathWatch> watch_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::map<std::string, Worker> workers_;
  std::atomic<bool> replaced_{false};
  std::atomic<bool> down_{false};
  bool leaving_ = false;
  std::string notice_;
  Time notice_until_ = Time::Never();
  Time begun_{};
};

}  // namespace troupe::daemons
