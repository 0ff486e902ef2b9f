// troupe-local: the daemons of one host. Starts a private Redis, a head and a node, or only some of
// them, and starts again what dies.
//
// For a driver it is the embedded cluster: it ends everything, files included, when the driver's
// end of the lifeline (its stdin) closes. With --keep it is this host's part of a cluster (`troupe
// start`), and ends at SIGTERM or when the cluster is taken down.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "daemons/signals.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "runtime/transport.h"
#include "scheduler/protocol.h"

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

struct Settings {
  std::string run_dir;
  std::string bin_dir;
  std::string redis_server = "redis-server";
  std::string log_dir;
  std::string listen;
  std::string join;
  std::string key_file;
  std::string node_name = "local";
  std::string record;
  std::vector<std::string> node_args;
  std::vector<std::string> head_args;
  bool no_node = false;
  bool keep = false;

  [[nodiscard]] std::string logs() const { return log_dir.empty() ? run_dir : log_dir; }
  [[nodiscard]] bool embedded() const { return listen.empty() && join.empty(); }
  // Where its node finds the head.
  [[nodiscard]] std::string head() const {
    if (!join.empty()) return join;
    if (listen.empty()) return "ipc://" + run_dir + "/head.sock";
    const std::string any = "//0.0.0.0:";
    const size_t at = listen.find(any);
    return at == std::string::npos ? listen : "tcp://127.0.0.1:" + listen.substr(at + any.size());
  }
};

void AddOptions(CLI::App& app, Settings& settings) {
  app.add_option("--run-dir", settings.run_dir, "Private directory; removed at the end")
      ->required();
  app.add_option("--bin-dir", settings.bin_dir, "Where troupe-head and troupe-node are")
      ->required();
  app.add_option("--redis-server", settings.redis_server);
  app.add_option("--log-dir", settings.log_dir, "Kept; default: inside the run directory");
  app.add_flag("--no-node", settings.no_node,
               "Start no node; nodes will join and leave by themselves");
  app.add_option("--listen", settings.listen,
                 "tcp://ADDRESS:PORT: the head of a cluster of several hosts");
  app.add_option("--join", settings.join, "tcp://HOST:PORT: only a node, of the cluster there")
      ->excludes("--listen");
  app.add_option("--key-file", settings.key_file,
                 "The cluster's key pair, for --listen and --join");
  app.add_option("--node-name", settings.node_name);
  app.add_flag("--keep", settings.keep, "Do not end when stdin does");
  app.add_option("--record", settings.record, "Write who runs here into this file while it does");
  app.add_option("--node-arg", settings.node_args, "Passed on to troupe-node")
      ->allow_extra_args(false);
  app.add_option("--head-arg", settings.head_args, "Passed on to troupe-head")
      ->allow_extra_args(false);
}

Result<Child> RedisChild(const Settings& settings, const std::string& socket) {
  Result<std::string> redis = FindProgram(settings.redis_server);
  if (!redis.ok())
    return Error{ErrorCode::kNotFound,
                 redis.error().message + "; install it with: apt-get install redis-server"};
  const std::string password = RandomId() + RandomId();
  const std::string conf = settings.run_dir + "/redis.conf";
  if (!WriteFile(conf, "port 0\nunixsocket " + socket + "\nunixsocketperm 700\nrequirepass " +
                           password + "\nsave \"\"\nappendonly yes\nappendfsync everysec\ndir " +
                           settings.run_dir + "\ndaemonize no\nloglevel warning\n") ||
      !WriteFile(settings.run_dir + "/redis.password", password)) {
    return Error{ErrorCode::kUnavailable, "cannot write to " + settings.run_dir + ": " +
                                              std::strerror(errno) +
                                              "; free some disk space or set TMPDIR"};
  }
  // Redis dies with us; head and node get SIGTERM instead, so that they still end their own
  // children.
  return Child{"redis-server", Daemon({*redis, conf}, settings.logs() + "/redis.log", SIGKILL), {}};
}

Child HeadChild(const Settings& settings, const std::string& redis_socket) {
  std::vector<std::string> argv{settings.bin_dir + "/troupe-head",
                                "--listen",
                                settings.listen.empty() ? settings.head() : settings.listen,
                                "--redis-socket",
                                redis_socket,
                                "--redis-password-file",
                                settings.run_dir + "/redis.password",
                                "--log-file",
                                settings.logs() + "/head.log"};
  if (!settings.key_file.empty()) argv.insert(argv.end(), {"--key-file", settings.key_file});
  if (settings.embedded() && !settings.no_node) argv.emplace_back("--embedded");
  argv.insert(argv.end(), settings.head_args.begin(), settings.head_args.end());
  return {"troupe-head", Daemon(argv, settings.logs() + "/head.out", SIGTERM), {}};
}

