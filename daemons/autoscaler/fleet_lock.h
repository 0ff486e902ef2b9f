// FleetLock: of the processes of one user on one host, one holds a cluster of a name. The lock goes
// with its process, whatever way that ends; what is written in it tells who holds it, or which life
// was the last.
//
// Beside the journal: $XDG_STATE_HOME or ~/.local/state, "troupe/fleets/NAME.lock".
// Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/result.h"

namespace troupe::daemons {

struct FleetHolder {
  int64_t pid = 0;
  std::string host;
  std::string life;
  std::string file;  // The cluster file.
  double since_s = 0;
  bool held = false;  // It is there; else it is over, and may have left nodes behind.
};

class FleetLock {
 public:
  FleetLock() = default;  // Of nothing.
  ~FleetLock();
  FleetLock(FleetLock&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), before_(std::move(other.before_)) {}
  FleetLock& operator=(FleetLock&& other) noexcept;

  // One without a life keeps the name of the one before. kAlreadyExists: another process has it;
  // the message says which. Other errors: there can be no lock here.
  static Result<FleetLock> Take(const std::string& path, const FleetHolder& mine);
  // Who has it, or had it last; kNotFound: nobody, or it has left nothing. Of one that is about to
  // end nothing but that may be known.
  static Result<FleetHolder> HolderOf(const std::string& path);

  // The life before, which has not said that it left nothing; empty: none.
  [[nodiscard]] const std::string& before() const { return before_; }
  // Nothing is left of this life.
  void LeaveNothing();

 private:
  int fd_ = -1;
  std::string before_;
};

[[nodiscard]] std::string FleetLockPath(const std::string& cluster);

}  // namespace troupe::daemons
