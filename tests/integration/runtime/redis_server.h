// A private redis-server on a unix socket, for tests. It dies with its owner.
// Thread: one.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "runtime/process.h"
#include "tests/integration/runtime/temp_dir.h"

namespace troupe::tests {

class RedisServer {
 public:
  explicit RedisServer(std::string password = "") : password_(std::move(password)) { Start(); }
  ~RedisServer() { Kill(); }

  [[nodiscard]] std::string socket() const { return dir_.path() + "/redis.sock"; }
  [[nodiscard]] int pid() const { return child_.pid(); }

  // Starts it empty and returns when it accepts connections.
  void Start() {
    SpawnOptions options;
    options.argv = {"redis-server", "--port",     "0",     "--unixsocket", socket(),
                    "--save",       "",           "--dir", dir_.path(),    "--appendonly",
                    "no",           "--loglevel", "notice"};
    if (!password_.empty()) options.argv.insert(options.argv.end(), {"--requirepass", password_});
    options.capture_output = true;
    Result<ChildProcess> child = Spawn(options);
    ASSERT_TRUE(child.ok()) << child.error().message;
    child_ = std::move(*child);
    const Time deadline = SteadyClock().Now() + seconds(30);
    std::string output;
    // Redis says so in two wordings, for sockets and for ports.
    while (output.find("ready to accept connections") == std::string::npos) {
      ASSERT_LT(SteadyClock().Now(), deadline) << output;
      pollfd item{child_.stdout_fd(), POLLIN, 0};
      ::poll(&item, 1, 1000);
      char buffer[4096];
      const ssize_t got = ::read(child_.stdout_fd(), buffer, sizeof buffer);
      ASSERT_NE(got, 0) << "redis-server ended: " << output;
      if (got > 0) output.append(buffer, static_cast<size_t>(got));
    }
  }
  // SIGKILL; returns when it is gone.
  void Kill() {
    child_.Kill(SIGKILL);
    EXPECT_TRUE(child_.WaitFor(seconds(10)).ok());
  }
  void Signal(int signal) const { child_.Kill(signal); }

 private:
  const std::string password_;
  TempDir dir_;
  ChildProcess child_;
};

}  // namespace troupe::tests
