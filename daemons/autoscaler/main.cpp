// troupe-autoscaler: a cluster from a YAML file. Starts a private Redis and head, holds the nodes
// that the file asks for, runs the training command, and exits with its exit code. Wiring only.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <utility>

#include "autoscaler/config_help.h"
#include "autoscaler/provider_check.h"
#include "autoscaler/simulator/simulate.h"
#include "daemons/autoscaler/account_text.h"
#include "daemons/autoscaler/autoscaler_service.h"
#include "daemons/autoscaler/journal.h"
#include "daemons/autoscaler/session.h"
#include "daemons/autoscaler/supplier.h"
#include "daemons/client/driver_client.h"
#include "runtime/log.h"
#include "runtime/metrics.h"
#include "runtime/signals.h"

namespace {

using namespace troupe;
namespace fs = std::filesystem;

constexpr Duration kClusterLimit = seconds(2);
constexpr Duration kTrainingGrace = daemons::kSessionGrace + daemons::kSessionKillLimit;

// Runs an entrypoint, argv[1], on workers as the file wants them, argv[2].
constexpr const char* kEntrypointProgram = R"py(
import importlib, json, os, sys
import troupe
sys.path.insert(0, os.getcwd())
module, _, name = sys.argv[1].partition(":")
function = getattr(importlib.import_module(module), name)
with troupe.Executor(**json.loads(sys.argv[2])) as executor:
    executor.run(function)
)py";

void Say(const std::string& line) { std::cout << "troupe: " << line << std::endl; }

// `folder`: of the cluster file, from which its working directory counts.
SpawnOptions TrainingCommand(const ClusterConfig& config, const fs::path& folder,
                             const daemons::DriverClient& client) {
  const TrainingSpec& training = config.training;
  SpawnOptions spawn;
  spawn.argv = training.command;
  if (!training.entrypoint.empty()) {
    std::string resources;
    for (const auto& [name, amount] : training.resources.ToMap())
      resources +=
          (resources.empty() ? "\"" : ", \"") + name + "\": " + daemons::NumberText(amount);
    const std::string arguments =
        "{\"min_workers\": " + std::to_string(std::max(1, config.limits.min_workers)) +
        ", \"max_workers\": " + std::to_string(config.limits.max_workers) +
        ", \"elastic_timeout\": " +
        daemons::NumberText(ToMilliseconds(training.elastic_timeout) / 1000) +
        ", \"resources_per_worker\": {" + resources + "}}";
    spawn.argv = {"python3", "-c", kEntrypointProgram, training.entrypoint, arguments};
  }
  if (!training.working_dir.empty())
    spawn.argv.insert(spawn.argv.begin(),
                      {"env", "--chdir=" + (folder / training.working_dir).string()});
  spawn.env = training.env;
  // Actors of other hosts are to reach the training by the address by which it reaches the head.
  spawn.env["TROUPE_ADDRESS"] = daemons::EndpointHere(config.head, client);
  if (!client.key_file().empty()) spawn.env["TROUPE_KEY_FILE"] = client.key_file();
  return spawn;
}

