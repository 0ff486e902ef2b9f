// The reference of the recovery benchmark: elastic all-reduce as one writes it with plain Gloo.
//
// N processes connect a full mesh through Redis and all-reduce in a loop. After a SIGKILL whoever
// gets an exception closes its connections, so that the others get theirs, and the survivors
// connect a new full mesh under a new prefix. Who died is told to them for free, through shared
// memory: agreement and detection by anything but a broken connection are not in the figure.
// Prints one JSON line; a trial that is not through after --limit seconds counts as a hang.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/redis_store.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/clock.h"

namespace {

using namespace troupe;

constexpr int kMembersMax = 64;

struct Settings {
  int members = 4;
  int trials = 20;
  size_t bytes = size_t{4} << 20;
  double limit = 5;
};

struct Page {
  std::atomic<int> steps[kMembersMax];         // All-reduces done before the kill.
  std::atomic<int> victim;                     // -1 until one was killed.
  std::atomic<int64_t> first_ns[kMembersMax];  // First all-reduce of the new mesh.
  std::atomic<int> wrong_sums;
};

std::shared_ptr<gloo::Context> Connect(const std::string& prefix, int port, int rank, int size,
                                       double limit) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::RedisStore redis("127.0.0.1", port);
  gloo::rendezvous::PrefixStore store(prefix, redis);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::milliseconds(static_cast<int>(limit * 1000)));
  context->connectFullMesh(store, device);
  return context;
}

void AllReduce(const std::shared_ptr<gloo::Context>& context, std::vector<float>& data) {
  std::fill(data.begin(), data.end(), 1.0F);
  gloo::AllreduceOptions options(context);
  options.setOutput(data.data(), data.size());
  void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
  options.setReduceFunction(sum);
  gloo::allreduce(options);
}

// The whole life of a member; never returns.
[[noreturn]] void Member(const Settings& s, const std::string& prefix, int port, int self,
                         Page* page) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    auto context = Connect(prefix + "before", port, self, s.members, s.limit);
    std::vector<float> data(s.bytes / sizeof(float));
    try {
      for (;;) {
        AllReduce(context, data);
        ++page->steps[self];
      }
    } catch (const gloo::IoException&) {
      context->closeConnections();
    }
    const SteadyClock clock;
    const Time told_by = clock.Now() + milliseconds(static_cast<int64_t>(s.limit * 1000));
    while (page->victim.load() < 0) {
      if (clock.Now() > told_by)
        throw std::runtime_error("a connection broke, but nobody was killed");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const int rank = self - (self > page->victim.load() ? 1 : 0);
    context = Connect(prefix + "after", port, rank, s.members - 1, s.limit);
    std::vector<float> one(1);
    AllReduce(context, one);
    if (one[0] != static_cast<float>(s.members - 1)) ++page->wrong_sums;
    page->first_ns[self].store(clock.Now().ns);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "naive-gloo: member %d: %s\n", self, error.what());
  }
  for (;;) ::pause();  // Until the end of the trial: an early end would disturb the others.
}

bool WaitFor(const Settings& s, const std::function<bool()>& done) {
  const Time deadline = SteadyClock().Now() + milliseconds(static_cast<int64_t>(s.limit * 1000));
  while (!done()) {
    if (SteadyClock().Now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

// Milliseconds from the kill to the slowest survivor's all-reduce; negative: a hang.
double Trial(const Settings& s, int port, int trial, std::mt19937& random, Page* page) {
  for (auto& steps : page->steps) steps.store(0);
  for (auto& first : page->first_ns) first.store(0);
  page->victim.store(-1);
  const std::string prefix = "naive" + std::to_string(trial);
  std::vector<pid_t> pids;
  for (int self = 0; self < s.members; ++self) {
    const pid_t pid = ::fork();
    if (pid == 0) Member(s, prefix, port, self, page);
    pids.push_back(pid);
  }
  double ms = -1;
  const bool started = WaitFor(s, [&] {
    return std::all_of(page->steps, page->steps + s.members, [](const auto& n) { return n > 2; });
  });
  if (started) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + random() % 20));
    const int victim = static_cast<int>(random() % static_cast<unsigned>(s.members));
    const Time killed = SteadyClock().Now();
    ::kill(pids[static_cast<size_t>(victim)], SIGKILL);
    page->victim.store(victim);
    int64_t last = 0;
    const bool through = WaitFor(s, [&] {
      last = 0;
      for (int m = 0; m < s.members; ++m) {
        if (m == victim) continue;
        if (page->first_ns[m].load() == 0) return false;
        last = std::max(last, page->first_ns[m].load());
      }
      return true;
    });
    if (through) ms = ToMilliseconds(Time{last} - killed);
  }
  for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  return ms;
}

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(fd, raw, length) == 0 && ::getsockname(fd, raw, &length) == 0;
  ::close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

// Not runtime/process: its threads must not be there when members are forked.
pid_t StartRedis(int port) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text = std::to_string(port);
  ::execlp("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", text.c_str(), "--save",
           "", "--appendonly", "no", "--logfile", "/dev/null", nullptr);
  ::_exit(127);
}

bool RedisAnswers(const Settings& s, int port) {
  return WaitFor(s, [&] {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool up = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    return up;
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Recovery of plain Gloo, for comparison."};
  Settings s;
  app.add_option("--members", s.members)->check(CLI::Range(2, kMembersMax));
  app.add_option("--trials", s.trials);
  app.add_option("--bytes", s.bytes, "Bytes per all-reduce");
  app.add_option("--limit", s.limit, "Seconds after which a trial counts as a hang");
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGPIPE, SIG_IGN);
  auto* page = static_cast<Page*>(
      ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int port = FreePort();
  const pid_t redis = StartRedis(port);
  int result = 1;
  if (!RedisAnswers(s, port)) {
    std::fprintf(stderr, "naive-gloo: redis-server does not start; install redis-server\n");
  } else {
    std::mt19937 random(1);
    std::vector<double> ms;
    int hangs = 0;
    for (int trial = 0; trial < s.trials; ++trial) {
      const double took = Trial(s, port, trial, random, page);
      if (took < 0) {
        ++hangs;
      } else {
        ms.push_back(took);
      }
    }
    std::sort(ms.begin(), ms.end());
    const auto at = [&](size_t index) { return ms.empty() ? -1.0 : ms[index]; };
    std::printf(
        "{\"bench\": \"naive_gloo_kill_to_first_allreduce\", \"n\": %d, \"bytes\": %zu, "
        "\"trials\": "
        "%d, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f, \"unit\": \"ms\", \"hangs\": %d, "
        "\"wrong_sums\": %d}\n",
        s.members, s.bytes, s.trials, at(ms.size() / 2), at(ms.size() * 99 / 100),
        at(ms.empty() ? 0 : ms.size() - 1), hangs, page->wrong_sums.load());
    result = 0;
  }
  ::kill(redis, SIGTERM);
  ::waitpid(redis, nullptr, 0);
  return result;
}
