// A head on virtual time, with a store in memory and scripted nodes, workers and drivers: every
// frame it gets and every order of events is chosen by the test.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemons/head/head_service.h"
#include "runtime/wire.h"
#include "tests/support/memory_spool.h"
#include "tests/unit/daemons/scripted_transport.h"

namespace troupe::daemons::testing {

class HeadRig {
 public:
  explicit HeadRig(HeadOptions options = {});
  ~HeadRig();

  // Before anything else: the node has GPUs, and each worker of the run wants one.
  void HaveGpus(double count) { gpus_ = count; }
  // Of the run that is submitted.
  void Detach() { detached_ = true; }
  void MayBeSilent(double seconds) { silence_s_ = seconds; }
  void HoldState() { has_state_ = true; }  // Its members do, from their first report on.
  // A node "n" with 8 CPUs, which says hello again as time passes.
  void JoinNode();
  [[nodiscard]] NodeHello Hello() const;  // What it would say now.
  void JoinOther(double cpus);            // Another, "m", which nothing happens to.
  // A run of `workers` workers on it; starts and greets for them until the group is active. Worker
  // i is member "w<i>#1" in the process process(i).
  void Submit(uint32_t workers, uint32_t min_workers = 1, uint32_t spares = 0);
  void FormGroup(uint32_t workers);
  void Greet(size_t worker);   // The worker's first words: it has its assignment.
  void Vanish(size_t worker);  // Its process is gone, and nobody was told.
  // The node and its workers neither say nor hear anything; what they were sent is lost.
  void Cut() { cut_ = true; }
  void Mend() { cut_ = false; }
  // A new head in place of the old one, with the same store.
  void Restart();
  // The head does not run meanwhile; everybody else does.
  void Freeze(Duration d) { clock_.Advance(d); }
  void RunTimers();  // Those that are due.
  void Report(size_t worker, groups::MemberState state, groups::Epoch epoch);
  void Deliver(uint8_t type, const std::string& from, const std::string& frame);
  template <class T>
  void Say(uint8_t type, const std::string& from, const T& message) {
    Deliver(type, from, wire::Encode(type, message));
  }
  // Passes time; the node and the driver beat, and so do workers that have greeted.
  void Pass(Duration d);
  void Settle();  // Lets the store answer.

  [[nodiscard]] const std::string& process(size_t worker) const { return started_.at(worker); }
  [[nodiscard]] const std::string& node(size_t worker) const {
    return node_of_.at(process(worker));
  }
  [[nodiscard]] size_t started() const { return started_.size(); }
  // How many spares the node was asked to keep, each time.
  [[nodiscard]] const std::vector<uint32_t>& spares() const { return spares_; }
  // Everything the driver was told, in order: "epoch 1", "w0#1 finished", "done succeeded".
  [[nodiscard]] const std::vector<std::string>& told() const { return told_; }
  [[nodiscard]] const std::vector<nlohmann::json>& events() const { return events_; }
  [[nodiscard]] const std::vector<std::string>& results() const { return results_; }
  [[nodiscard]] std::vector<int> signals(const std::string& process) const;  // It was sent.
  [[nodiscard]] std::vector<groups::Command> commands(size_t worker) const;
  [[nodiscard]] int reply_code() const { return reply_code_; }
  [[nodiscard]] nlohmann::json reply() const { return nlohmann::json::parse(reply_json_); }
  [[nodiscard]] const std::optional<NodeFenced>& put_aside() const { return put_aside_; }
  MemoryStore& store() { return store_; }
  [[nodiscard]] std::vector<std::string> Keys();
  void Silence() { driver_beats_ = false; }  // The driver is not heard any more.

 private:
  void Sort();
  WorkerHello FirstWords(size_t worker);
  void AddWorkers(NodeHello& hello) const;

  FakeClock clock_;
  ScriptedTransport transport_;
  MemoryStore store_;
  BlockingLane lane_{"store"};
  const HeadOptions options_;
  MemorySpool spool_;
  std::unique_ptr<HeadService> head_;
  std::vector<std::string> started_;
  std::map<std::string, bool> greeted_;  // By process: whether it speaks.
  std::map<std::string, std::string> node_of_;
  std::map<std::string, StartWorker> order_of_;
  std::set<std::string> gone_;  // Processes that the node does not have (any more).
  uint64_t incarnation_ = 1;    // The node's.
  NodeAnswer heard_;
  std::optional<NodeFenced> put_aside_;
  bool cut_ = false;
  double other_cpus_ = 0;
  double gpus_ = 0;
  bool detached_ = false;
  bool has_state_ = false;
  double silence_s_ = 15;
  std::vector<uint32_t> spares_;
  std::map<size_t, groups::Report> reports_;
  std::map<std::string, std::vector<int>> signals_;
  std::map<std::string, std::vector<groups::Command>> commands_;
  std::vector<std::string> told_;
  std::vector<nlohmann::json> events_;
  std::vector<std::string> results_;
  uint64_t next_event_ = 0;
  int reply_code_ = -1;
  std::string reply_json_;
  bool driver_beats_ = true;
};

}  // namespace troupe::daemons::testing
