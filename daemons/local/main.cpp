// troupe-local: the daemons of one host. Starts a private Redis, a head and a node, or only some of
// them, and starts again what dies.
//
// For a driver it is the embedded cluster: it ends everything, files included, when the driver's
// end of the lifeline (its stdin) closes. With --keep it is this host's part of a cluster (`troupe
// start`), and ends at SIGTERM or when the cluster is taken down.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "daemons/protocol/messages.h"
#include "runtime/curve_key_files.h"
#include "runtime/descendants.h"
#include "runtime/log.h"
#include "runtime/private_folder.h"
#include "runtime/process.h"
#include "runtime/shared_folder.h"
#include "runtime/signals.h"
#include "runtime/transport.h"
#include "runtime/watchdog.h"

namespace {

using namespace troupe;
namespace fs = std::filesystem;

constexpr Duration kEndLimit = seconds(2);  // For what daemons that were killed have left.

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

// As a word of a Redis configuration.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// For nobody else to read: passwords are among them.
bool WriteFile(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool written = ::fchmod(fd, 0600) == 0 &&
                       ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return ::close(fd) == 0 && written;
}

constexpr const char* kRunDir = "run directory";
constexpr Duration kSettled = seconds(2);  // Who lives so long has started well.
constexpr Duration kFirstDelay = milliseconds(250);
constexpr Duration kLongestDelay = seconds(30);

// As the kernel tells it: "S (sleeping)", "T (stopped)", "D (disk sleep)".
std::string StateOf(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:\t")) return line.substr(7);
  }
  return "unknown";
}

struct Child {
  const char* name;
  SpawnOptions options;
  ChildProcess process;
  std::map<std::string, std::string> files;  // That it reads; written again if a cleaner took them.
  Watchdog watchdog{Duration::zero()};
  Time started{};
  Time start_at = Time::Never();  // It has ended, and is started again then.
  int deaths = 0;                 // In a row, none settled.

  // One that hangs is no better than a dead one, which is replaced.
  void EndIfHung(const std::optional<std::set<int>>& beaten) {
    const Time now = SteadyClock().Now();
    if (!beaten || beaten->contains(process.pid())) watchdog.Heard(now);
    if (!watchdog.Expired(now)) return;
    const std::string state = StateOf(process.pid());
    process.Kill(SIGKILL);  // Before the log, which may be on a disk that hangs.
    LogError(name, " (process ", process.pid(), ") has not moved for a long time and is ended; ",
             "state ", state);
  }

  // The first that comes after a good life is made up for at once.
  [[nodiscard]] Duration Delay() {
    if (SteadyClock().Now() > started + kSettled) deaths = 0;
    if (++deaths < 2) return Duration::zero();
    return std::min<Duration>(kFirstDelay * (1 << std::min(deaths - 2, 16)), kLongestDelay);
  }

  Status Run() {
    started = SteadyClock().Now();
    start_at = Time::Never();
    for (const auto& [path, text] : files) {
      std::error_code error;
      if (fs::exists(path, error)) continue;
      Status usable = MakePrivateFolder(fs::path(path).parent_path().string(), kRunDir);
      if (!usable.ok()) return usable;
      if (!WriteFile(path, text))
        return Error{ErrorCode::kUnavailable, "cannot write " + path + ": " + std::strerror(errno)};
    }
    Result<ChildProcess> started = Spawn(options);
    if (!started.ok()) return started.error().WithContext(std::string("cannot start ") + name);
    process = std::move(*started);
    watchdog.Begin(SteadyClock().Now());
    return Status::Ok();
  }
};

struct Settings {
  std::string run_dir;
  std::string bin_dir;
  std::string redis_server = "redis-server";
  std::string store_dir;
  std::string redis;  // HOST:PORT of one that is not ours.
  std::string redis_password_file;
  std::string redis_prefix = "troupe:";
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
  double watchdog_s = 20;
  const std::string owner = RandomId();  // Of the records, as long as this supervisor lives.

