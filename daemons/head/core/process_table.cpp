#include "daemons/head/core/process_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/mutation.h"

namespace troupe::daemons {

HeadProcess& ProcessTable::Add(Time now, const std::string& name, const std::string& node,
                               ProcessOwner owner) {
  const auto [it, fresh] = processes_.try_emplace(name);
  if (fresh) {
    it->second.node = node;
    it->second.since = now;
    it->second.owner = std::move(owner);
  }
  return it->second;
}

HeadProcess& ProcessTable::Adopt(Time now, const std::string& name, const std::string& node,
                                 ProcessOwner owner) {
  const bool fresh = !processes_.contains(name);
  HeadProcess& process = Add(now, name, node, std::move(owner));
  process.found = process.found || fresh;
  process.order = std::min(process.order, Answers(process.node));
  return process;
}

void ProcessTable::Ordered(const std::string& name) {
  if (HeadProcess* process = Find(name); process != nullptr)
    process->order = Answers(process->node);
}

void ProcessTable::EndBy(const std::string& name, Time by) {
  if (HeadProcess* process = Find(name); process != nullptr)
    process->gone_by = std::min(process->gone_by, by);
}

ProcessTable::Heard ProcessTable::OnHello(Time now, const NodeHello& hello, uint64_t answered) {
  Heard heard;
  std::set<std::string> listed;
  for (const RunningWorker& worker : hello.workers) {
    HeadProcess* process = Find(worker.process);
    if (process == nullptr) continue;
    listed.insert(worker.process);
    process->node = hello.node;
    process->host = hello.host;
    process->listed = true;
    if (worker.pid > 0) process->pid = worker.pid;
    if (worker.ended) {
      heard.ended.push_back(worker.process);
    } else if (now >= process->gone_by && !TROUPE_MUTATED("PT-2 not killed again")) {
      process->gone_by = now + kKillAgain;
      heard.overdue.push_back(worker.process);
    }
  }
  for (const auto& [name, process] : processes_) {
    if (process.node != hello.node || listed.contains(name)) continue;
    if (answered > process.order) heard.missing.push_back(name);
  }
  return heard;
}

void ProcessTable::OnStopped(Duration stopped) {
  for (auto& [name, process] : processes_) {
    if (process.cause_by != Time::Never()) process.cause_by = process.cause_by + stopped;
  }
}

uint64_t ProcessTable::Answers(const std::string& node) const {
  const auto sent = answers_.find(node);
  return sent == answers_.end() ? 0 : sent->second;
}

std::vector<std::string> ProcessTable::On(const std::string& node) const {
  std::vector<std::string> names;
  for (const auto& [name, process] : processes_) {
    if (process.node == node) names.push_back(name);
  }
  return names;
}

HeadProcess* ProcessTable::Find(const std::string& name) {
  const auto it = processes_.find(name);
  return it == processes_.end() ? nullptr : &it->second;
}

const HeadProcess* ProcessTable::Find(const std::string& name) const {
  const auto it = processes_.find(name);
  return it == processes_.end() ? nullptr : &it->second;
}

}  // namespace troupe::daemons
