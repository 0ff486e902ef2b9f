// Recovery of C++ members on one host, through the real head, node and Redis.
//
//   kill   SIGKILL of a random member in mid-all-reduce of --bytes -> the slowest survivor's first
//          all-reduce of the new epoch: of one float, and of --bytes once more
//   leave  drain of a member                            -> the slowest survivor's pause
//   join   a warm member joins                          -> the slowest old member's pause
// Prints one JSON line per figure. The same binary is the member (--member).
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <random>
#include <thread>

#include "benchmarks/recovery_member.h"
#include "daemons/client/driver_client.h"
#include "runtime/signals.h"
#include "runtime/trace.h"

namespace {

using namespace troupe;
using benchmarks::EpochMarks;
using benchmarks::Page;

struct Settings {
  int members = 4;
  int trials = 30;
  size_t bytes = size_t{4} << 20;
  size_t heap_mib = 0;
  std::string bin_dir;
};

struct Worker {
  std::string id;
  int pid = 0;
};

struct Figure {
  std::string name;
  std::vector<double> ms;
};

Time Now() { return SteadyClock().Now(); }

// Members of the newest epoch that the driver was told of.
struct Tracker {
  daemons::DriverClient* client;
  std::string run;
  std::vector<Worker> members;
  uint64_t epoch = 0;
  std::string problem;

  static std::string Field(const std::string& json, size_t from, const std::string& key) {
    const size_t at = json.find("\"" + key + "\":", from);
    if (at == std::string::npos) return "";
    size_t begin = at + key.size() + 3;
    const bool text = json[begin] == '"';
    if (text) ++begin;
    return json.substr(begin, json.find_first_of(text ? "\"" : ",}]", begin) - begin);
  }

  bool Next(Duration limit) {
    auto event = client->NextEvent(run, limit);
    if (!event.ok() || !event->has_value()) return false;
    const std::string& json = (*event)->json;
    if ((*event)->kind == "done") problem = json;
    if ((*event)->kind == "log") std::cerr << json << "\n";
    if ((*event)->kind != "epoch") return true;
    members.clear();
    epoch = std::stoull(Field(json, 0, "epoch"));
    const size_t list = json.find("\"members\":[");
    const size_t end = json.find(']', list);
    for (size_t at = json.find('{', list); at != std::string::npos && at < end;
         at = json.find('{', at + 1)) {
      members.push_back({Field(json, at, "id"), std::stoi(Field(json, at, "pid"))});
    }
    return true;
  }

