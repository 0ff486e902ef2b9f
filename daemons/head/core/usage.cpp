#include "daemons/head/core/usage.h"

#include <algorithm>
#include <set>

namespace troupe::daemons {

void Usage::OnNode(Time now, const NodeHello& hello) {
  std::set<std::string> listed;
  for (const RunningWorker& worker : hello.workers) {
    if (worker.ended) continue;
    listed.insert(worker.process);
    const auto [it, is_new] = processes_.try_emplace(worker.process);
    Entry& entry = it->second;
    if (is_new) entry = {hello.node, worker.pid, 0, 0, worker.cpu_ms, now};
    entry.rss_bytes = worker.rss_bytes;
    if (now < entry.from + kWindow) continue;
    const uint64_t used_ms = worker.cpu_ms - std::min(worker.cpu_ms, entry.from_ms);
    entry.cores = static_cast<double>(used_ms) / ToMilliseconds(now - entry.from);
    entry.from = now;
    entry.from_ms = worker.cpu_ms;
  }
  std::erase_if(processes_, [&](const auto& entry) {
    return entry.second.node == hello.node && !listed.contains(entry.first);
  });
}

void Usage::OnNodeGone(const std::string& node) {
  std::erase_if(processes_, [&](const auto& entry) { return entry.second.node == node; });
}

}  // namespace troupe::daemons
