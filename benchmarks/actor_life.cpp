// What actors cost beside their calls, on an embedded cluster of this machine.
//
//   runtime_start             troupe::Init until the cluster can be used, in milliseconds
//   head_rss, node_rss        of the two daemons with nothing to do, in MB
//   fiber_actor_creation      actors in this process: made and called once, per second
//   process_actor_creation    placed actors, each with a process: the same
//   actor_calls_n_n           as many callers as actors, each in a process, many calls in flight
//   group_create_remove       placement groups made and removed through the head, per second
// Processes are not pinned. Prints one JSON line per figure.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <troupe/troupe.h>

class Echo {
 public:
  std::string Say(const std::string& text) { return text; }
};
TROUPE_ACTOR(Echo, (), Say);

// Calls an actor as fast as it can.
class Caller {
 public:
  int Drive(const troupe::ActorHandle<Echo>& echo, int calls) {
    const std::string text(64, 'x');
    std::vector<troupe::Future<std::string>> futures;
    int good = 0;
    for (int i = 0; i < calls; ++i) {
      futures.push_back(echo.Call(&Echo::Say, text));
      if (i >= kInFlight) good += futures[static_cast<size_t>(i - kInFlight)].Get().ok() ? 1 : 0;
    }
    for (int i = std::max(0, calls - kInFlight); i < calls; ++i)
      good += futures[static_cast<size_t>(i)].Get().ok() ? 1 : 0;
    return good;
  }

 private:
  static constexpr int kInFlight = 1000;
};
TROUPE_ACTOR(Caller, (), Drive);

namespace {

using troupe::SteadyClock;
using troupe::Time;

constexpr int kStarts = 5;
constexpr int kFibers = 20'000;
constexpr int kProcesses = 40;
constexpr int kPairs = 4;
constexpr int kCalls = 20'000;
constexpr int kGroups = 2'000;
constexpr int kRounds = 3;

double Seconds(Time start) { return troupe::ToSeconds(SteadyClock().Now() - start); }

void Print(const char* name, std::vector<double> v, const char* unit) {
  std::sort(v.begin(), v.end());
  std::printf(
      "{\"bench\": \"%s\", \"n\": %zu, \"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f, \"unit\": "
      "\"%s\"}\n",
      name, v.size(), v[v.size() / 2], v[v.size() * 99 / 100], v.back(), unit);
  std::fflush(stdout);
}

[[noreturn]] void Fail(const troupe::Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  std::exit(1);
}

template <class T>
T Or(troupe::Result<T> result) {
  if (!result.ok()) Fail(result.error());
  return std::move(*result);
}

// A line of /proc/PID/status, without its name.
std::string StatusLine(const std::string& pid, const std::string& name) {
  std::ifstream file("/proc/" + pid + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  }
  return "";
}

bool Ours(std::string pid) {
  while (std::stoi(pid) > 1) {
    if (std::stoi(pid) == ::getpid()) return true;
    const std::string parent = StatusLine(pid, "PPid");
    if (parent.empty()) return false;
    pid = std::to_string(std::stoi(parent));
  }
  return false;
}

// Resident memory of our descendant of this name, in MB.
double ResidentMb(const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (StatusLine(pid, "Name").find(name) == std::string::npos || !Ours(pid)) continue;
    return std::strtod(StatusLine(pid, "VmRSS").c_str(), nullptr) * 1024 / 1e6;
  }
  std::fprintf(stderr, "no process %s was found\n", name.c_str());
  std::exit(1);
}

troupe::InitOptions Large() {
  troupe::InitOptions options;
  options.resources = {{"CPU", 64}};  // What is measured is the making, not the waiting for room.
  return options;
}

void MeasureStart() {
  std::vector<double> starts;
  for (int i = 0; i < kStarts; ++i) {
    const Time start = SteadyClock().Now();
    const troupe::Cluster runtime = Or(troupe::Init(Large()));
    starts.push_back(Seconds(start) * 1e3);
    if (i > 0) continue;
    Print("head_rss", {ResidentMb("troupe-head")}, "MB");
    Print("node_rss", {ResidentMb("troupe-node")}, "MB");
  }
  Print("runtime_start", starts, "ms");
}

