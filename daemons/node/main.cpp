// troupe-node: one per host. Wiring only.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include "daemons/node/join_cluster.h"
#include "daemons/node/node_service.h"
#include "runtime/curve_key_files.h"
#include "runtime/descendants.h"
#include "runtime/host_address.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/private_folder.h"
#include "runtime/shared_folder.h"
#include "runtime/signals.h"
#include "runtime/trace.h"
#include "runtime/watchdog.h"
#include "scheduler/resources.h"

namespace {
// However few CPUs the host has, and however many.
constexpr double kFewSpares = 4;
constexpr double kManySpares = 16;

// A directory of this process, unless it is the caller's: gone with it.
struct RunFolder {
  std::string made;
  ~RunFolder() {
    std::error_code ignored;
    if (!made.empty()) std::filesystem::remove_all(made, ignored);
  }
};

// Of "tcp://HOST:PORT".
std::string HostOf(const std::string& endpoint) {
  const std::string at = endpoint.substr(endpoint.find("://") + 3);
  return at.substr(0, at.rfind(':'));
}

// Fetches the key with the token, if there is one.
troupe::Status Join(troupe::daemons::NodeOptions& options, const std::string& token) {
  if (token.empty()) return troupe::Status::Ok();
  if (options.key_file.empty()) options.key_file = options.run_dir + "/cluster.key";
  return troupe::daemons::JoinCluster(
      {options.head.endpoint, token, options.node, options.key_file});
}

// Returns when the node is to end: by a signal, as it was told, or when it has drained after a
// signal that says that its time is up.
void AwaitEnd(troupe::daemons::NodeService& node, const troupe::daemons::NodeOptions& options,
              troupe::Duration term_notice) {
  using namespace troupe;
  const auto stopped = [&] { return node.replaced() || node.down(); };
  const StopCause cause = WaitForStop(-1, stopped);
  Duration left = Duration::zero();
  if (cause == StopCause::kUser1) {
    left = daemons::NodeService::JobLeft().value_or(options.walltime);
    node.Notice({"walltime", "slurm", "SIGUSR1"}, left);
  } else if (cause == StopCause::kSignal && term_notice > Duration::zero()) {
    left = term_notice;
    node.Notice({"preempt", "SIGTERM", "SIGTERM"}, left);
  }
  const Time until = SteadyClock().Now() + left;
  const auto over = [&] { return stopped() || node.drained() || SteadyClock().Now() >= until; };
  while (!over() && WaitForStop(-1, over) == StopCause::kUser1) {
  }
}
}  // namespace

