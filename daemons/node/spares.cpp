#include "daemons/node/spares.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "runtime/fork_server.h"
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
    : loop_(loop), bin_dir_(std::move(bin_dir)), limits_(limits), policy_(limits) {}

// ---- those that wait ----

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
      loop_->UnwatchFd(it->second.end_fd());
      taken = std::move(it->second);
      spares_.erase(it);
      break;
    }
    ending_.insert(*id);  // It has just ended.
    it->second.Kill(SIGKILL);
  }
  if (!taken && !ended_ && policy_.Forks(now, kind)) {
    Result<GuardedProcess> made = Make(kind);
    if (made.ok() && made->GiveWork(work)) taken = std::move(*made);
  }
  if (const auto it = servers_.find(kind); it != servers_.end()) {
    it->second.used = now;
    if (more_ahead) it->second.kept = limits_.kept;
  }
  TickAt(policy_.due());
  return taken;
}

void Spares::Keep(const SpareKind& kind, size_t count) {
  if (ended_) return;
  policy_.Keep(loop_->Now(), kind, count);
  if (const auto it = servers_.find(kind); it != servers_.end()) {
    it->second.used = loop_->Now();
    // Its run is over.
    if (count == 0 && it->second.kept == kRunServerKept) EndServer(*it);
  }
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
  TickServers();
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
  Result<GuardedProcess> started = Make(kind);
  if (!started.ok()) {
    if (policy_.Failed(loop_->Now(), id))
      LogWarning("no process can be started ahead of its actor: ", started.error().message);
    return;
  }
  spares_[id] = std::move(*started);
  Watch(id);
}

Result<GuardedProcess> Spares::Make(const SpareKind& kind) {
  const Result<std::string> guard = FindProgram("troupe-guard", bin_dir_);
  if (!guard.ok()) return guard.error();
  if (policy_.Forks(loop_->Now(), kind)) return Fork(kind, *guard);
  SpawnOptions spawn;
  spawn.argv = kind.argv;
  spawn.env = kind.env;
  spawn.capture_output = true;
  return GuardedProcess::StartSpare(*guard, std::move(spawn));
}

void Spares::Watch(SparePolicy::Id id) {
  loop_->WatchFd(spares_.at(id).end_fd(), [this, id] { OnExit(id); });
}

void Spares::OnExit(SparePolicy::Id id) {
  GuardedProcess& process = spares_.at(id);
  const int watched = process.end_fd();
  const std::optional<ExitInfo> info = process.TryReap();
  if (!info && process.end_fd() == watched) return;
  loop_->UnwatchFd(watched);
  if (!info) return Watch(id);
  // Of one that never came its server tells why.
  if (ending_.erase(id) == 0 && policy_.Failed(loop_->Now(), id) && process.began()) {
    LogWarning("a process that was started ahead of its actor has ended (", info->ToString(),
               "); the next ones of its kind start when they are needed: ", TailOf(process));
  }
  spares_.erase(id);
}

// ---- servers ----

Result<GuardedProcess> Spares::Fork(const SpareKind& kind, const std::string& guard) {
  const Result<Server*> server = ServerOf(kind);
  if (!server.ok()) return server.error();
  (*server)->used = loop_->Now();
  return (*server)->process.Fork(guard);
}

Result<Spares::Server*> Spares::ServerOf(const SpareKind& kind) {
  if (const auto it = servers_.find(kind); it != servers_.end()) {
    if (!it->second.given_up) return &it->second;
    return Error{ErrorCode::kUnavailable, "the server of its kind ends"};
  }
  MakeRoomForServer();
  Result<ForkServer> started = ForkServer::Start(kind);
  if (!started.ok()) {
    policy_.ServerFailed(loop_->Now(), kind);
    LogWarning("no process can be started ahead of its actor: ", started.error().message);
    return started.error();
  }
  Server& server = servers_[kind];
  server.process = std::move(*started);
  server.begun = loop_->Now();
  policy_.ServerStarts(kind);
  loop_->WatchFd(server.process.ready_fd(), [this, kind] { OnServerReady(kind); });
  loop_->WatchFd(server.process.end_fd(), [this, kind] { OnServerExit(kind); });
  return &server;
}

