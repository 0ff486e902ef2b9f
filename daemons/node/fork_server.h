// ForkServer: a process of a node that has imported what its kind of workers needs, and of which
// they are forks (runtime/fork_server.h).
//
// Thread: owner only.
// Owns: the server, not its forks, which have guards of their own; the destructor ends it.
#pragma once

#include <optional>
#include <string>

#include "daemons/node/core/spare_policy.h"
#include "daemons/node/guarded_process.h"
#include "runtime/process.h"

namespace troupe::daemons {

class ForkServer {
 public:
  static Result<ForkServer> Start(const SpareKind& kind);
  ForkServer() = default;
  ~ForkServer();
  ForkServer(ForkServer&& other) noexcept;
  ForkServer& operator=(ForkServer&& other) noexcept;

  // One that waits for its work; of a server that is not ready yet a little later.
  Result<GuardedProcess> Fork(const std::string& guard) {
    return GuardedProcess::Fork(guard, socket_);
  }
  [[nodiscard]] int ready_fd() const { return socket_; }  // Readable when it may have said so.
  [[nodiscard]] bool Ready();                             // It has, since it was asked last.
  [[nodiscard]] int end_fd() const { return process_.pidfd(); }
  [[nodiscard]] int pid() const { return process_.pid(); }
  std::optional<ExitInfo> TryReap() { return process_.TryReap(); }
  void Kill() const { process_.Kill(SIGKILL); }
  // What it prints is not kept from the pipe's end; its last line is for people.
  void ReadOutput();
  [[nodiscard]] std::string LastLine() const;

 private:
  void End();
  ChildProcess process_;
  int socket_ = -1;
  std::string tail_;
};

}  // namespace troupe::daemons
