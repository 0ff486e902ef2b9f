#include "autoscaler/process_provider.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace troupe {

ProcessProvider::ProcessProvider(const Clock* clock, ProcessProviderOptions options)
    : clock_(clock), options_(std::move(options)), start_(clock->Now()) {}

ProcessProvider::~ProcessProvider() {
  for (auto& [id, node] : nodes_) node.process.Kill(SIGKILL);
  for (auto& [id, node] : nodes_) (void)node.process.WaitFor(seconds(5));
}

Result<std::string> ProcessProvider::Launch(const std::string& token, const std::string& pool) {
  if (const auto found = launched_.find(token); found != launched_.end()) return found->second;
  Sweep(clock_->Now());
  if (const std::optional<int> offer = options_.schedule.OfferOf(pool)) {
    const auto held = std::count_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      return entry.second.pool == pool && entry.second.kill_at == Time::Never();
    });
    if (held >= *offer) {
      return Error{
          ErrorCode::kResourceExhausted,
          "pool " + pool + " offers " + std::to_string(*offer) + " nodes and all " + "are taken"};
    }
  }
  const std::string id = pool + "-" + std::to_string(last_number_[pool] + 1);
  Result<SpawnOptions> command = options_.command(id, pool);
  if (!command.ok()) return command.error().WithContext("node " + id);
  Result<ChildProcess> process = options_.spawn(*command);
  if (!process.ok()) return process.error().WithContext("node " + id + " could not be started");
  ++last_number_[pool];
  launched_[token] = id;
  Node& node = nodes_[id];
  node.token = token;
  node.pool = pool;
  node.process = std::move(*process);
  return id;
}

Status ProcessProvider::Terminate(const std::string& id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end() || found->second.terminating) return Status::Ok();
  Node& node = found->second;
  node.terminating = true;
  node.kill_at = std::min(node.kill_at, clock_->Now() + options_.terminate_grace);
  node.process.Kill(SIGTERM);
  return Status::Ok();
}

Result<std::vector<ProviderNode>> ProcessProvider::List() {
  Sweep(clock_->Now());
  std::vector<ProviderNode> listed;
  for (const auto& [id, node] : nodes_) {
    listed.push_back(
        {id, node.token, node.pool, node.terminating, "pid " + std::to_string(node.process.pid())});
  }
  return listed;
}

void ProcessProvider::TrainingRuns(Time now) { options_.schedule.TrainingRuns(now - start_); }

std::vector<Notice> ProcessProvider::Poll(Time now) {
  std::vector<Notice> notices;
  for (const SpotEvent& event : options_.schedule.TakeDue(now - start_)) {
    const auto found = nodes_.find(event.node);
    if (found == nodes_.end()) continue;  // Capacity, or a node that has ended already.
    if (event.kind == SpotEvent::Kind::kKill) {
      found->second.process.Kill(SIGKILL);
      found->second.kill_at = now;
    } else {
      const Time deadline = now + event.lead;
      found->second.kill_at = std::min(found->second.kill_at, deadline);
      notices.push_back({event.node, deadline, "schedule"});
    }
  }
  Sweep(now);
  return notices;
}

// Kills what is overdue and forgets what has ended.
void ProcessProvider::Sweep(Time now) {
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    Node& node = it->second;
    if (node.kill_at <= now) node.process.Kill(SIGKILL);
    it = node.process.TryReap() ? nodes_.erase(it) : std::next(it);
  }
}

Time ProcessProvider::next_wake() const {
  Time wake = Time::Never();
  if (const std::optional<Duration> next = options_.schedule.next()) wake = start_ + *next;
  for (const auto& [id, node] : nodes_) wake = std::min(wake, node.kill_at);
  return wake;
}

}  // namespace troupe
