// troupe-head: one per cluster. Wiring only.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "daemons/head/disk_spool.h"
#include "daemons/head/head_service.h"
#include "daemons/head/store_owner.h"
#include "runtime/blocking_lane.h"
#include "runtime/curve_key_files.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/process.h"
#include "runtime/signals.h"
#include "runtime/trace.h"
#include "runtime/watchdog.h"

namespace {

// As good as for ever, and a number that every store takes.
constexpr troupe::Duration kLastingTtl = std::chrono::hours(24 * 3650);
constexpr troupe::Duration kStartLimit = troupe::seconds(20);

}  // namespace

// Long because it is a list of options.
// NOLINTNEXTLINE(readability-function-size)
int main(int argc, char** argv) {
  using namespace troupe;
  PrepareSignals();
  PrepareMemory();
  RaiseDescriptorLimit();
  WatchdogBeat beat;
  CLI::App app{"The head of a Troupe cluster: places workers, re-forms groups, answers drivers."};
  std::vector<std::string> endpoints{"tcp://0.0.0.0:6380"};
  std::string key_file;
  std::string log_file;
  RedisOptions redis;
  daemons::HeadOptions options;
  std::string password_file;
  app.add_option("--listen", endpoints,
                 "Endpoint to listen on: tcp://ADDRESS:PORT or ipc://PATH; repeatable")
      ->allow_extra_args(false);
  app.add_option("--key-file", key_file,
                 "The cluster's key file (made if absent, with FILE.head); needed for tcp");
  app.add_option("--redis-host", redis.host);
  app.add_option("--redis-port", redis.port);
  app.add_option("--redis-socket", redis.unix_socket,
                 "Unix socket of Redis, instead of host and port");
  app.add_option("--redis-password-file", password_file);
  app.add_option("--redis-prefix", redis.key_prefix, "Put before every key");
  std::string owner_name;
  app.add_option("--store-owner", owner_name,
                 "The store outlives this head: records do not expire, one owner at a time keeps "
                 "its own there, and they are removed when the cluster is taken down");
  double node_lease_s = ToSeconds(options.node_dead);
  app.add_option("--node-lease", node_lease_s,
                 "A node that is silent for this many seconds is given up (default 6)")
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
  if (!password_file.empty() && !std::getline(std::ifstream(password_file), redis.password)) {
    std::cerr << "troupe-head: cannot read the password of Redis in " << password_file << "\n";
    return 1;
  }
  if (!owner_name.empty()) options.key_ttl = kLastingTtl;

  std::string metrics_url;
  if (!metrics_at.address.empty()) {
    const Result<std::string> served = metrics::Serve(metrics_at);
    if (!served.ok()) {
      std::cerr << "troupe-head: " << served.error().message << "\n";
      return 1;
    }
    metrics_url = *served;
    options.metrics = true;
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
    if (!keys->shared) options.join_keys = ClientKeyText(*keys);
    options.head_key = keys->own.public_key;
    for (const std::string& endpoint : endpoints) {
      if (endpoint.starts_with("tcp://")) options.join_at = endpoint.substr(6);
    }
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
  daemons::DiskSpool spool;
  daemons::HeadService head(transport->get(), &store_lane, store.get(), &spool, options);
  std::unique_ptr<daemons::StoreOwner> owner;
  if (!owner_name.empty()) {
    owner = std::make_unique<daemons::StoreOwner>(store.get(), owner_name,
                                                  transport_options.keys.public_key);
  }
  const Time give_up = SteadyClock().Now() + kStartLimit;
  Status started;
  const auto start = [&] {
    started = owner ? owner->Take() : Status::Ok();
    if (started.ok()) started = head.Start();
    return started.ok() || started.error().code == ErrorCode::kPermissionDenied ||
           SteadyClock().Now() >= give_up;
  };
  auto cause = StopCause::kCondition;
  // Redis may still be starting, or the head before be dying.
  if (!start()) cause = WaitForStop(-1, start, milliseconds(20));
  if (cause == StopCause::kSignal) return 0;
  for (const std::string& endpoint : endpoints) {
    const Result<PeerAddress> address =
        started.ok() ? (*transport)->Listen(endpoint) : Result<PeerAddress>(started.error());
    if (!address.ok()) {
      std::cerr << "troupe-head: " << address.error().message << "\n";
      return 1;
    }
    std::cout << address->endpoint << " " << address->public_key << std::endl;
  }
  if (!metrics_url.empty()) std::cout << "metrics " << metrics_url << std::endl;
  std::atomic<bool> lost{false};
  if (owner) {
    transport->get()->loop().Post(
        [&] { owner->Keep(&transport->get()->loop(), &store_lane, [&] { lost = true; }); });
  }
  const auto ended = [&] { return head.down() || lost; };
  WaitForStop(-1, ended, milliseconds(100));
  // Its own host's node may be gone, and this be told to go, before all others have heard of it.
  while (head.going_down() && !ended()) WaitForStop(-1, ended, milliseconds(20));
  transport->get()->SetHandler(nullptr);
  store_lane.Stop();
  if (lost) LogError("another head has taken over the records; this one ends");
  if (head.going_down() && owner) {
    if (const Status s = owner->Forget(); !s.ok()) LogError(s.error().message);
  }
  (*transport)->Stop();  // Not its end: what the head leaves open is cancelled on it.
  return head.going_down() ? kTakenDownStatus : lost ? 1 : 0;
}
