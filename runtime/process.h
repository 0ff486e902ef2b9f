// Child processes: spawned (never forked), alone in their process group, dying with their parent.
//
// The child gets only descriptors 0-2, so nothing that a library forgot to mark close-on-exec leaks
// into it and keeps a dead worker looking alive to its peers. It receives `parent_death_signal`
// when this process ends, however it ends.
// Thread: Spawn from any thread: all children are created by one thread that lives as long as the
// process, because the kernel ties the parent-death signal to the creating thread.
// Owns: a ChildProcess owns its descriptors, not the child's life; Kill and reap explicitly.
#pragma once

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/clock.h"
#include "runtime/result.h"

namespace troupe {

struct SpawnOptions {
  std::vector<std::string> argv;           // argv[0] is a path or found on PATH.
  std::map<std::string, std::string> env;  // Added to (or replacing in) the parent's environment.
  bool capture_output = false;             // Pipes for stdout and stderr; otherwise inherited.
  std::string output_path;                 // If set, both streams are appended to this file.
  int stdin_fd = -1;                  // A descriptor to become the child's stdin; -1: /dev/null.
  int parent_death_signal = SIGKILL;  // 0: the child outlives us.
};

struct ExitInfo {
  int code = 0;    // Exit code, or -1 if a signal ended it.
  int signal = 0;  // The signal, or 0.
  // "exited with code 3", "killed by signal 9 (Killed)".
  [[nodiscard]] std::string ToString() const;
};

class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(int pid, int pidfd, int stdout_fd, int stderr_fd);
  // One that another process has made, as our child; its number is said when it is known.
  ChildProcess(int stdout_fd, int stderr_fd) : ChildProcess(-1, -1, stdout_fd, stderr_fd) {}
  void Is(int pid);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  [[nodiscard]] int pid() const { return pid_; }
  [[nodiscard]] int pidfd() const { return pidfd_; }          // Readable when the child has ended.
  [[nodiscard]] int stdout_fd() const { return stdout_fd_; }  // Non-blocking; -1 unless captured.
  [[nodiscard]] int stderr_fd() const { return stderr_fd_; }

  // Signals the child's process group; harmless after its end.
  void Kill(int signal) const;
  // The exit status if the child has ended (reaps it); nullopt while it runs.
  std::optional<ExitInfo> TryReap();
  // Waits up to `limit` for the end.
  Result<ExitInfo> WaitFor(Duration limit);
  // SIGTERM, then SIGKILL after `grace`; reaps.
  ExitInfo Terminate(Duration grace);

 private:
  void CloseAll();
  int pid_ = -1;
  int pidfd_ = -1;
  int stdout_fd_ = -1;
  int stderr_fd_ = -1;
  std::optional<ExitInfo> exit_;
};

[[nodiscard]] Result<ChildProcess> Spawn(const SpawnOptions& options);

// A forked child of this process closes the descriptor at once; a program that is executed gets it
// or not as close-on-exec says. For pipes whose end tells of this process's end. At most
// kClosedOnForkMax; false if there are as many.
inline constexpr size_t kClosedOnForkMax = 64;
bool CloseOnFork(int fd);
void ForgetOnFork(int fd);  // Before it is closed here.

// What a child has printed, to be read without waiting, and the end that it writes to.
struct OutputPipe {
  int read = -1;
  int write = -1;
  OutputPipe() = default;
  ~OutputPipe();
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;
  [[nodiscard]] bool Open();
  [[nodiscard]] int TakeRead();
};

// Full path of a program: `name` itself if it has a slash, else the first match in `extra_dir`,
// then on PATH.
[[nodiscard]] Result<std::string> FindProgram(const std::string& name,
                                              const std::string& extra_dir = "");

// Host name as `uname -n` gives it.
[[nodiscard]] std::string HostName();
// A variable of this process's environment; empty if it has none.
[[nodiscard]] std::string Env(const char* name);

struct ProcessUsage {
  uint64_t cpu_ms = 0;  // Since it began, of all its threads.
  uint64_t rss_bytes = 0;
};
// Nothing of a process that is not there.
[[nodiscard]] ProcessUsage UsageOf(int64_t pid);

// 16 random hexadecimal digits from the kernel.
[[nodiscard]] std::string RandomId();

}  // namespace troupe
