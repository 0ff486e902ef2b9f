// WorkerClient: a worker process's end of the cluster protocol: its life lock, its assignment, its
// group, its result.
//
// Thread: any, but for the handler functions, which run on the loop.
// Owns: the transport, the life lock, and from the assignment on the group agent.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "collective_groups/membership/group_agent.h"
#include "daemons/client/metrics_link.h"
#include "daemons/protocol/messages.h"
#include "runtime/death_watch.h"
#include "runtime/transport.h"

namespace troupe::daemons {

class WorkerClient {
 public:
  using CommunicatorFactory =
      std::function<Result<std::unique_ptr<groups::Communicator>>(const std::string& data_address)>;

  // From the TROUPE_WORKER_* environment that the node sets. The factory defaults to Gloo.
  static Result<std::unique_ptr<WorkerClient>> FromEnvironment(
      CommunicatorFactory factory = nullptr);
  ~WorkerClient();

  [[nodiscard]] const std::string& process() const { return process_; }
  [[nodiscard]] const std::string& host() const { return host_; }
  [[nodiscard]] std::string member() const;
  // The assignment, once. nullopt on time-out, or if there will be none.
  std::optional<Assignment> WaitAssignment(Duration limit);
  // Ends the assignment: repeats the result until the head lets this process go, at most `limit`.
  void Finish(bool ok, std::string payload, Duration limit);
  // A large payload blocks, up to `limit`, until the head has it.
  Status Note(NoteKind kind, uint64_t bytes, std::string payload, Duration limit = seconds(600));
  // Where others can call this process (an actor's listening address); told to the head with the
  // next hello.
  void Announce(const PeerAddress& address);
  // Tells the head whether the CPU of this process is for others; later numbers hold.
  void SetLoan(uint64_t number, bool lent);
  // Frames that are not of this protocol go to `handler`, on the loop. Once, before the first.
  void SetOther(std::function<void(const std::string& frame)> handler);
  // Commands to collective groups of actors go to `handler`, on the loop; null: to nobody.
  void SetGroups(std::function<void(const GroupFrame& frame)> handler);
  // For one more group of this process.
  [[nodiscard]] Result<std::unique_ptr<groups::Communicator>> MakeCommunicator() const;
  Status SendToHead(std::string frame) { return transport_->Send(kHeadName, std::move(frame)); }
  [[nodiscard]] MetricsLink& metrics() { return metrics_; }
  [[nodiscard]] EventLoop& loop() { return transport_->loop(); }
  [[nodiscard]] const std::string& node() const { return node_; }
  [[nodiscard]] bool released() const { return released_.load(); }
  // Null before the assignment.
  [[nodiscard]] groups::GroupAgent* group() { return agent_.get(); }
  [[nodiscard]] const Assignment& assignment() const { return assignment_; }

 private:
  WorkerClient() = default;
  Status Start();
  void OnFrame(const std::string& frame);
  void OnGroupFrame(const GroupFrame& frame);
  void OnAssignment(Assignment assignment);
  static void SeeDevices(Assignment& assignment);
  void Hello(bool again);
  // Until the head has all of it; false if that took longer, or nobody waits for it any more.
  bool Upload(uint64_t number, const std::string& payload, Time deadline);

  CommunicatorFactory factory_;
  std::string process_;
  std::string node_;
  std::string host_;
  std::string data_address_;
  PeerAddress head_;
  std::unique_ptr<DeathWatch> life_;
  std::unique_ptr<Transport> transport_;
  Time started_{};
  bool hello_dropped_ = false;  // On the loop.
  std::atomic<bool> released_{false};
  MetricsLink metrics_{[this](std::string f) { return SendToHead(std::move(f)); }};

  std::mutex upload_mu_;  // Held while there is an upload: one after the other.
  uint64_t last_upload_ = 0;

  // Guarded by mu_.
  mutable std::mutex mu_;
  uint64_t upload_ = 0;  // The current one,
  uint64_t have_ = 0;    // and what the head has of it.
  std::condition_variable changed_;
  std::deque<Assignment> waiting_;
  std::function<void(const std::string& frame)> other_;
  std::function<void(const GroupFrame& frame)> groups_;
  PeerAddress announced_;
  WorkerLoan loan_;
  Assignment assignment_;  // The one with work; constant once set.
  std::unique_ptr<groups::GroupAgent> agent_;
};

}  // namespace troupe::daemons