// Long because it is a list of options.
// NOLINTNEXTLINE(readability-function-size)
int main(int argc, char** argv) {
  using namespace troupe;
  PrepareSignals();
  PrepareMemory();
  BecomeSubreaper();
  WatchdogBeat beat;
  CLI::App app{"The node daemon of a Troupe cluster: runs workers on this host."};
  daemons::NodeOptions options;
  std::string log_file;
  double cpus = 0;
  double gpus = 0;
  double memory = 0;
  std::vector<std::string> resources;
  std::vector<std::string> labels;
  double notice_s = 0;
  options.head.peer = kHeadName;
  app.add_option("--head", options.head.endpoint, "Endpoint of the head")->required();
  app.add_option("--key-file", options.key_file, "The cluster's key pair; needed for tcp");
  std::string join_token;
  app.add_option("--join-token", join_token,
                 "Fetch the key pair with this token, unless it is there (docs/fleets.md)")
      ->envname("TROUPE_JOIN_TOKEN");
  bool join_only = false;
  app.add_flag("--join-only", join_only, "Only fetch it, and end")->needs("--key-file");
  app.add_option("--name", options.node, "Name of this node; default: host name and process id");
  app.add_option("--run-dir", options.run_dir,
                 "Private directory; default: a new one under the temp directory");
  auto* data_address = app.add_option(
      "--data-address", options.data_address,
      "Address that collectives bind to; default: by which this host reaches the head");
  app.add_option("--cpus", cpus, "CPUs offered; default: all");
  app.add_option("--gpus", gpus, "GPUs offered");
  app.add_option("--memory", memory, "Bytes offered; default: physical memory");
  app.add_option("--resource", resources, "NAME=AMOUNT, repeatable");
  app.add_option("--label", labels, "NAME=VALUE, repeatable");
  app.add_option("--log-dir", options.log_dir, "Write each worker's output here as well");
  uint64_t worker_log_mb = options.logs.worker_bytes >> 20;
  uint64_t logs_mb = options.logs.folder_bytes >> 20;
  app.add_option("--worker-log-mb", worker_log_mb, "How much is kept of a worker (default 64)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--logs-mb", logs_mb, "And of all that have ended (default 1024)")
      ->check(CLI::Range(1, 1 << 30));
  double fence_s = ToSeconds(options.fence);
  app.add_option("--fence-s", fence_s,
                 "End the actors when the head was not heard for so long (default 600; 0: never)")
      ->check(CLI::Range(0.0, 1e9));
  double lease_s = 0;
  app.add_option("--lease-s", lease_s,
                 "End this node when the head was not heard for so long (default 0: never)")
      ->check(CLI::Range(0.0, 1e9));
  int64_t spares = -1;
  app.add_option("--spares", spares,
                 "Python processes started ahead of their actors; default: one per CPU, up to 16")
      ->check(CLI::Range(0, 1024));
  app.add_option("--log-file", log_file);
  app.add_option("--notice-file", options.notice_file, "When this file appears, the node drains");
  app.add_option("--term-notice", notice_s, "On SIGTERM drain for up to this many seconds first");
  std::vector<std::string> notices;
  std::string metadata_url;
  app.add_option("--notices", notices,
                 "Whose preemption notices to look for: aws, gcp, azure, slurm, auto (by this "
                 "machine's firmware and job), none (default); repeatable")
      ->envname("TROUPE_NOTICES")
      ->delimiter(',');
  app.add_option("--metadata-url", metadata_url,
                 "Of the cloud's metadata service; default: $TROUPE_METADATA_URL, or its own");
  double walltime_s = ToSeconds(options.walltime);
  app.add_option("--walltime-notice", walltime_s,
                 "With slurm: drain so many seconds before the job's end (default 120)")
      ->check(CLI::Range(0.0, 1e6));
  metrics::Endpoint metrics_at;
  app.add_option("--metrics-address", metrics_at.address, "Serve Prometheus metrics at HOST:PORT");
  app.add_option("--metrics-token-file", metrics_at.token_file,
                 "Password of the user \"troupe\"; needed beyond the loopback interface");
  CLI11_PARSE(app, argc, argv);
  ::unsetenv("TROUPE_JOIN_TOKEN");  // It is nobody else's.
  options.logs.worker_bytes = worker_log_mb << 20;
  options.logs.folder_bytes = logs_mb << 20;
  options.fence = Duration(static_cast<int64_t>(fence_s * 1e9));
  options.lease = Duration(static_cast<int64_t>(lease_s * 1e9));
  options.walltime = Duration(static_cast<int64_t>(walltime_s * 1e9));
  const auto found = daemons::FindNoticeSources(notices, metadata_url);
  if (!found.ok()) {
    std::cerr << "troupe-node: " << found.error().message << "\n";
    return 2;
  }
  options.sources = *found;
  if (found->slurm) PrepareUser1();
  InitLogging("node", log_file);
  trace::Start("node");
  const auto fail = [](const std::string& why) {
    std::cerr << "troupe-node: " << why << "\n";
    return 1;
  };
  if (!metrics_at.address.empty()) {
    const Result<std::string> served = metrics::Serve(metrics_at);
    if (!served.ok()) return fail(served.error().message);
    std::cout << "metrics " << *served << std::endl;
  }
  const auto split = [](const std::string& text) {
    const size_t mark = text.find('=');
    return std::pair(text.substr(0, mark), mark == std::string::npos ? "" : text.substr(mark + 1));
  };
  const unsigned int own_cpus = std::max(1U, std::thread::hardware_concurrency());
  options.resources["CPU"] = cpus > 0 ? cpus : own_cpus;
  const double sensible =
      std::min(options.resources["CPU"], std::max<double>(own_cpus, kFewSpares));
  options.spares = spares >= 0 ? static_cast<size_t>(spares)
                               : static_cast<size_t>(std::clamp<double>(sensible, 1, kManySpares));
  if (gpus > 0) options.resources["GPU"] = gpus;
  options.resources["memory"] = memory > 0 ? memory
                                           : static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                                                 static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  for (const std::string& text : resources) {
    const auto [name, value] = split(text);
    char* end = nullptr;
    options.resources[name] = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0')
      return fail("--resource wants NAME=AMOUNT, got '" + text + "'");
  }
  if (const auto offered = ResourceSet::FromMap(options.resources); !offered.ok())
    return fail(offered.error().message);
  for (const std::string& text : labels) options.labels.insert(split(text));
  std::error_code ignored;
  options.bin_dir = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  if (options.node.empty()) options.node = HostName() + "-" + std::to_string(::getpid());
  RunFolder folder;
  if (options.run_dir.empty()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-node-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      return fail("cannot create a directory under the temp directory");
    options.run_dir = folder.made = pattern;
  }
  // Whoever may write there could put sockets and pages of its own in the place of ours.
  if (const Status s = MakePrivateFolder(options.run_dir, "run directory"); !s.ok())
    return fail(s.error().message);
  SharedFolder::RemoveEnded();  // Of a cluster that was killed as a whole.
  if (const Status joined = Join(options, join_token); !joined.ok())
    return fail(joined.error().message);
  if (join_only) return 0;
  if (data_address->count() == 0 && options.head.endpoint.starts_with("tcp://")) {
    const Result<std::string> towards = AddressTowards(HostOf(options.head.endpoint));
    if (!towards.ok()) return fail(towards.error().message);
    options.data_address = *towards;
  }
  ZmqTransportOptions transport_options;
  transport_options.name = "node-" + options.node + "#" + RandomId();
  if (!options.key_file.empty()) {
    const Result<ClientKeys> keys = LoadClientKeys(options.key_file);
    if (!keys.ok()) return fail(keys.error().message);
    transport_options.keys = keys->own;
    options.head.public_key = keys->head_key;
  }
  Result<std::unique_ptr<Transport>> transport = MakeZmqTransport(transport_options);
  if (!transport.ok()) return fail(transport.error().message);
  beat.Start((*transport)->loop());
  int status = 0;
  {
    daemons::NodeService node(transport->get(), options);
    if (Status s = node.Start(); !s.ok()) return fail(s.error().message);
    AwaitEnd(node, options, Duration(static_cast<int64_t>(notice_s * 1e9)));
    node.Stop(milliseconds(500));
    status = node.down() ? kTakenDownStatus : node.replaced() ? 1 : 0;
    (*transport)->Stop();
  }
  SharedFolder::RemoveEnded();  // Those who were in it may have been killed.
  return status;
}
