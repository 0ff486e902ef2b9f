// troupe-autoscaler: a cluster from a YAML file. Starts a private Redis and head, holds the nodes
// that the file asks for, runs the training command, and exits with its exit code. Wiring only.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "autoscaler/config_help.h"
#include "autoscaler/provider_check.h"
#include "autoscaler/simulator/simulate.h"
#include "daemons/autoscaler/fleet_run.h"
#include "daemons/autoscaler/journal.h"
#include "daemons/autoscaler/session.h"
#include "daemons/autoscaler/take_down.h"
#include "daemons/client/driver_client.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/signals.h"

namespace {

using namespace troupe;
namespace fs = std::filesystem;

void AddSimulation(CLI::App& app, simulator::SimulateRequest& request, bool& simulate) {
  app.add_flag("--simulate", simulate, "Only try the file on a market, beside other fleets");
  app.add_option("--trace", request.traces, "A recorded market: PATH or NAME=PATH");
  app.add_option("--synthetic", request.synthetic, "Seed of a market that is made up");
  app.add_option("--hours", request.hours, "How much of it");
  app.add_option("--boot-s", request.boot_s, "From a launch until its node is up");
  app.add_option("--notice-s", request.notice_s, "Before a node is taken back");
  app.add_option("--rebuild-s", request.rebuild_s, "Standstill after a change of members");
  app.add_option("--lost-s", request.lost_s, "Work done again after a loss without notice");
  app.add_option("--restart-s", request.restart_s, "Of a whole group, in the reference");
  app.add_option("--scaling-loss", request.scaling_loss,
                 "n workers do the work of n / (1 + LOSS * (n - 1))");
  app.add_option("--output", request.output, "table, json or html");
  app.add_option("--output-file", request.output_file, "Where to write it, instead of printing it");
}

struct DownRequest {
  bool wanted = false;
  double limit_s = 300;
};

void AddDown(CLI::App& app, DownRequest& down) {
  app.add_flag("--down", down.wanted, "End the cluster and its nodes, whoever has made them");
  app.add_option("--timeout-s", down.limit_s, "With --down: for so long at most")
      ->check(CLI::Range(1.0, 86400.0));
}

int TakeDown(const ClusterConfig& config, const fs::path& file, const std::string& bin_dir,
             const DownRequest& down) {
  const Duration limit(static_cast<int64_t>(down.limit_s * 1e9));
  const Status ended = daemons::TakeDownFleet(
      config, {file.parent_path().string(), bin_dir, limit, daemons::SayLine});
  if (!ended.ok()) std::cerr << "troupe-autoscaler: " << ended.error().message << "\n";
  return ended.ok() ? 0 : 1;
}

bool ServeMetrics(const metrics::Endpoint& at) {
  if (at.address.empty()) return true;
  const Result<std::string> served = metrics::Serve(at);
  if (served.ok()) {
    daemons::SayLine("metrics at " + *served);
  } else {
    std::cerr << "troupe-autoscaler: " << served.error().message << "\n";
  }
  return served.ok();
}

// Of a command that only reads the file.
int Tell(const Result<std::string>& answer) {
  (answer.ok() ? std::cout : std::cerr) << (answer.ok() ? *answer : answer.error().message + "\n");
  return answer.ok() ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  PrepareSignals();
  if (argc > 2 && std::string(argv[1]) == daemons::kSessionFlag)
    return daemons::RunSession({argv + 2, argv + argc});
  CLI::App app{"Runs the training of a cluster file on the nodes that it asks for."};
  std::string file;
  daemons::DriverOptions options;
  std::error_code ignored;
  options.bin_dir = fs::read_symlink("/proc/self/exe", ignored).parent_path().string();
  options.with_node = false;
  bool check = false;
  bool explain = false;
  bool schema = false;
  std::vector<std::string> supplier;
  std::string offer;
  auto* cluster_file = app.add_option("file", file, "Cluster file (YAML)");
  app.add_flag("--check", check, "Only say what is wrong with the file");
  app.add_flag("--explain", explain, "Only print each key, its value, and what it means");
  app.add_flag("--schema", schema, "Only print a JSON schema of cluster files");
  app.add_option("--offer", offer, "With --check-provider: take nodes of this offer");
  app.add_option("--check-provider", supplier,
                 "Only check that a program supplies nodes as `provider: exec` asks");
  app.add_option("--bin-dir", options.bin_dir, "Where the other daemons are; default: beside this");
  app.add_option("--redis-server", options.redis_server, "Name or path; default: from PATH");
  app.add_option("--log-dir", options.log_dir, "Keep the logs of head and Redis here");
  simulator::SimulateRequest simulation;
  bool simulate = false;
  AddSimulation(app, simulation, simulate);
  daemons::FleetRunRequest request;
  bool no_journal = false;
  app.add_flag("--take-over", request.take_over, "End nodes of any other one of this cluster");
  DownRequest down;
  AddDown(app, down);
  app.add_option("--journal", request.journal,
                 "Keep what is done, and why, in this file for `troupe why`");
  app.add_flag("--no-journal", no_journal, "Keep none");
  metrics::Endpoint metrics_at;
  app.add_option("--metrics-address", metrics_at.address, "Serve Prometheus metrics at HOST:PORT");
  app.add_option("--metrics-token-file", metrics_at.token_file,
                 "Password of the user \"troupe\"; needed beyond the loopback interface");
  CLI11_PARSE(app, argc, argv);
  if (!supplier.empty()) {
    ProviderCheckOptions check_options;
    check_options.command.argv = std::move(supplier);
    check_options.offer = std::move(offer);
    return Tell(ReportOf(CheckProvider(check_options)));
  }
  if (schema) return Tell(ClusterConfigSchema());
  if (cluster_file->count() == 0) {
    std::cerr << "troupe-autoscaler: which cluster file?\n";
    return 2;
  }
  if (check) return Tell(CheckClusterFile(file));
  if (explain) return Tell(ExplainClusterFile(file));
  if (simulate) return Tell(simulator::SimulateClusterFile(file, simulation));
  InitLogging("autoscaler", "");
  if (!ServeMetrics(metrics_at)) return 2;
  const Result<ClusterConfig> config = ReadClusterConfig(file);
  if (!config.ok()) {
    std::cerr << config.error().message << "\n";
    return 2;
  }
  request.file = fs::absolute(file, ignored);
  if (down.wanted) return TakeDown(*config, request.file, options.bin_dir, down);
  options.metrics_port = config->metrics_port;
  options.listen = config->head.listen;
  if (request.journal.empty()) request.journal = daemons::DefaultJournalPath(config->name);
  if (no_journal) request.journal.clear();
  return daemons::HoldFleet(*config, request, options);
}