template <class Spawn>
double CreationRate(int count, const Spawn& spawn) {
  const Time start = SteadyClock().Now();
  std::vector<troupe::ActorHandle<Echo>> actors;
  std::vector<troupe::Future<std::string>> first;
  for (int i = 0; i < count; ++i) {
    actors.push_back(Or(spawn()));
    first.push_back(actors.back().Call(&Echo::Say, "hello"));
  }
  for (const auto& reply : first) (void)Or(reply.Get());
  const double rate = count / Seconds(start);
  for (const auto& actor : actors) {
    if (const troupe::Status s = actor.Kill(); !s.ok()) Fail(s.error());
  }
  return rate;
}

double PairRate(const troupe::Cluster& runtime) {
  std::vector<troupe::ActorHandle<Echo>> echoes;
  std::vector<troupe::ActorHandle<Caller>> callers;
  for (int i = 0; i < kPairs; ++i) {
    echoes.push_back(Or(runtime.Spawn<Echo>({})));
    callers.push_back(Or(runtime.Spawn<Caller>({})));
    (void)Or(callers.back().Call(&Caller::Drive, echoes.back(), 100).Get());
  }
  const Time start = SteadyClock().Now();
  std::vector<troupe::Future<int>> done;
  for (int i = 0; i < kPairs; ++i) {
    const auto at = static_cast<size_t>(i);
    done.push_back(callers[at].Call(&Caller::Drive, echoes[at], kCalls));
  }
  int good = 0;
  for (const auto& one : done) good += Or(one.Get());
  const double rate = good / Seconds(start);
  for (const auto& actor : echoes) (void)actor.Kill();
  for (const auto& actor : callers) (void)actor.Kill();
  return rate;
}

double GroupRate(const troupe::Cluster& runtime) {
  using troupe::actors::AskGroupLater;
  const Time start = SteadyClock().Now();
  std::vector<troupe::Future<troupe::PlacementGroupStatus>> made;
  std::vector<troupe::Future<troupe::PlacementGroupStatus>> removed;
  for (int i = 0; i < kGroups; ++i) {
    troupe::actors::GroupRequest create;
    create.verb = troupe::actors::PlacementGroupVerb::kCreate;
    create.add.assign(4, {{{"CPU", 0.001}}, {}});
    made.push_back(AskGroupLater(runtime.system(), std::move(create), troupe::seconds(60)));
  }
  for (const auto& one : made) {
    troupe::actors::GroupRequest remove;
    remove.verb = troupe::actors::PlacementGroupVerb::kRemove;
    remove.spec.group = Or(one.Get()).id;
    removed.push_back(AskGroupLater(runtime.system(), std::move(remove), troupe::seconds(60)));
  }
  for (const auto& one : removed) (void)Or(one.Get());
  return kGroups / Seconds(start);
}

}  // namespace

int main() {
  if (std::getenv("TROUPE_WORKER_PROCESS") == nullptr) MeasureStart();
  const troupe::Cluster runtime = Or(troupe::Init(Large()));
  std::vector<double> fibers;
  std::vector<double> processes;
  std::vector<double> pairs;
  std::vector<double> groups;
  for (int round = 0; round < kRounds; ++round) {
    fibers.push_back(CreationRate(kFibers, [&] { return runtime.SpawnHere<Echo>({}); }));
    processes.push_back(CreationRate(kProcesses, [&] { return runtime.SpawnLater<Echo>({}); }));
    pairs.push_back(PairRate(runtime));
    groups.push_back(GroupRate(runtime));
  }
  Print("fiber_actor_creation", fibers, "actors/s");
  Print("process_actor_creation", processes, "actors/s");
  Print("actor_calls_n_n", pairs, "calls/s");
  Print("group_create_remove", groups, "groups/s");
  return 0;
}