Child NodeChild(const Settings& settings) {
  std::vector<std::string> argv{settings.bin_dir + "/troupe-node",
                                "--head",
                                settings.head(),
                                "--run-dir",
                                settings.run_dir,
                                "--name",
                                settings.node_name,
                                "--log-file",
                                settings.logs() + "/node.log"};
  if (!settings.key_file.empty()) argv.insert(argv.end(), {"--key-file", settings.key_file});
  if (settings.keep) argv.insert(argv.end(), {"--log-dir", settings.logs()});
  argv.insert(argv.end(), settings.node_args.begin(), settings.node_args.end());
  return {"troupe-node", Daemon(argv, settings.logs() + "/node.out", SIGTERM), {}};
}

// In the order in which they start; they end in the other.
Result<std::vector<Child>> MakeChildren(const Settings& settings) {
  std::vector<Child> children;
  if (settings.join.empty()) {
    const std::string socket = settings.run_dir + "/redis.sock";
    Result<Child> redis = RedisChild(settings, socket);
    if (!redis.ok()) return redis.error();
    children.push_back(std::move(*redis));
    if (!settings.key_file.empty()) {  // The node reads it at once.
      Result<CurveKeys> keys = LoadOrCreateCurveKeys(settings.key_file);
      if (!keys.ok()) return keys.error();
    }
    children.push_back(HeadChild(settings, socket));
  }
  if (!settings.no_node) children.push_back(NodeChild(settings));
  return children;
}

bool WriteRecord(const Settings& settings) {
  const std::string draft = settings.record + ".new";
  const bool written = WriteFile(
      draft, std::to_string(::getpid()) + "\n" + (settings.join.empty() ? "head" : "node") + "\n" +
                 settings.head() + "\n" + settings.key_file + "\n" + settings.node_name + "\n" +
                 settings.logs() + "\n" + settings.run_dir + "\n");
  std::error_code error;
  if (written) fs::rename(draft, settings.record, error);
  return written && !error;
}

}  // namespace

int main(int argc, char** argv) {
  daemons::PrepareSignals();
  CLI::App app{
      "The daemons of one host: those of a driver's embedded cluster, or of a cluster's part."};
  Settings settings;
  AddOptions(app, settings);
  CLI11_PARSE(app, argc, argv);
  const auto fail = [&](const std::string& why) {
    std::cout << "error " << why << std::endl;
    std::error_code ignored;
    fs::remove_all(settings.run_dir, ignored);
    return 1;
  };
  if (const Status made = MakeLogDir(settings.logs()); !made.ok())
    return fail(made.error().message);
  InitLogging("local", settings.logs() + "/local.log");
  Result<std::vector<Child>> children = MakeChildren(settings);
  if (!children.ok()) return fail(children.error().message);
  for (Child& child : *children) {
    if (const Status s = child.Run(); !s.ok()) return fail(s.error().message);
  }
  if (!settings.record.empty() && !WriteRecord(settings))
    return fail("cannot write " + settings.record);
  std::cout << "ready " << settings.head();
  for (const Child& child : *children) std::cout << " " << child.process.pid();
  std::cout << std::endl;
  bool down = false;
  const auto supervise = [&] {
    for (Child& child : *children) {
      const auto info = child.process.TryReap();
      if (!info) continue;
      if (info->code == kTakenDownStatus) {
        down = true;
        continue;
      }
      LogWarning(child.name, " ", info->ToString(), "; starting it again");
      if (const Status s = child.Run(); !s.ok()) LogError(s.error().message);
    }
    return down;
  };
  (void)daemons::WaitForStop(settings.keep ? -1 : STDIN_FILENO, supervise, milliseconds(20));
  for (auto child = children->rbegin(); child != children->rend(); ++child)
    child->process.Terminate(std::string_view(child->name) == "troupe-node" ? seconds(2)
                                                                            : seconds(1));
  std::error_code ignored;
  if (!settings.record.empty()) fs::remove(settings.record, ignored);
  fs::remove_all(settings.run_dir, ignored);
  return 0;
}