// The exit code for a shell.
int CodeOf(const ExitInfo& info) { return info.signal != 0 ? 128 + info.signal : info.code; }

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Ends all nodes, and tells what the fleet has come to.
void EndFleet(daemons::AutoscalerService& service, daemons::Supplier& supplier, const Clock& clock,
              int code, const std::function<void(const FleetNote&)>& note) {
  const Time deadline = clock.Now() + supplier.grace();
  bool ended = service.End(clock.Now());
  for (; !ended && clock.Now() < deadline; ended = service.End(clock.Now())) ::usleep(10'000);
  const std::string left = ended ? "" : "not all nodes have ended: " + supplier.Left();
  if (!ended) Say(left);
  const std::string account = daemons::AccountLine(service.accounts());
  Say("accounts: " + account);
  note({FleetNoteKind::kAccount, {}, {}, {}, account, daemons::AccountJson(service.accounts())});
  note({FleetNoteKind::kEnd,
        {},
        {},
        {},
        "exit status " + std::to_string(code) + "; " + (ended ? "no node is left" : left)});
}

int Run(const ClusterConfig& config, const fs::path& folder, const std::string& journal_path,
        const daemons::DriverOptions& options) {
  Result<std::unique_ptr<daemons::DriverClient>> connected =
      daemons::DriverClient::Connect(options);
  if (!connected.ok()) {
    std::cerr << "troupe-autoscaler: " << connected.error().message << "\n";
    return 1;
  }
  daemons::DriverClient& client = **connected;
  SteadyClock clock;
  const std::string life = RandomId();
  const std::unique_ptr<daemons::Supplier> supplier =
      daemons::MakeSupplier({&config, folder.string(), options.bin_dir, life, &clock, &client});
  daemons::AutoscalerCallbacks callbacks;
  callbacks.provider = &supplier->nodes();
  callbacks.notices = &supplier->notices();
  callbacks.cluster = [&]() -> Result<daemons::ClusterState> {
    const Result<std::string> json = client.ClusterJson(kClusterLimit);
    return json.ok() ? daemons::ParseClusterState(*json) : json.error();
  };
  callbacks.drain = [&](const std::string& id, const std::string& why, Duration left) {
    return supplier->Drain(id, why, left);
  };
  callbacks.gone = [&](const std::string& id) { supplier->Gone(id); };
  callbacks.say = Say;
  daemons::FleetJournal journal(journal_path, life, Say);
  const auto note = [&](const FleetNote& what) { journal.Write(UnixSeconds(), what); };
  callbacks.note = note;
  note({FleetNoteKind::kStart,
        {},
        {},
        {},
        "cluster " + config.name + ", provider " + config.provider + ", at " + client.address()});
  daemons::AutoscalerService service(config, life + "-", std::move(callbacks));

  Say("cluster " + config.name + " at " + client.address());
  if (!config.head.listen.empty())
    Say("its head listens on " + config.head.listen + "; `troupe token` lets a node join");
  ChildProcess training;
  const SpawnOptions command = TrainingCommand(config, folder, client);
  if (!command.argv.empty()) {
    Result<ChildProcess> started = Spawn(daemons::InSession(command));
    if (!started.ok()) {
      std::cerr << "troupe-autoscaler: training: " << started.error().message << "\n";
      return 1;
    }
    training = std::move(*started);
  }
  Time due = clock.Now();
  std::string strangers;
  const auto turn = [&] {
    if (training.TryReap()) return true;
    const Time now = clock.Now();
    const bool moved = supplier->nodes().Step(now);
    if (moved || now >= std::min(due, supplier->next_wake())) due = service.Step(now);
    const std::string before = std::exchange(strangers, supplier->Strangers());
    if (before.empty() && !strangers.empty()) Say(strangers);
    return false;
  };
  const StopCause cause = WaitForStop(-1, turn, std::min<Duration>(config.tick, milliseconds(50)));
  int code = 130;
  if (cause == StopCause::kSignal) {
    Say("interrupted; ending the cluster");
    training.Terminate(kTrainingGrace);
  } else if (const auto info = training.TryReap()) {
    Say("training " + info->ToString());
    code = CodeOf(*info);
  }
  EndFleet(service, *supplier, clock, code, note);
  return code;
}

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
  std::string journal;
  bool no_journal = false;
  app.add_option("--journal", journal, "Keep what is done, and why, in this file for `troupe why`");
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
  if (!metrics_at.address.empty()) {
    const Result<std::string> served = metrics::Serve(metrics_at);
    if (!served.ok()) {
      std::cerr << "troupe-autoscaler: " << served.error().message << "\n";
      return 2;
    }
    Say("metrics at " + *served);
  }
  const Result<ClusterConfig> config = ReadClusterConfig(file);
  if (!config.ok()) {
    std::cerr << config.error().message << "\n";
    return 2;
  }
  options.metrics_port = config->metrics_port;
  options.listen = config->head.listen;
  if (journal.empty()) journal = daemons::DefaultJournalPath(config->name);
  return Run(*config, fs::absolute(file, ignored).parent_path(), no_journal ? "" : journal,
             options);
}
