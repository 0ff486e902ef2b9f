// Actor calls between two processes against raw ZeroMQ between two, interleaved in the same run.
//
//   sync    one call in flight: round trip in microseconds (64-byte argument and result)
//   async   many calls in flight: calls per second
// Processes are not pinned. Prints one JSON line per figure.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>
#include <zmq.hpp>

#include <troupe/troupe.h>

class Echo {
 public:
  std::string Say(const std::string& text) { return text; }
};

TROUPE_ACTOR(Echo, (), Say);

namespace {

using troupe::SteadyClock;
using troupe::Time;

constexpr int kWarmup = 200;
constexpr int kSync = 2000;
constexpr int kAsync = 20000;
constexpr int kRounds = 9;

double MicrosSince(Time start) {
  return static_cast<double>((SteadyClock().Now() - start).count()) / 1e3;
}

void Print(const char* name, std::vector<double> v, const char* unit) {
  std::sort(v.begin(), v.end());
  std::printf(
      "{\"bench\": \"%s\", \"n\": %zu, \"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f, \"unit\": "
      "\"%s\"}\n",
      name, v.size(), v[v.size() / 2], v[v.size() * 99 / 100], v.back(), unit);
}

// A child that answers every frame of a ROUTER with itself; dies with us.
pid_t StartRawEcho(const std::string& endpoint) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  zmq::context_t context(1);
  zmq::socket_t router(context, zmq::socket_type::router);
  // A ROUTER drops what exceeds its high-water mark; here every reply must arrive.
  router.set(zmq::sockopt::sndhwm, 0);
  router.set(zmq::sockopt::rcvhwm, 0);
  router.bind(endpoint);
  for (;;) {
    zmq::message_t id;
    zmq::message_t body;
    if (!router.recv(id) || !router.recv(body)) continue;
    router.send(id, zmq::send_flags::sndmore);
    router.send(body, zmq::send_flags::none);
  }
}

}  // namespace

// One measurement after the other, read from top to bottom.
// NOLINTNEXTLINE(readability-function-size)
int main() {
  const bool worker = std::getenv("TROUPE_WORKER_PROCESS") != nullptr;
  const std::string socket = "/tmp/troupe-bench-" + std::to_string(::getpid());
  const std::string endpoint = "ipc://" + socket;
  const pid_t raw = worker ? -1 : StartRawEcho(endpoint);
  auto runtime = troupe::Init();
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", runtime.error().ToString().c_str());
    return 1;
  }
  auto echo = runtime->Spawn<Echo>({});
  if (!echo.ok()) {
    std::fprintf(stderr, "%s\n", echo.error().ToString().c_str());
    return 1;
  }
  zmq::context_t context(1);
  zmq::socket_t dealer(context, zmq::socket_type::dealer);
  dealer.set(zmq::sockopt::linger, 0);
  dealer.set(zmq::sockopt::sndhwm, 0);
  dealer.set(zmq::sockopt::rcvhwm, 0);
  dealer.connect(endpoint);
  const std::string text(64, 'x');
  const auto raw_call = [&] {
    zmq::message_t reply;
    dealer.send(zmq::buffer(text), zmq::send_flags::none);
    (void)dealer.recv(reply);
  };
  const auto call = [&] { (void)echo->Call(&Echo::Say, text).Get(); };
  for (int i = 0; i < kWarmup; ++i) {
    raw_call();
    call();
  }
  std::vector<double> raw_us;
  std::vector<double> actor_us;
  std::vector<double> raw_rate;
  std::vector<double> actor_rate;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kSync; ++i) {
      Time start = SteadyClock().Now();
      raw_call();
      raw_us.push_back(MicrosSince(start));
      start = SteadyClock().Now();
      call();
      actor_us.push_back(MicrosSince(start));
    }
    Time start = SteadyClock().Now();
    int received = 0;
    zmq::message_t reply;
    for (int i = 0; i < kAsync; ++i) {
      dealer.send(zmq::buffer(text), zmq::send_flags::none);
      while (dealer.recv(reply, zmq::recv_flags::dontwait)) ++received;
    }
    while (received < kAsync && dealer.recv(reply)) ++received;
    raw_rate.push_back(kAsync / MicrosSince(start) * 1e6);
    start = SteadyClock().Now();
    std::vector<troupe::Future<std::string>> futures;
    for (int i = 0; i < kAsync; ++i) {
      futures.push_back(echo->Call(&Echo::Say, text));
      if (i >= 5000)
        (void)futures[static_cast<size_t>(i) - 5000].Get();  // Within the mailbox's depth.
    }
    for (const auto& future : futures) {
      if (!future.Get().ok()) std::fprintf(stderr, "a call failed\n");
    }
    actor_rate.push_back(kAsync / MicrosSince(start) * 1e6);
  }
  Print("actor_call_sync", actor_us, "us");
  Print("raw_zmq_sync", raw_us, "us");
  Print("actor_call_async", actor_rate, "calls/s");
  Print("raw_zmq_async", raw_rate, "calls/s");
  ::kill(raw, SIGKILL);
  ::waitpid(raw, nullptr, 0);
  std::filesystem::remove(socket);
  return 0;
}
