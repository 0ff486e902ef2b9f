#include "runtime/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "runtime/blocking_lane.h"

extern char** environ;

namespace troupe {
namespace {

constexpr Duration kReapAfterKillLimit = seconds(10);

Error Errno(const std::string& what, int code = errno) {
  return Error{ErrorCode::kUnavailable, what + ": " + std::strerror(code)};
}

// The one thread that creates children. It is never destroyed: the parent-death signal of every
// child follows it.
BlockingLane& SpawnerLane() {
  static auto* lane = new BlockingLane("spawner");
  return *lane;
}

std::vector<std::string> BuildEnvironment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [key, value] : changes) {
    std::string entry = key;
    entry.append("=").append(value);
    result.push_back(std::move(entry));
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

Result<ChildProcess> SpawnHere(const SpawnOptions& options) {
  std::vector<std::string> argv = options.argv;
  if (options.parent_death_signal != 0) {
    // setpriv would start and then fail by itself, with no more than an exit code.
    const auto path = options.env.find("PATH");
    const Result<std::string> program =
        FindProgram(argv[0], path == options.env.end() ? "" : path->second);
    if (!program.ok()) return program.error().WithContext("cannot start " + argv[0]);
    // posix_spawn cannot set the parent-death signal; util-linux's setpriv (an essential package)
    // sets it and execs. It takes the signal by name only. PATH may be that of a virtual
    // environment alone.
    const Result<std::string> setpriv = FindProgram("setpriv", "/usr/bin:/bin");
    if (!setpriv.ok()) return setpriv.error().WithContext("cannot start " + argv[0]);
    const std::vector<std::string> prefix{*setpriv, "--pdeathsig",
                                          ::sigabbrev_np(options.parent_death_signal), "--"};
    argv.insert(argv.begin(), prefix.begin(), prefix.end());
  }
  std::vector<std::string> environment = BuildEnvironment(options.env);
  OutputPipe out;
  OutputPipe err;
  if (options.capture_output && (!out.Open() || !err.Open())) return Errno("cannot create a pipe");

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (options.stdin_fd >= 0) {
    posix_spawn_file_actions_adddup2(&actions, options.stdin_fd, 0);
  } else {
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  }
  if (options.capture_output) {
    posix_spawn_file_actions_adddup2(&actions, out.write, 1);
    posix_spawn_file_actions_adddup2(&actions, err.write, 2);
  } else if (!options.output_path.empty()) {
    posix_spawn_file_actions_addopen(&actions, 1, options.output_path.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  pid_t pid = -1;
  std::vector<char*> argv_pointers = Pointers(argv);
  std::vector<char*> env_pointers = Pointers(environment);
  const int rc = ::posix_spawnp(&pid, argv_pointers[0], &actions, &attributes, argv_pointers.data(),
                                env_pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (rc != 0) return Errno("cannot start " + options.argv[0], rc);
  ChildProcess child(out.TakeRead(), err.TakeRead());
  child.Is(pid);
  return child;
}

// Read in a forked child, where nothing but the forking thread is alive: no lock, no memory.
std::array<std::atomic<int>, kClosedOnForkMax> closed_on_fork;  // Plus one; 0: free.

void CloseInChild() {
  for (std::atomic<int>& slot : closed_on_fork) {
    if (const int fd = slot.exchange(0) - 1; fd >= 0) ::close(fd);
  }
}

}  // namespace

OutputPipe::~OutputPipe() {
  if (read >= 0) ::close(read);
  if (write >= 0) ::close(write);
}

bool OutputPipe::Open() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return false;
  read = fds[0];
  write = fds[1];
  ::fcntl(read, F_SETFL, O_NONBLOCK);
  return true;
}

int OutputPipe::TakeRead() { return std::exchange(read, -1); }

bool CloseOnFork(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &CloseInChild);
  if (registered != 0) return false;
  for (std::atomic<int>& slot : closed_on_fork) {
    int free = 0;
    if (slot.compare_exchange_strong(free, fd + 1)) return true;
  }
  return false;
}

void ForgetOnFork(int fd) {
  for (std::atomic<int>& slot : closed_on_fork) {
    int known = fd + 1;
    if (slot.compare_exchange_strong(known, 0)) return;
  }
}

std::string ExitInfo::ToString() const {
  std::ostringstream text;
  if (signal != 0) {
    text << "killed by signal " << signal << " (" << ::strsignal(signal) << ")";
  } else {
    text << "exited with code " << code;
  }
  return text.str();
}

ChildProcess::ChildProcess(int pid, int pidfd, int stdout_fd, int stderr_fd)
    : pid_(pid), pidfd_(pidfd), stdout_fd_(stdout_fd), stderr_fd_(stderr_fd) {}

void ChildProcess::Is(int pid) {
  pid_ = pid;
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

ChildProcess::~ChildProcess() { CloseAll(); }

ChildProcess::ChildProcess(ChildProcess&& other) noexcept { *this = std::move(other); }

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  CloseAll();
  pid_ = std::exchange(other.pid_, -1);
  pidfd_ = std::exchange(other.pidfd_, -1);
  stdout_fd_ = std::exchange(other.stdout_fd_, -1);
  stderr_fd_ = std::exchange(other.stderr_fd_, -1);
  exit_ = std::exchange(other.exit_, std::nullopt);
  return *this;
}

void ChildProcess::CloseAll() {
  for (int* fd : {&pidfd_, &stdout_fd_, &stderr_fd_}) {
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  }
}

void ChildProcess::Kill(int signal) const {
  if (pid_ > 0 && !exit_) ::kill(-pid_, signal);
}

std::optional<ExitInfo> ChildProcess::TryReap() {
  if (exit_ || pid_ <= 0) return exit_;
  int status = 0;
  const pid_t got = ::waitpid(pid_, &status, WNOHANG);
  if (got == 0) return std::nullopt;
  ExitInfo info;
  if (got == pid_ && WIFSIGNALED(status)) {
    info = {-1, WTERMSIG(status)};
  } else if (got == pid_) {
    info = {WEXITSTATUS(status), 0};
  }
  exit_ = info;
  return exit_;
}

Result<ExitInfo> ChildProcess::WaitFor(Duration limit) {
  const Time deadline = SteadyClock().Now() + limit;
  for (;;) {
    if (const auto info = TryReap()) return *info;
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock().Now());
    if (left.count() <= 0)
      return Error{ErrorCode::kDeadlineExceeded, "process " + std::to_string(pid_) + " still runs"};
    pollfd item{pidfd_, POLLIN, 0};
    ::poll(&item, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000)));
  }
}