  [[nodiscard]] std::string logs() const { return log_dir.empty() ? run_dir : log_dir; }
  // Whether the store outlives this process, so that a later head takes up what it says.
  [[nodiscard]] std::string beats() const { return run_dir + "/beats"; }
  [[nodiscard]] bool lasting() const { return !store_dir.empty() || !redis.empty(); }
  [[nodiscard]] bool embedded() const { return listen.empty() && join.empty(); }
  [[nodiscard]] std::string socket() const { return "ipc://" + run_dir + "/head.sock"; }
  // Where its node and its driver find the head. A driver of this host needs no key.
  [[nodiscard]] std::string head() const {
    if (!join.empty()) return join;
    if (listen.empty() || !keep) return socket();
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
  auto* store_dir = app.add_option("--store-dir", settings.store_dir,
                                   "Private directory where Redis keeps the cluster's records "
                                   "over restarts of this host; default: the run directory");
  app.add_option("--redis", settings.redis, "HOST:PORT of a Redis to use instead of a private one")
      ->excludes(store_dir);
  app.add_option("--redis-password-file", settings.redis_password_file, "Of --redis");
  app.add_option("--redis-prefix", settings.redis_prefix,
                 "Put before every key of --redis (default troupe:); one per cluster")
      ->check([](const std::string& text) -> std::string {
        return text.empty() ? "it would make every key of that Redis the cluster's" : "";
      });
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
  app.add_option("--watchdog-s", settings.watchdog_s,
                 "A head or node that does not move for so long is ended and started again "
                 "(default 20; 0: never, for debuggers)")
      ->envname("TROUPE_WATCHDOG_S")
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--node-arg", settings.node_args, "Passed on to troupe-node")
      ->allow_extra_args(false);
  app.add_option("--head-arg", settings.head_args, "Passed on to troupe-head")
      ->allow_extra_args(false);
}

Result<Child> RedisChild(const Settings& settings, const std::string& socket) {
  Result<std::string> redis = FindProgram(settings.redis_server);
  if (!redis.ok())
    return Error{ErrorCode::kNotFound,
                 redis.error().message +
                     "; install it: apt-get install redis-server, or: pip install 'troupe[redis]'"};
  const std::string password = RandomId() + RandomId();
  const std::string conf = settings.run_dir + "/redis.conf";
  const std::string secret = settings.run_dir + "/redis.password";
  std::map<std::string, std::string> files;
  // What a head has promised is in a lasting store, whatever happens to this host.
  const bool lasting = !settings.store_dir.empty();
  files[conf] = "port 0\nunixsocket " + Quoted(socket) + "\nunixsocketperm 700\nrequirepass " +
                password + "\nsave \"\"\nappendonly yes\nappendfsync " +
                (lasting ? "always" : "everysec") + "\ndir " +
                Quoted(lasting ? settings.store_dir : settings.run_dir) +
                "\ndaemonize no\nloglevel warning\n";
  files[secret] = password;
  for (const auto& [path, text] : files) {
    if (!WriteFile(path, text)) {
      return Error{ErrorCode::kUnavailable, "cannot write to " + settings.run_dir + ": " +
                                                std::strerror(errno) +
                                                "; free some disk space or set TMPDIR"};
    }
  }
  // Redis dies with us; head and node get SIGTERM instead, so that they still end their own
  // children.
  return Child{
      "redis-server", Daemon({*redis, conf}, settings.logs() + "/redis.log", SIGKILL), {}, files};
}

Child HeadChild(const Settings& settings, const std::string& redis_socket) {
  std::vector<std::string> argv{settings.bin_dir + "/troupe-head", "--log-file",
                                settings.logs() + "/head.log"};
  const auto add = [&](const std::string& flag, const std::string& value) {
    if (!value.empty()) argv.insert(argv.end(), {flag, value});
  };
  if (settings.listen.empty() || !settings.keep) add("--listen", settings.socket());
  add("--listen", settings.listen);
  if (settings.redis.empty()) {
    add("--redis-socket", redis_socket);
    add("--redis-password-file", settings.run_dir + "/redis.password");
  } else {
    const size_t colon = settings.redis.rfind(':');
    add("--redis-host", settings.redis.substr(0, colon));
    add("--redis-port", settings.redis.substr(colon + 1));
    add("--redis-password-file", settings.redis_password_file);
  }
  if (settings.lasting()) {
    add("--redis-prefix", settings.redis_prefix);
    add("--store-owner", settings.owner);
  }
  add("--key-file", settings.key_file);
  if (settings.embedded() && !settings.no_node) argv.emplace_back("--embedded");
  argv.insert(argv.end(), settings.head_args.begin(), settings.head_args.end());
  return {"troupe-head", Daemon(argv, settings.logs() + "/head.out", SIGTERM), {}, {}};
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
  return {"troupe-node", Daemon(argv, settings.logs() + "/node.out", SIGTERM), {}, {}};
}

// Head and node beat; Redis cannot.
void Watch(Child& child, const Settings& settings) {
  if (settings.watchdog_s <= 0) return;
  const auto limit = Duration(static_cast<int64_t>(settings.watchdog_s * 1e9));
  child.watchdog = Watchdog(limit);
  child.options.env["NOTIFY_SOCKET"] = settings.beats();
  child.options.env["WATCHDOG_USEC"] =
      std::to_string(std::chrono::duration_cast<microseconds>(limit).count());
}

// In the order in which they start; they end in the other.
Result<std::vector<Child>> MakeChildren(const Settings& settings) {
  std::vector<Child> children;
  if (settings.join.empty()) {
    const std::string socket = settings.run_dir + "/redis.sock";
    std::map<std::string, std::string> files;
    if (settings.redis.empty()) {
      Result<Child> redis = RedisChild(settings, socket);
      if (!redis.ok()) return redis.error();
      files = redis->files;
      children.push_back(std::move(*redis));
    }
    if (!settings.key_file.empty()) {  // The node reads it at once.
      const Result<HeadKeys> keys = LoadOrCreateHeadKeys(settings.key_file);
      if (!keys.ok()) return keys.error();
    }
    children.push_back(HeadChild(settings, socket));
    children.back().files = std::move(files);
    Watch(children.back(), settings);
  }
  if (!settings.no_node) {
    children.push_back(NodeChild(settings));
    Watch(children.back(), settings);
  }
  return children;
}

// One Redis writes there, of one cluster; as long as this process lives.
Status TakeStoreDir(const std::string& path) {
  if (path.empty()) return Status::Ok();
  if (Status usable = MakePrivateFolder(path, "store directory"); !usable.ok()) return usable;
  const std::string lock = path + "/lock";
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int problem = errno;
    if (fd >= 0) ::close(fd);
    if (problem == EWOULDBLOCK) {
      return Error{ErrorCode::kAlreadyExists,
                   "the store directory " + path +
                       " is another cluster's that runs here; `troupe stop` ends that"};
    }
    return Error{ErrorCode::kUnavailable,
                 "cannot use the store directory " + path + ": " + std::strerror(problem)};
  }
  return Status::Ok();
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

// Starts again what has ended, and ends what hangs.
class Supervisor {
 public:
  Supervisor(std::vector<Child>* children, WatchdogSocket* beats)
      : children_(children), beats_(beats) {}

