// DriverClient: a driver's end of the cluster protocol, and the owner of an embedded cluster.
//
// Requests are repeated until answered; events are asked for by sequence number, so neither a lost
// frame nor a restarted head loses one that the head still has.
// Thread: any; calls block up to their limit.
// Owns: in embedded mode the troupe-local process and, with it, every process and file of the
// cluster. The lifeline pipe closes however this process ends, so nothing is left behind even after
// SIGKILL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/process.h"
#include "runtime/transport.h"
#include "scheduler/protocol.h"

namespace troupe::daemons {

struct DriverOptions {
  std::string address;       // Empty: embedded. Else "HOST:PORT" of a head, or "ipc://PATH".
  std::string key_file;      // For HOST:PORT; ipc needs none, file permissions guard it.
  bool with_node = true;     // Embedded: false leaves the nodes to the caller.
  std::string bin_dir;       // Embedded: where the daemons are.
  std::string redis_server;  // Embedded: name or path; empty: redis-server from PATH.
  std::string log_dir;       // Embedded: keep daemon logs here.
  std::map<std::string, double>
      resources;  // Embedded: what the node offers; CPU and memory default to the machine's.
  Duration start_timeout = seconds(20);
};

inline constexpr Duration kRepeatRequest = milliseconds(100);

class DriverClient {
 public:
  static Result<std::unique_ptr<DriverClient>> Connect(DriverOptions options);
  ~DriverClient();

  [[nodiscard]] const std::string& address() const { return endpoint_; }
  // Embedded: the private directory, removed with the cluster.
  [[nodiscard]] const std::string& run_dir() const { return run_dir_; }
  // Returns the job's id. The client starts to collect its events.
  Result<std::string> Submit(JobSpec spec);
  // The next event in order; nullopt if none came within `limit`. kNotFound for a job this client
  // did not submit.
  Result<std::optional<JobEvent>> NextEvent(const std::string& job, Duration limit);
  Status Resize(const std::string& job, uint32_t workers);
  // Asks a worker to leave at its next step boundary; after `limit` it is ended. Zero: never.
  Status Drain(const std::string& job, const std::string& member,
               Duration limit = Duration::zero());
  Status Cancel(const std::string& job);
  Result<std::string> JobJson(const std::string& job);
  Result<std::string> ClusterJson(Duration limit = seconds(20));
  // Everything that the head knows of: nodes, actors, groups, placement groups, who waits and why.
  Result<std::string> StateJson(Duration limit = seconds(20));
  // The last lines that an actor (its id or name) has printed, or a daemon of a node ("node",
  // "head", "local", "redis"): {"node", "file", "text"}.
  Result<std::string> LogJson(const std::string& what, const std::string& node, uint32_t lines,
                              Duration limit = seconds(10));
  // Ends the head, all nodes and all that runs there.
  Status TakeDown();
  // From now on events go to `sink` on the loop's thread instead of NextEvent's queues. Set before
  // the first Submit.
  void SetEventSink(std::function<void(const std::string& job, const JobEvent& event)> sink);
  // Frames that are not of this protocol go to `handler`, on the loop. Once, before the first.
  void SetOther(std::function<void(const std::string& frame)> handler);
  Status SendToHead(std::string frame) { return transport_->Send(kHeadName, std::move(frame)); }
  [[nodiscard]] EventLoop& loop() { return transport_->loop(); }
  [[nodiscard]] const std::string& id() const { return id_; }
  // The directory of the head's socket, for endpoints of this host.
  [[nodiscard]] std::string socket_dir() const;
  // Of this host, as the head's host sees it; for tcp.
  [[nodiscard]] Result<std::string> LocalAddress() const;
  // Idempotent. Embedded: ends the cluster and waits up to about 5 s for it.
  void Shutdown();

 private:
  struct Feed {
    std::string log;
    uint64_t next = 0;
    std::deque<JobEvent> events;
    bool done = false;
  };

  explicit DriverClient(DriverOptions options);
  Status Start();
  Status StartEmbedded();
  void OnFrame(const std::string& frame);
  void Beat();
  Result<std::string> Request(uint8_t type, const std::function<std::string(uint64_t)>& encode,
                              Duration limit, Duration repeat = kRepeatRequest);
  void SendSubscribe(const std::string& job, const Feed& feed);

  const DriverOptions options_;
  const std::string id_;
  std::string endpoint_;
  std::string run_dir_;
  ChildProcess local_;
  int lifeline_ = -1;
  std::unique_ptr<Transport> transport_;

  // Guarded by mu_.
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, Feed> feeds_;
  std::function<void(const std::string&, const JobEvent&)> sink_;
  std::function<void(const std::string& frame)> other_;
  std::map<uint64_t, std::optional<DriverReply>> requests_;
  uint64_t next_request_ = 1;
  bool stopped_ = false;
};

}  // namespace troupe::daemons