// The one that was used the longest ago goes.
void Spares::MakeRoomForServer() {
  Servers::value_type* oldest = nullptr;
  size_t living = 0;
  for (auto& entry : servers_) {
    if (entry.second.given_up) continue;
    ++living;
    if (oldest == nullptr || entry.second.used < oldest->second.used) oldest = &entry;
  }
  if (living >= kForkServersMax) EndServer(*oldest);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Spares::OnServerReady(SpareKind kind) {
  Server& server = servers_.at(kind);
  loop_->UnwatchFd(server.process.ready_fd());
  // Its end is told by the other descriptor.
  if (!server.process.Ready() || server.given_up) return;
  server.ready = true;
  server.used = loop_->Now();
  policy_.ServerReady(loop_->Now(), kind);
  TickAt(policy_.due());
}

// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Spares::OnServerExit(SpareKind kind) {
  Server& server = servers_.at(kind);
  const std::optional<ExitInfo> info = server.process.TryReap();
  if (!info) return;
  server.process.ReadOutput();
  const Time now = loop_->Now();
  if (server.given_up) {
    policy_.ServerGone(now, kind);
  } else if (info->code == kForksNothing) {
    policy_.ServerUnfit(now, kind);
    LogInfo("workers of a kind start one by one: ", server.process.LastLine());
  } else {
    policy_.ServerFailed(now, kind);
    LogWarning(
        "a process that was started ahead of its actor has ended (", info->ToString(),
        "); the next ones of its kind start when they are needed: ", server.process.LastLine());
  }
  loop_->UnwatchFd(server.process.end_fd());
  loop_->UnwatchFd(server.process.ready_fd());
  servers_.erase(kind);
  TickAt(policy_.due());
}

// Until it has ended nothing of its kind is forked, which is no failure of the kind.
void Spares::EndServer(Servers::value_type& entry) {
  policy_.ServerEnds(entry.first);
  entry.second.given_up = true;
  entry.second.process.Kill();
}

void Spares::TickServers() {
  for (auto& entry : servers_) {
    auto& [kind, server] = entry;
    server.process.ReadOutput();
    if (server.given_up) continue;
    const Time now = loop_->Now();
    if (server.ready && now > server.used + server.kept) EndServer(entry);
    if (server.ready || now < server.begun + kServerReadyLimit) continue;
    policy_.ServerFailed(now, kind);
    LogWarning(
        "a process that was started ahead of its actors has not imported what it was told "
        "within ",
        ToSeconds(kServerReadyLimit),
        " s and is ended; theirs start by "
        "themselves. Look at the modules of preload: ",
        server.process.LastLine());
    EndServer(entry);
  }
}

// ---- all of them ----

std::set<int> Spares::pids() const {
  std::set<int> pids;
  for (const auto& [id, process] : spares_) pids.insert(process.guard_pid());
  for (const auto& [kind, server] : servers_) pids.insert(server.process.pid());
  return pids;
}

bool Spares::forming() const {
  return std::ranges::any_of(spares_, [](const auto& spare) { return !spare.second.began(); });
}

void Spares::GiveUp() {
  policy_.Forget();
  for (auto& entry : servers_) EndServer(entry);
  for (auto& [id, process] : spares_) {
    // A second order would end the guard before what it guards.
    if (ending_.insert(id).second) process.Kill(SIGKILL);
  }
}

void Spares::EndAll() {
  ended_ = true;
  for (auto& [id, process] : spares_) {
    loop_->UnwatchFd(process.end_fd());
    process.Kill(SIGKILL);
  }
  for (auto& entry : servers_) {
    loop_->UnwatchFd(entry.second.process.ready_fd());
    loop_->UnwatchFd(entry.second.process.end_fd());
    EndServer(entry);
  }
}

}  // namespace troupe::daemons