  // Whether the cluster was taken down.
  bool Step() {
    const std::optional<std::set<int>> beaten = beats_->Beaten();
    for (Child& child : *children_) Look(child, beaten);
    if (left_behind_) {
      std::set<int> own;
      for (const Child& child : *children_) own.insert(child.process.pid());
      left_behind_ = !EndStrays(own);
    }
    return down_;
  }
  // A head that takes its cluster down tells all other nodes, and ends then.
  [[nodiscard]] Duration EndLimit(const Child& child) const {
    const std::string_view name = child.name;
    if (name == "troupe-head" && down_) return seconds(5);
    return name == "troupe-node" ? seconds(2) : seconds(1);
  }

 private:
  void Look(Child& child, const std::optional<std::set<int>>& beaten) {
    const auto info = child.process.TryReap();
    if (!info) return child.EndIfHung(beaten);
    if (info->code == kTakenDownStatus) {
      down_ = true;
      return;
    }
    if (child.start_at == Time::Never()) {
      const Duration delay = child.Delay();
      LogWarning(child.name, " ", info->ToString(), "; starting it again in ",
                 ToMilliseconds(delay), " ms");
      left_behind_ = true;  // What it had started may be our child now.
      child.start_at = SteadyClock().Now() + delay;
    }
    if (SteadyClock().Now() < child.start_at) return;
    if (const Status s = child.Run(); !s.ok()) {
      LogError(s.error().message);
      child.start_at = SteadyClock().Now() + child.Delay();
    }
  }

  std::vector<Child>* const children_;
  WatchdogSocket* const beats_;
  bool down_ = false;
  bool left_behind_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  PrepareSignals();
  BecomeSubreaper();
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
  if (const Status usable = MakePrivateFolder(settings.run_dir, kRunDir); !usable.ok()) {
    std::cout << "error " << usable.error().message << std::endl;  // It is not ours to remove.
    return 1;
  }
  if (const Status taken = TakeStoreDir(settings.store_dir); !taken.ok())
    return fail(taken.error().message);
  if (const Status made = MakeLogDir(settings.logs()); !made.ok())
    return fail(made.error().message);
  InitLogging("local", settings.logs() + "/local.log");
  Result<std::unique_ptr<WatchdogSocket>> beats = WatchdogSocket::Open(settings.beats());
  if (!beats.ok()) return fail(beats.error().message);
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
  Supervisor supervisor(&*children, beats->get());
  (void)WaitForStop(
      settings.keep ? -1 : STDIN_FILENO, [&] { return supervisor.Step(); }, milliseconds(20));
  for (auto child = children->rbegin(); child != children->rend(); ++child)
    child->process.Terminate(supervisor.EndLimit(*child));
  (void)EndDescendants(kEndLimit);
  SharedFolder::RemoveEnded();  // Those who were in it may have been killed.
  std::error_code ignored;
  if (!settings.record.empty()) fs::remove(settings.record, ignored);
  fs::remove_all(settings.run_dir, ignored);
  return 0;
}
