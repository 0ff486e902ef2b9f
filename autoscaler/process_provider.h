// Nodes that are processes of this machine: the provider of laptops, tests and demonstrations.
//
// Each node is one child process in a process group of its own that dies with this one. Ids are
// pool-1, pool-2, ... in the order of launching. A scripted spot market (SpotSchedule) may limit
// what a pool offers, announce notices and kill nodes; a noticed node is killed at its deadline if
// it still runs, as a cloud would.
// Thread: one. No call blocks: what is overdue is killed, and what ended is reaped, in List and
// Poll.
// Owns: its processes. The destructor kills and reaps all of them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autoscaler/node_provider.h"
#include "autoscaler/spot_schedule.h"
#include "runtime/clock.h"
#include "runtime/process.h"

namespace troupe {

struct ProcessProviderOptions {
  // How to start node `id` of `pool`; kNotFound or kInvalidArgument for a pool that cannot be
  // started at all.
  std::function<Result<SpawnOptions>(const std::string& id, const std::string& pool)> command;
  std::function<Result<ChildProcess>(const SpawnOptions&)> spawn = Spawn;
  Duration terminate_grace = seconds(10);  // From SIGTERM to SIGKILL.
  SpotSchedule schedule;
};

class ProcessProvider final : public NodeProvider, public NoticeSource {
 public:
  // `clock` outlives the provider; the schedule counts from now on.
  ProcessProvider(const Clock* clock, ProcessProviderOptions options);
  ~ProcessProvider() override;
  ProcessProvider(const ProcessProvider&) = delete;
  ProcessProvider& operator=(const ProcessProvider&) = delete;

  Result<std::string> Launch(const std::string& token, const std::string& pool) override;
  Status Terminate(const std::string& id) override;
  Result<std::vector<ProviderNode>> List() override;
  // Plays what the schedule has due.
  std::vector<Notice> Poll(Time now) override;
  void TrainingRuns(Time now) override;
  // When Poll or List has something to do by itself.
  [[nodiscard]] Time next_wake() const;

 private:
  struct Node {
    std::string token;
    std::string pool;
    ChildProcess process;
    Time kill_at = Time::Never();
    bool terminating = false;
  };

  void Sweep(Time now);

  const Clock* const clock_;
  ProcessProviderOptions options_;
  const Time start_;
  std::map<std::string, Node> nodes_;            // By id.
  std::map<std::string, std::string> launched_;  // Token -> id, of every launch so far.
  std::map<std::string, int> last_number_;       // By pool.
};

}  // namespace troupe
