// NodeService: the node daemon. Starts and reaps workers, watches their lives, forwards what they
// print: what NodeCore decides.
//
// A death is reported twice: at once when the worker's life lock breaks, then with the exit status
// when it is reaped.
// Thread: the transport's loop, but for the constructor and Stop.
// Owns: its workers: Stop ends them all.
// What workers print is read as fast as the bounds here allow; a worker that prints faster waits in
// its own write. Files are touched on a thread of their own.
// Limits: kDeathWatchSlots workers; kReadBytesPerSecond; those of OutputRelay and FileLane.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "daemons/node/core/node_core.h"
#include "daemons/node/core/output_relay.h"
#include "daemons/node/log_expiry.h"
#include "daemons/node/node_worker.h"
#include "daemons/node/notice_sources.h"
#include "daemons/node/spares.h"
#include "daemons/protocol/messages.h"
#include "runtime/death_watch.h"
#include "runtime/file_lane.h"
#include "runtime/loop_scope.h"
#include "runtime/transport.h"

namespace troupe::daemons {

struct NodeOptions {
  std::string node;
  std::string data_address = "127.0.0.1";
  std::map<std::string, double> resources;
  std::map<std::string, std::string> labels;
  std::string run_dir;  // Private directory (0700) for the death-watch page and sockets.
  PeerAddress head;
  std::string key_file;  // Empty on one host.
  std::string bin_dir;   // Of troupe-guard and the program that loads plugins; or on PATH.
  std::string log_dir;   // If set, per-worker output files are written here too.
  LogLimits logs;        // Of these files.
  // If this file appears, the node is being preempted; its first line is the reason, its second the
  // seconds left (default: `notice`).
  std::string notice_file;
  Duration notice = seconds(120);
  FoundSources sources;  // Whose notices it looks for.
  // A job of Slurm drains so long before its end, and when SIGUSR1 says that it is near.
  Duration walltime = seconds(120);
  // A node that has not heard the head for so long ends its actors: the head may have placed them
  // elsewhere, and one life of an actor is enough. Zero: never.
  Duration fence = seconds(600);
  // And then ends itself: its cluster is gone, and its machine is paid for. Zero: never.
  Duration lease = Duration::zero();
  size_t spares = 0;  // Processes started ahead of the actors that they will be given.
};

class NodeService {
 public:
  NodeService(Transport* transport, NodeOptions options);
  Status Start();
  // Tells the head that the node leaves, then ends all workers. Blocks up to `grace`.
  void Stop(Duration grace);
  // Set when another node has taken this one's name.
  [[nodiscard]] bool replaced() const { return replaced_; }
  // Set when the whole cluster is taken down.
  [[nodiscard]] bool down() const { return down_; }
  // The node drains: its machine is gone after `left`.
  void Notice(NodeNotice notice, Duration left);
  // It does, and nothing runs here any more.
  [[nodiscard]] bool drained() const { return drained_; }
  // What is left of the job of Slurm that the node is in; nothing is known without a job.
  [[nodiscard]] static std::optional<Duration> JobLeft();

 private:
  using Stream = NodeWorker::Stream;
  using Worker = NodeWorker;

  void OnFrame(const std::string& frame);
  // Carries out what the core has decided, and what comes of that.
  void Act();
  void Act(const TellHead& tell);
  void Act(const StartProcess& start);
  void Act(const SignalProcess& signal);
  void Act(const GiveUpSpares& give_up);
  void Act(const BeginIncarnation& begin);
  void Act(const EndNode& end);
  void Act(const Warn& warn);
  void OnKeepSpares(const KeepSpares& keep);
  [[nodiscard]] SpareKind KindOf(const StartWorker& start) const;
  [[nodiscard]] std::map<std::string, std::string> OwnVariables(const StartWorker& start,
                                                                uint32_t slot, uint64_t turn) const;
  // And whether it was started ahead.
  Result<std::pair<GuardedProcess, bool>> Launch(const StartWorker& start, uint32_t slot,
                                                 uint64_t turn);
  void OnReadLog(const ReadLog& read);
  void ExplainSilence();
  void WatchEnd(const std::string& process);
  void OnExit(std::string process);
  void ReadOutput(const std::string& process, bool is_stderr);
  void ReadRest(const std::string& process, Stream& stream);
  void TakeOutput(const std::string& process, Worker& worker, bool is_stderr,
                  std::string_view bytes);
  // Reads no more of it for a while; false if there is no reason to.
  bool Pause(const std::string& process, Worker& worker, Stream& stream);
  void WatchOutput(const std::string& process, Stream& stream);
  void SendOutput();
  void WatchNotices();
  void WatchJob();
  void ReadNotice();
  void TakeNotice(NodeNotice notice, Duration left);
  void OnNotice(const std::string& source, const notices::NoticeChange& change);
  void NoteDrained();
  void Hello();
  void SayHello();
  void EndLeftBehind();
  void Sweep();
  void Tell(const std::string& frame);
  // How many processes the kernel has ended for want of memory: of this container, or of the host.
  [[nodiscard]] static uint64_t OomKills();

  Transport* const transport_;
  const NodeOptions options_;
  NodeCore core_;
  bool explained_ = false;  // Why the head does not answer.
  std::unique_ptr<DeathWatch> watch_;
  FileLane files_;
  OutputRelay relay_;
  uint64_t dropped_lines_ = 0;  // Counted so far.
  std::map<std::string, Worker> workers_;
  Spares spares_;
  std::atomic<bool> replaced_{false};
  std::atomic<bool> down_{false};
  std::atomic<bool> drained_{false};
  uint64_t oom_kills_ = 0;    // Of this host or container, when it was looked at last.
  bool left_behind_ = false;  // A guard was killed: what it kept may be our child now.
  Time unforked_until_{};     // So may be the fork of one that was given up, until then.
  bool reading_notice_ = false;
  bool sweeping_ = false;
  bool ended_ = false;  // A worker, since it was swept last,
  Time swept_{};        // which was then.
  Time begun_{};
  std::unique_ptr<NoticeSources> sources_;
  LoopScope scope_{&transport_->loop()};  // Last.
};

}  // namespace troupe::daemons
