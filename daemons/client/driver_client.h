// DriverClient: a driver's end of the cluster protocol, and the owner of an embedded cluster.
//
// Requests are repeated until answered; events are asked for by sequence number, so neither a lost
// frame nor a restarted head loses one that the head still has. The head sends no more than there
// is room for here.
// Thread: any; calls block up to their limit.
// Owns: in embedded mode the troupe-local process and, with it, every process and file of the
// cluster. The lifeline pipe closes however this process ends, so nothing is left behind even after
// SIGKILL.
// Limits: kFeedBytesMax of events per run wait for NextEvent, and one event beyond that.
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

#include "daemons/client/driver_options.h"
#include "daemons/client/metrics_link.h"
#include "daemons/protocol/join.h"
#include "daemons/protocol/messages.h"
#include "runtime/process.h"
#include "runtime/transport.h"

namespace troupe::daemons {

inline constexpr Duration kRepeatRequest = milliseconds(100);
inline constexpr size_t kFeedBytesMax = 1 << 20;
inline constexpr size_t kRunBytesMax = size_t{200} << 20;  // Of a run's function and arguments.

class DriverClient {
 public:
  static Result<std::unique_ptr<DriverClient>> Connect(DriverOptions options);
  ~DriverClient();

  [[nodiscard]] const std::string& address() const { return endpoint_; }
  // Of the cluster that it has come to; empty on one host.
  [[nodiscard]] const std::string& key_file() const { return key_file_; }
  // Embedded: the private directory, removed with the cluster.
  [[nodiscard]] const std::string& run_dir() const { return run_dir_; }
  // Returns the run's id. The client starts to collect its events.
  Result<std::string> Submit(RunSpec spec);
  // Collects the events of a run that another driver has submitted, or this one in another life:
  // those that are kept, and what comes. kNotFound names the runs there are.
  // With `watch` it looks on only, and never becomes the run's driver.
  Status Attach(const std::string& run, bool watch = false);
  // The next event in order; nullopt if none came within `limit`. kNotFound for a run that this
  // client has neither submitted nor attached to.
  Result<std::optional<RunEvent>> NextEvent(const std::string& run, Duration limit);
  Status Resize(const std::string& run, uint32_t workers);
  // Asks a worker to leave at its next step boundary; after `limit` it is ended. Zero: never.
  Status Drain(const std::string& run, const std::string& member,
               Duration limit = Duration::zero());
  // A node takes nothing new, and its workers leave; what is still there after `limit` is ended.
  Status DrainNode(const std::string& node, Duration limit, const std::string& reason = "");
  Status Cancel(const std::string& run);
  Result<std::string> RunJson(const std::string& run);
  Result<std::string> ClusterJson(Duration limit = seconds(20));
  // A token with which a host joins the cluster, once, within `valid`: as the node `node`, or with
  // an empty one under any name. kInvalidArgument for a cluster of one host.
  Result<JoinOffer> OfferJoin(const std::string& node, Duration valid);
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
  void SetEventSink(std::function<void(const std::string& run, const RunEvent& event)> sink);
  // Frames that are not of this protocol go to `handler`, on the loop. Once, before the first.
  void SetOther(std::function<void(const std::string& frame)> handler);
  Status SendToHead(std::string frame) { return transport_->Send(kHeadName, std::move(frame)); }
  [[nodiscard]] MetricsLink& metrics() { return metrics_; }
  [[nodiscard]] EventLoop& loop() { return transport_->loop(); }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] std::string socket_dir() const;  // Of the head, for endpoints on this host.
  [[nodiscard]] Result<std::string> LocalAddress() const;  // As the head's host sees it; for tcp.
  // Idempotent. Embedded: ends the cluster and waits up to about 5 s for it.
  void Shutdown();

 private:
  struct Feed {
    std::string log;
    uint64_t next = 0;
    std::string part;               // Of the next one's payload.
    std::optional<uint64_t> epoch;  // The last that was told.
    std::set<std::string> results;  // Whose were told.
    std::deque<RunEvent> events;
    size_t bytes = 0;    // Of these.
    size_t untold = 0;   // Bytes that have come since the head was last told.
    bool full = false;   // The head was told so.
    bool asked = false;  // For what was missed, since the last beat.
    bool submitted = false;
    bool watch = false;
    bool done = false;
  };
  explicit DriverClient(DriverOptions options);
  Status Start();
  Status AwaitHead(const CurveKeys& keys, const PeerAddress& head);
  Status StartEmbedded();
  void OnFrame(const std::string& frame);
  void Beat();
  Result<std::string> Request(uint8_t type, const std::function<std::string(uint64_t)>& encode,
                              Duration limit, Duration repeat = kRepeatRequest);
  void OnEvents(RunEvents batch);
  // With mu_ held.
  static bool Take(Feed& feed, RunEvents& batch);
  static bool IsKnown(Feed& feed, const RunEvent& event);
  void SendSubscribe(const std::string& run, Feed& feed, bool lost = false);
  void SayHello();
  void Leave();

  const DriverOptions options_;
  const std::string id_;
  const std::string place_;
  std::string endpoint_;
  std::string key_file_;
  std::string run_dir_;
  ChildProcess local_;
  int lifeline_ = -1;
  MetricsLink metrics_{[this](std::string f) { return SendToHead(std::move(f)); }};
  std::unique_ptr<Transport> transport_;

  // Guarded by mu_.
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, Feed> feeds_;
  std::function<void(const std::string&, const RunEvent&)> sink_;
  std::function<void(const std::string& frame)> other_;
  std::map<uint64_t, std::optional<DriverReply>> requests_;
  uint64_t next_request_ = 1;
  bool stopped_ = false;
};

}  // namespace troupe::daemons