  bool WaitSize(size_t size, Duration limit) {
    const Time deadline = Now() + limit;
    while (members.size() != size && problem.empty() && Now() < deadline) Next(milliseconds(20));
    return members.size() == size && problem.empty();
  }
};

// The epoch after `from` that reached `size` and had its first all-reduce on every rank.
const EpochMarks* WaitEpoch(const Page& page, uint64_t from, int size, uint64_t* epoch,
                            Duration limit) {
  const Time deadline = Now() + limit;
  while (Now() < deadline) {
    for (uint64_t e = from + 1; e <= page.newest_epoch.load(); ++e) {
      const EpochMarks& marks = page.epochs[e % benchmarks::kEpochsKept];
      bool complete = marks.size.load() == size;
      for (int r = 0; r < size && complete; ++r) complete = marks.whole_ns[r].load() != 0;
      if (!complete) continue;
      *epoch = e;
      return &marks;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return nullptr;
}

void Print(const Figure& figure, int members, const Settings& s) {
  std::vector<double> v = figure.ms;
  if (v.empty()) return;
  std::sort(v.begin(), v.end());
  std::printf(
      "{\"bench\": \"%s\", \"n\": %d, \"bytes\": %zu, \"heap_mib\": %zu, \"trials\": %zu, \"p50\": "
      "%.3f, "
      "\"p99\": %.3f, \"max\": %.3f, \"unit\": \"ms\"}\n",
      figure.name.c_str(), members, s.bytes, s.heap_mib, v.size(), v[v.size() / 2],
      v[std::min(v.size() - 1, v.size() * 99 / 100)], v.back());
  std::fflush(stdout);
}

int Fail(const std::string& why) {
  std::cerr << "recovery: " << why << "\n";
  return 1;
}

// One trial after the other, read from top to bottom.
// NOLINTNEXTLINE(readability-function-size)
int Drive(const Settings& s, const std::string& self) {
  // Nameless, so that nothing is left however this process ends; members open it through /proc.
  const int fd = ::memfd_create("troupe-bench", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Page)) != 0) return Fail("cannot create a shared page");
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  auto* page =
      static_cast<Page*>(::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  daemons::DriverOptions options;
  options.bin_dir = s.bin_dir;
  auto client = daemons::DriverClient::Connect(options);
  if (!client.ok()) return Fail(client.error().ToString());
  RunSpec spec;
  spec.name = "recovery";
  spec.min_workers = 1;
  spec.max_workers = static_cast<uint32_t>(s.members) + 1;
  spec.workers = static_cast<uint32_t>(s.members);
  spec.resources = {{"CPU", 0.01}};
  spec.worker_argv = {self, "--member"};
  spec.payload = "x";
  spec.env = {{"TROUPE_BENCH_PAGE", path},
              {"TROUPE_BENCH_FLOATS", std::to_string(s.bytes / 4)},
              {"TROUPE_BENCH_HEAP", std::to_string(s.heap_mib << 20)}};
  auto run = (*client)->Submit(spec);
  if (!run.ok()) return Fail(run.error().ToString());
  Tracker tracker{client->get(), *run, {}, 0, ""};
  Figure kill{"kill_to_first_allreduce", {}};
  Figure again{"kill_to_allreduce_redone", {}};
  Figure join{"join_pause", {}};
  Figure leave{"leave_pause", {}};
  Figure replace{"kill_to_full_size", {}};
  std::mt19937 random(1);
  const auto n = static_cast<size_t>(s.members);
  int hangs = 0;
  const auto slowest_pause = [](const EpochMarks& marks, int ranks) {
    int64_t worst = 0;
    for (int r = 0; r < ranks; ++r) worst = std::max(worst, marks.pause_ns[r].load());
    return static_cast<double>(worst) / 1e6;
  };
  const auto slowest = [](const std::atomic<int64_t>* ns, int ranks) {
    int64_t last = 0;
    for (int r = 0; r < ranks; ++r) last = std::max(last, ns[r].load());
    return Time{last};
  };
  for (int trial = 0; trial < s.trials; ++trial) {
    if (!tracker.WaitSize(n, seconds(30)))
      return Fail("the group did not reach its size: " + tracker.problem);
    std::this_thread::sleep_for(milliseconds(20 + random() % 30));
    // kill
    const uint64_t before = page->newest_epoch.load();
    const Worker victim = tracker.members[random() % n];
    const Time killed = Now();
    ::kill(victim.pid, SIGKILL);
    trace::Instant("kill");
    uint64_t epoch = 0;
    const EpochMarks* marks = WaitEpoch(*page, before, s.members - 1, &epoch, seconds(10));
    if (marks == nullptr) {
      ++hangs;
      continue;
    }
    kill.ms.push_back(ToMilliseconds(slowest(marks->first_ns, s.members - 1) - killed));
    again.ms.push_back(ToMilliseconds(slowest(marks->whole_ns, s.members - 1) - killed));
    // join: the replacement
    uint64_t joined = 0;
    marks = WaitEpoch(*page, epoch, s.members, &joined, seconds(20));
    if (marks == nullptr) return Fail("no replacement joined");
    join.ms.push_back(slowest_pause(*marks, s.members - 1));
    replace.ms.push_back(ToMilliseconds(slowest(marks->first_ns, s.members) - killed));
    // leave: shrink by one, then grow again
    while (tracker.epoch < joined && tracker.Next(seconds(5))) {
    }
    if (trial % 2 == 0) {
      if (Status st = (*client)->Resize(*run, static_cast<uint32_t>(s.members) - 1); !st.ok())
        return Fail(st.error().ToString());
      uint64_t left = 0;
      marks = WaitEpoch(*page, joined, s.members - 1, &left, seconds(10));
      if (marks == nullptr) return Fail("the drain did not happen");
      leave.ms.push_back(slowest_pause(*marks, s.members - 1));
      if (Status st = (*client)->Resize(*run, static_cast<uint32_t>(s.members)); !st.ok())
        return Fail(st.error().ToString());
      tracker.WaitSize(n - 1, seconds(10));
    }
  }
  page->stop.store(true);
  Print(kill, s.members, s);
  Print(again, s.members, s);
  Print(leave, s.members, s);
  Print(join, s.members, s);
  Print(replace, s.members, s);
  std::printf("{\"bench\": \"recovery_faults\", \"n\": %d, \"hangs\": %d, \"wrong_sums\": %llu}\n",
              s.members, hangs, static_cast<unsigned long long>(page->wrong_sums.load()));
  (*client)->Shutdown();
  ::close(fd);
  return hangs == 0 && page->wrong_sums.load() == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"Recovery benchmark."};
  Settings s;
  bool member = false;
  app.add_flag("--member", member, "Run as a member (used by the benchmark itself)");
  app.add_option("--members", s.members);
  app.add_option("--trials", s.trials);
  app.add_option("--bytes", s.bytes, "Bytes per all-reduce");
  app.add_option("--heap-mib", s.heap_mib, "Dirty heap per member");
  CLI11_PARSE(app, argc, argv);
  if (member) return benchmarks::RunMember();
  char self[4096];
  const ssize_t length = ::readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return 1;
  self[length] = '\0';
  s.bin_dir = std::string(self).substr(0, std::string(self).rfind('/'));
  return Drive(s, self);
}
