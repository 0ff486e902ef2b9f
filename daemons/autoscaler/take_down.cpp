#include "daemons/autoscaler/take_down.h"

#include <unistd.h>

#include <csignal>
#include <memory>

#include "autoscaler/fleet_sweep.h"
#include "daemons/autoscaler/fleet_lock.h"
#include "daemons/autoscaler/supplier.h"
#include "runtime/process.h"
#include "runtime/signals.h"

namespace troupe::daemons {
namespace {

constexpr Duration kDownLook = milliseconds(20);

Status Over(const std::string& what) { return Error{ErrorCode::kDeadlineExceeded, what}; }

// Interrupts the process that holds it, which then ends its nodes, and waits for its end.
Status EndHolder(const std::string& path, const Clock& clock, Time deadline,
                 const TakeDownOptions& options) {
  const Result<FleetHolder> holder = FleetLock::HolderOf(path);
  if (!holder.ok() || !holder->held) return Status::Ok();
  const std::string name = "process " + std::to_string(holder->pid) + " of " + holder->host;
  if (holder->pid != 0 && holder->host != HostName())
    return Error{ErrorCode::kPermissionDenied,
                 name + " holds it (" + holder->file + "); run this there"};
  if (holder->pid != 0) options.say("ending " + name + ", which holds it");
  if (holder->pid != 0 && ::kill(static_cast<pid_t>(holder->pid), SIGINT) != 0)
    return Error{ErrorCode::kPermissionDenied, name + " holds it and cannot be interrupted"};
  const auto ended = [&] {
    const Result<FleetHolder> now = FleetLock::HolderOf(path);
    return !now.ok() || !now->held || clock.Now() >= deadline;
  };
  if (WaitForStop(-1, ended, kDownLook) == StopCause::kSignal)
    return Error{ErrorCode::kCancelled, "interrupted; " + name + " is ending its nodes"};
  if (clock.Now() < deadline) return Status::Ok();
  return Over(name + " has not ended in time");
}

}  // namespace

Status TakeDownFleet(const ClusterConfig& config, const TakeDownOptions& options) {
  SteadyClock clock;
  const Time deadline = clock.Now() + options.limit;
  const std::string path = FleetLockPath(config.name);
  if (!path.empty()) {
    const Status ended = EndHolder(path, clock, deadline, options);
    if (!ended.ok()) return ended;
  }
  // So that nobody begins meanwhile. Without a place for locks there is nobody to keep out.
  Result<FleetLock> lock = FleetLock();
  if (!path.empty()) lock = FleetLock::Take(path, {::getpid(), HostName(), "", "troupe down", 0});
  if (!lock.ok() && lock.error().code == ErrorCode::kAlreadyExists) return lock.error();

  const std::unique_ptr<Supplier> supplier =
      MakeSupplier({&config, options.folder, options.bin_dir, "", &clock, nullptr});
  FleetSweep sweep(&supplier->census(),
                   {supplier->interval(), 2 * supplier->interval(), seconds(10), options.say});
  const auto turn = [&] {
    (void)supplier->Step(clock.Now());
    sweep.Step(clock.Now());
    return sweep.done() || clock.Now() >= deadline;
  };
  const StopCause cause = WaitForStop(-1, turn, kDownLook);
  if (!sweep.done()) {
    const std::string left = "nodes of cluster " + config.name + " may be left: " + sweep.Left();
    return cause == StopCause::kSignal ? Status(Error{ErrorCode::kCancelled, left}) : Over(left);
  }
  if (lock.ok()) lock->LeaveNothing();
  options.say("nothing is left of cluster " + config.name + ": " +
              (sweep.ended() == 0   ? "no node was there"
               : sweep.ended() == 1 ? "one node was ended"
                                    : std::to_string(sweep.ended()) + " nodes were ended"));
  return Status::Ok();
}

}  // namespace troupe::daemons
