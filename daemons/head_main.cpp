// troupe-head: one per cluster. Wiring only.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>

#include "daemons/head_service.h"
#include "daemons/signals.h"
#include "daemons/watchdog.h"
#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/trace.h"

// Long because it is a list of options.
// NOLINTNEXTLINE(readability-function-size)
int main(int argc, char** argv) {
  using namespace troupe;
  daemons::PrepareSignals();
  daemons::PrepareMemory();
  daemons::RaiseDescriptorLimit();
  daemons::WatchdogBeat beat;
  CLI::App app{"The head of a Troupe cluster: places workers, re-forms groups, answers drivers."};
  std::string listen = "tcp://0.0.0.0:6380";
  std::string key_file;
  std::string log_file;
  RedisOptions redis;
  daemons::HeadOptions options;
  std::string password_file;
  app.add_option("--listen", listen, "Endpoint to listen on: tcp://ADDRESS:PORT or ipc://PATH");
  app.add_option("--key-file", key_file,
                 "The cluster's key file (made if absent, with FILE.head); needed for tcp");
  app.add_option("--redis-host", redis.host);
  app.add_option("--redis-port", redis.port);
  app.add_option("--redis-socket", redis.unix_socket,
                 "Unix socket of Redis, instead of host and port");
  app.add_option("--redis-password-file", password_file);
  app.add_option("--redis-prefix", redis.key_prefix, "Put before every key");
  double node_lease_s = ToSeconds(options.node_dead);
  app.add_option("--node-lease", node_lease_s,
                 "A node that is silent for this many seconds is put aside (default 6)")
      ->check(CLI::Range(0.5, 3600.0));
  app.add_flag("--embedded", options.embedded, "This machine is all there will ever be");
  app.add_option("--log-file", log_file);
  metrics::Endpoint metrics_at;
  app.add_option("--metrics-address", metrics_at.address, "Serve Prometheus metrics at HOST:PORT");
  app.add_option("--metrics-token-file", metrics_at.token_file,
                 "Password of the user \"troupe\"; needed beyond the loopback interface");
  CLI11_PARSE(app, argc, argv);
  options.node_dead = Duration(static_cast<int64_t>(node_lease_s * 1e9));
  options.node_suspect = options.node_dead / 3;
  InitLogging("head", log_file);
  trace::Start("head");
  if (!password_file.empty()) std::getline(std::ifstream(password_file), redis.password);

  std::string metrics_url;
  if (!metrics_at.address.empty()) {
    const Result<std::string> served = metrics::Serve(metrics_at);
    if (!served.ok()) {
      std::cerr << "troupe-head: " << served.error().message << "\n";
      return 1;
    }
    metrics_url = *served;
  }
  ZmqTransportOptions transport_options;
  transport_options.name = kHeadName;
  if (!key_file.empty()) {
    const Result<HeadKeys> keys = LoadOrCreateHeadKeys(key_file);
    if (!keys.ok()) {
      std::cerr << "troupe-head: " << keys.error().message << "\n";
      return 1;
    }
    transport_options.keys = keys->own;
    transport_options.allowed_keys = keys->allowed;
    if (keys->shared) {
      LogWarning("key file ", key_file,
                 " is of an earlier release: whoever has it can stand in for the head; end the "
                 "cluster, remove the file, start anew and copy the new one to the other hosts");
    }
  }
  Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(transport_options);
  if (!transport.ok()) {
    std::cerr << "troupe-head: " << transport.error().message << "\n";
    return 1;
  }
  beat.Start((*transport)->loop());
  std::unique_ptr<Store> store = MakeRedisStore(redis);
  BlockingLane store_lane("store");
  daemons::HeadService head(transport->get(), &store_lane, store.get(), options);
  const Time give_up = SteadyClock().Now() + seconds(20);
  Status started = head.Start();
  auto cause = daemons::StopCause::kCondition;
  if (!started.ok()) {  // Redis may still be starting.
    cause = daemons::WaitForStop(
        -1,
        [&] {
          started = head.Start();
          return started.ok() || SteadyClock().Now() >= give_up;
        },
        milliseconds(20));
  }
  if (cause == daemons::StopCause::kSignal) return 0;
  Result<PeerAddress> address =
      started.ok() ? (*transport)->Listen(listen) : Result<PeerAddress>(started.error());
  if (!address.ok()) {
    std::cerr << "troupe-head: " << address.error().message << "\n";
    return 1;
  }
  std::cout << address->endpoint << " " << address->public_key << std::endl;
  if (!metrics_url.empty()) std::cout << "metrics " << metrics_url << std::endl;
  daemons::WaitForStop(
      -1, [&] { return head.down(); }, milliseconds(100));
  transport->get()->SetHandler(nullptr);
  store_lane.Stop();
  // Of a store that outlives us. One without a prefix may hold the keys of others.
  if (head.down() && !redis.key_prefix.empty()) (void)store->DeletePrefix("");
  (*transport)->Stop();  // Not its end: what the head leaves open is cancelled on it.
  return head.down() ? kTakenDownStatus : 0;
}
