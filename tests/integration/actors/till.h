// What the plugin of the tests describes and drivers may know, for typed handles and tasks.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include <troupe/troupe.h>

namespace troupe::testing {

// The program that this process runs: "troupe-worker" where the plugin was loaded.
inline std::string ProgramName() {
  return std::filesystem::read_symlink("/proc/self/exe").filename().string();
}

// Keeps its state over restarts.
class Till {
 public:
  explicit Till(int64_t sold) : sold_(sold) {
    if (sold < 0) throw std::invalid_argument("sold is negative");
  }
  int64_t Sell(int64_t amount) { return sold_ += amount; }
  std::string Program() const { return ProgramName(); }
  int64_t Pid() const { return ::getpid(); }
  // Until it is cancelled or its time is up.
  Status Linger(CallContext& call) const { return call.Sleep(seconds(60)); }
  std::string Save() const { return std::to_string(sold_); }
  void Restore(const std::string& state) { sold_ = std::stoll(state); }

 private:
  int64_t sold_;
};

inline int64_t Triple(int64_t x) { return 3 * x; }

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Till, (int64_t), Sell, Program, Pid, Linger);
TROUPE_TASK(troupe::testing::Triple);