ExitInfo ChildProcess::Terminate(Duration grace) {
  if (pid_ <= 0) return {};
  Kill(SIGTERM);
  if (const auto info = WaitFor(grace); info.ok()) return *info;
  Kill(SIGKILL);
  const auto info = WaitFor(kReapAfterKillLimit);
  return info.ok() ? *info : ExitInfo{-1, SIGKILL};
}

Result<ChildProcess> Spawn(const SpawnOptions& options) {
  if (options.argv.empty())
    return Error{ErrorCode::kInvalidArgument, "nothing to start: argv is empty"};
  Result<ChildProcess> result = Error{ErrorCode::kInternal, "spawner did not run"};
  std::mutex mu;
  std::condition_variable cv;
  bool done = false;
  const Status posted = SpawnerLane().Post([&] {
    Result<ChildProcess> child = SpawnHere(options);
    std::lock_guard lock(mu);
    result = std::move(child);
    done = true;
    cv.notify_one();
  });
  if (!posted.ok()) return posted.error();
  std::unique_lock lock(mu);
  cv.wait(lock, [&] { return done; });
  return result;
}

Result<std::string> FindProgram(const std::string& name, const std::string& extra_dir) {
  const auto is_program = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    return Error{ErrorCode::kNotFound, "no executable at " + name};
  }
  std::string path = extra_dir.empty() ? "" : extra_dir + ":";
  if (const char* from_env = std::getenv("PATH")) path += from_env;
  std::istringstream dirs(path);
  for (std::string dir; std::getline(dirs, dir, ':');) {
    const std::string candidate = dir + "/" + name;
    if (!dir.empty() && is_program(candidate)) return candidate;
  }
  return Error{ErrorCode::kNotFound, name + " was not found on PATH"};
}

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string HostName() {
  utsname info{};
  return ::uname(&info) == 0 ? info.nodename : "localhost";
}

ProcessUsage UsageOf(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // The second field, the program's name, may hold anything but ends with the last parenthesis.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  std::vector<std::string> values{std::istream_iterator<std::string>(fields), {}};
  constexpr size_t kUser = 11;  // As proc(5) numbers them, less the first three.
  constexpr size_t kSystem = 12;
  constexpr size_t kPages = 21;
  if (values.size() <= kPages) return {};
  const auto number = [&](size_t field) {
    return std::strtoull(values[field].c_str(), nullptr, 10);
  };
  const auto ticks_per_s = static_cast<uint64_t>(::sysconf(_SC_CLK_TCK));
  return {(number(kUser) + number(kSystem)) * 1000 / ticks_per_s,
          number(kPages) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))};
}

std::string RandomId() {
  uint64_t value = 0;
  TROUPE_ASSERT(::getrandom(&value, sizeof value, 0) == sizeof value, "getrandom");
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace troupe
