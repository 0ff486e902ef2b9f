// A real embedded cluster and one run of ledger members, for integration tests. Waits for events,
// never for time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemons/client/driver_client.h"

namespace troupe::testing {

struct Member {
  std::string id;
  int pid = 0;
};

class Cluster {
 public:
  explicit Cluster(daemons::DriverOptions options = {});
  ~Cluster();

  struct RunOptions {
    uint32_t workers = 4;
    uint32_t min_workers = 1;
    uint32_t max_workers = 8;
    uint32_t lease_ms = 2000;
    double elastic_timeout_s = 60;
    double stall_report_s = 30;
    double stall_remove_s = 600;
    double cpu_each = 0.01;
    size_t samples = 2048;
    size_t per_rank = 2;
    int pace_us = 500;
    std::string faults;
    bool share_memory = true;       // False: over links, as between hosts.
    std::vector<std::string> argv;  // Default: the ledger member.
    std::string payload;            // Default: samples, per_rank and pace_us.
  };
  void Start(const RunOptions& options);

  // Handles events until `condition` holds; fails the test (and returns false) after `limit`.
  bool WaitFor(const std::string& what, const std::function<bool()>& condition,
               Duration limit = seconds(30));
  bool WaitActive(size_t size, Duration limit = seconds(30));
  bool WaitDone(Duration limit = seconds(60));

  [[nodiscard]] daemons::DriverClient& client() { return *client_; }
  [[nodiscard]] const std::string& run() const { return run_; }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] uint64_t epoch() const { return epoch_; }
  [[nodiscard]] const std::string& state() const { return state_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::vector<std::string>& results() const { return results_; }
  [[nodiscard]] const std::vector<std::string>& parked() const { return parked_; }
  [[nodiscard]] int deaths() const { return deaths_; }
  // What was said of each worker that was drained.
  [[nodiscard]] const std::vector<std::string>& drained() const { return drained_; }
  // The events of stalls, as JSON.
  [[nodiscard]] const std::vector<std::string>& stalled() const { return stalled_; }
  // How often workers have reported something.
  [[nodiscard]] int reports() const { return reports_; }
  // Processes of the cluster by program name, from /proc (children of troupe-local).
  [[nodiscard]] int PidOf(const std::string& program) const;

 private:
  void Handle(const RunEvent& event);
  std::unique_ptr<daemons::DriverClient> client_;
  std::string run_;
  std::vector<Member> members_;
  uint64_t epoch_ = 0;
  std::string state_;
  std::string reason_;
  std::vector<std::string> results_;
  std::vector<std::string> parked_;
  int deaths_ = 0;
  int reports_ = 0;
  std::vector<std::string> drained_;
  std::vector<std::string> stalled_;
};

// The text or number after "key": in a flat JSON object; empty if absent.
[[nodiscard]] std::string JsonField(const std::string& json, size_t from, const std::string& key);

}  // namespace troupe::testing
