// troupe-local: the embedded cluster of one driver. Starts a private Redis, a head and, unless the
// nodes come from elsewhere (--no-node), a node,
// starts head and Redis again if they die, and ends everything, files included, when the driver's
// end of the lifeline closes.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "daemons/signals.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "runtime/store.h"

namespace {

using namespace troupe;
namespace fs = std::filesystem;

struct Child {
  const char* name;
  SpawnOptions options;
  ChildProcess process;

  Status Run() {
    Result<ChildProcess> started = Spawn(options);
    if (!started.ok()) return started.error().WithContext(std::string("cannot start ") + name);
    process = std::move(*started);
    return Status::Ok();
  }
};

SpawnOptions Daemon(std::vector<std::string> argv, const std::string& output, int death_signal) {
  SpawnOptions options;
  options.argv = std::move(argv);
  options.output_path = output;
  options.parent_death_signal = death_signal;
  return options;
}

Status MakeLogDir(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (!error && ::access(dir.c_str(), W_OK | X_OK) != 0)
    error = std::error_code(errno, std::generic_category());
  if (!error) return Status::Ok();
  return Error{ErrorCode::kUnavailable, "cannot write logs into " + dir + ": " + error.message() +
                                            "; choose another log directory"};
}

bool WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  return out.good();
}

}  // namespace

// Long because it is a list of options.
// NOLINTNEXTLINE(readability-function-size)
int main(int argc, char** argv) {
  daemons::PrepareSignals();
  CLI::App app{"The embedded cluster of one driver process."};
  std::string run_dir;
  std::string bin_dir;
  std::string redis_server = "redis-server";
  std::string log_dir;
  std::vector<std::string> node_args;
  bool no_node = false;
  app.add_option("--run-dir", run_dir, "Private directory; removed at the end")->required();
  app.add_option("--bin-dir", bin_dir, "Where troupe-head and troupe-node are")->required();
  app.add_option("--redis-server", redis_server);
  app.add_option("--log-dir", log_dir, "Kept; default: inside the run directory");
  app.add_flag("--no-node", no_node, "Start no node; nodes will join and leave by themselves");
  app.add_option("--node-arg", node_args, "Passed on to troupe-node")->allow_extra_args(false);
  CLI11_PARSE(app, argc, argv);
  const std::string logs = log_dir.empty() ? run_dir : log_dir;
  const auto fail = [&](const std::string& why) {
    std::cout << "error " << why << std::endl;
    std::error_code ignored;
    fs::remove_all(run_dir, ignored);
    return 1;
  };

  if (const Status made = MakeLogDir(logs); !made.ok()) return fail(made.error().message);
  InitLogging("local", logs + "/local.log");
  Result<std::string> redis = FindProgram(redis_server);
  if (!redis.ok())
    return fail(redis.error().message + "; install it with: apt-get install redis-server");
  const std::string password = RandomId() + RandomId();
  const std::string redis_socket = run_dir + "/redis.sock";
  const std::string redis_conf = run_dir + "/redis.conf";
  if (!WriteFile(redis_conf, "port 0\nunixsocket " + redis_socket +
                                 "\nunixsocketperm 700\nrequirepass " + password +
                                 "\nsave \"\"\nappendonly yes\nappendfsync everysec\ndir " +
                                 run_dir + "\ndaemonize no\nloglevel warning\n") ||
      !WriteFile(run_dir + "/redis.password", password)) {
    return fail("cannot write to " + run_dir + ": " + std::strerror(errno) +
                "; free some disk space or set TMPDIR");
  }
  const std::string head_endpoint = "ipc://" + run_dir + "/head.sock";
  std::vector<std::string> node_argv{bin_dir + "/troupe-node",
                                     "--head",
                                     head_endpoint,
                                     "--run-dir",
                                     run_dir,
                                     "--name",
                                     "local",
                                     "--log-file",
                                     logs + "/node.log"};
  node_argv.insert(node_argv.end(), node_args.begin(), node_args.end());
  // Redis dies with us; head and node get SIGTERM instead, so that they still end their own
  // children.
  std::vector<std::string> head_argv{bin_dir + "/troupe-head",
                                     "--listen",
                                     head_endpoint,
                                     "--redis-socket",
                                     redis_socket,
                                     "--redis-password-file",
                                     run_dir + "/redis.password",
                                     "--log-file",
                                     logs + "/head.log"};
  if (!no_node) head_argv.emplace_back("--embedded");
  std::vector<Child> children;
  children.push_back(
      {"redis-server", Daemon({*redis, redis_conf}, logs + "/redis.log", SIGKILL), {}});
  children.push_back({"troupe-head", Daemon(head_argv, logs + "/head.out", SIGTERM), {}});
  if (!no_node)
    children.push_back({"troupe-node", Daemon(node_argv, logs + "/node.out", SIGTERM), {}});
  for (Child& child : children) {
    if (const Status s = child.Run(); !s.ok()) return fail(s.error().message);
  }
  std::cout << "ready " << head_endpoint;
  for (const Child& child : children) std::cout << " " << child.process.pid();
  std::cout << std::endl;
  const auto supervise = [&] {
    for (Child& child : children) {
      if (const auto info = child.process.TryReap()) {
        LogWarning(child.name, " ", info->ToString(), "; starting it again");
        if (const Status s = child.Run(); !s.ok()) LogError(s.error().message);
      }
    }
    return false;
  };
  daemons::WaitForStop(STDIN_FILENO, supervise, milliseconds(20));
  if (!no_node) children[2].process.Terminate(seconds(2));
  children[1].process.Terminate(seconds(1));
  children[0].process.Terminate(milliseconds(500));
  std::error_code ignored;
  fs::remove_all(run_dir, ignored);
  return 0;
}
