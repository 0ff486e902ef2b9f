// GuardedProcess: a worker's process with its guard (troupe-guard), from which nothing that the
// worker starts gets away.
//
// The guard lives as long as the worker and what it started; its exit status is the worker's. It
// ends them when this process ends, however that comes, and when this object is destroyed.
// Thread: owner only; Start from any.
// Owns: the guard's descriptors and the socket that keeps it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/process.h"

namespace troupe::daemons {

class GuardedProcess {
 public:
  // `guard` is the path of troupe-guard. The command's program is looked for here, so that one that
  // is missing is an error and not an exit.
  static Result<GuardedProcess> Start(const std::string& guard, SpawnOptions command);
  // A process that waits on its stdin until it is given its work, or the end of it.
  static Result<GuardedProcess> StartSpare(const std::string& guard, SpawnOptions command);
  // Likewise, of a fork server, which may not be ready yet. Its guard is known a little later.
  static Result<GuardedProcess> Fork(const std::string& guard, int server);
  // Once, at most kWorkBytesMax. False if it has ended, as far as is known here.
  [[nodiscard]] bool GiveWork(const std::string& work);
  static constexpr size_t kWorkBytesMax = 1 << 15;
  GuardedProcess() = default;
  ~GuardedProcess();
  GuardedProcess(GuardedProcess&& other) noexcept;
  GuardedProcess& operator=(GuardedProcess&& other) noexcept;

  // The worker's; 0 until the guard has told it.
  [[nodiscard]] int pid();
  [[nodiscard]] int guard_pid() const { return guard_.pid(); }
  // Readable when all have ended, or when TryReap learns of the guard: then it is another one.
  [[nodiscard]] int end_fd() const { return guard_.pidfd() >= 0 ? guard_.pidfd() : socket_; }
  // False: it is to be forked yet, or never was.
  [[nodiscard]] bool began() const { return guard_.pid() > 0; }
  [[nodiscard]] int stdout_fd() const { return guard_.stdout_fd(); }
  [[nodiscard]] int stderr_fd() const { return guard_.stderr_fd(); }
  // Signals the worker and its process group; a second SIGKILL ends the guard as well, and what is
  // left then is an orphan of this process.
  void Kill(int signal);
  [[nodiscard]] bool killed() const { return killed_; }  // By us.
  std::optional<ExitInfo> TryReap();
  // SIGTERM, then SIGKILL after `grace`; reaps.
  ExitInfo Terminate(Duration grace);

 private:
  static Result<GuardedProcess> Launch(std::vector<std::string> guard, SpawnOptions command);
  void Close();
  // Whether a number was told on the socket; -1: none, and none will be.
  int Told();
  ChildProcess guard_;
  int socket_ = -1;
  int pid_ = 0;
  bool killed_ = false;
};

}  // namespace troupe::daemons
