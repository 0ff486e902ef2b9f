#include "daemons/node/spares.h"

#include <unistd.h>

#include <csignal>
#include <utility>

#include "runtime/log.h"

namespace troupe::daemons {
namespace {

constexpr size_t kTailBytes = 4096;

// What it has printed last, without waiting for more.
std::string TailOf(GuardedProcess& process) {
  std::string text(kTailBytes, '\0');
  const ssize_t got = ::read(process.stderr_fd(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

Spares::Spares(EventLoop* loop, std::string bin_dir, SpareLimits limits)
    : loop_(loop), bin_dir_(std::move(bin_dir)), policy_(limits) {}

std::optional<GuardedProcess> Spares::Take(const SpareKind& kind,
                                           const std::map<std::string, std::string>& variables,
                                           bool more_ahead) {
  std::string work;
  for (const auto& [name, value] : variables) work += name + "=" + value + '\0';
  if (work.size() > GuardedProcess::kWorkBytesMax) return std::nullopt;
  const Time now = loop_->Now();
  std::optional<GuardedProcess> taken;
  while (const std::optional<SparePolicy::Id> id = policy_.Take(now, kind, more_ahead)) {
    const auto it = spares_.find(*id);
    if (it->second.GiveWork(work)) {
      loop_->UnwatchFd(it->second.pidfd());
      taken = std::move(it->second);
      spares_.erase(it);
      break;
    }
    ending_.insert(*id);  // It has just ended.
    it->second.Kill(SIGKILL);
  }
  TickAt(policy_.due());
  return taken;
}

void Spares::Keep(const SpareKind& kind, size_t count) {
  if (ended_) return;
  policy_.Keep(loop_->Now(), kind, count);
  Tick();
}

void Spares::Tick() {
  if (ended_) return;
  SparePolicy::Step step = policy_.Next(loop_->Now());
  for (const SparePolicy::Id id : step.end) {
    ending_.insert(id);
    spares_.at(id).Kill(SIGKILL);
  }
  if (step.start) Start(step.start->first, step.start->second);
  TickAt(policy_.due());
}

void Spares::TickAt(Time when) {
  if (when >= next_tick_) return;
  next_tick_ = when;
  scope_.CallAt(when, [this, when] {
    if (next_tick_ == when) next_tick_ = Time::Never();
    Tick();
  });
}

void Spares::Start(SparePolicy::Id id, const SpareKind& kind) {
  SpawnOptions spawn;
  spawn.argv = kind.argv;
  spawn.env = kind.env;
  spawn.capture_output = true;
  const Result<std::string> guard = FindProgram("troupe-guard", bin_dir_);
  Result<GuardedProcess> started =
      guard.ok() ? GuardedProcess::StartSpare(*guard, std::move(spawn)) : guard.error();
  if (!started.ok()) {
    if (policy_.Failed(loop_->Now(), id))
      LogWarning("no process can be started ahead of its actor: ", started.error().message);
    return;
  }
  GuardedProcess& process = spares_[id] = std::move(*started);
  loop_->WatchFd(process.pidfd(), [this, id] { OnExit(id); });
}

void Spares::OnExit(SparePolicy::Id id) {
  GuardedProcess& process = spares_.at(id);
  const std::optional<ExitInfo> info = process.TryReap();
  if (!info) return;
  loop_->UnwatchFd(process.pidfd());
  if (ending_.erase(id) == 0 && policy_.Failed(loop_->Now(), id)) {
    LogWarning("a process that was started ahead of its actor has ended (", info->ToString(),
               "); the next ones of its kind start when they are needed: ", TailOf(process));
  }
  spares_.erase(id);
}

std::set<int> Spares::guard_pids() const {
  std::set<int> pids;
  for (const auto& [id, process] : spares_) pids.insert(process.guard_pid());
  return pids;
}

void Spares::GiveUp() {
  policy_.Forget();
  for (auto& [id, process] : spares_) {
    // A second order would end the guard before what it guards.
    if (ending_.insert(id).second) process.Kill(SIGKILL);
  }
}

void Spares::EndAll() {
  ended_ = true;
  for (auto& [id, process] : spares_) {
    loop_->UnwatchFd(process.pidfd());
    process.Kill(SIGKILL);
  }
}

}  // namespace troupe::daemons
