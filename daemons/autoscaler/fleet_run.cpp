#include "daemons/autoscaler/fleet_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "autoscaler/fleet_census.h"
#include "daemons/autoscaler/account_text.h"
#include "daemons/autoscaler/autoscaler_service.h"
#include "daemons/autoscaler/fleet_guard.h"
#include "daemons/autoscaler/fleet_lock.h"
#include "daemons/autoscaler/journal.h"
#include "daemons/autoscaler/session.h"
#include "daemons/autoscaler/supplier.h"
#include "daemons/client/driver_client.h"
#include "runtime/process.h"
#include "runtime/signals.h"

namespace troupe::daemons {
namespace {

namespace fs = std::filesystem;

constexpr Duration kClusterLimit = seconds(2);
// Exit codes of its own.
constexpr int kNotStarted = 1;
constexpr int kFenced = 3;
constexpr int kInterrupted = 130;
constexpr Duration kTrainingGrace = kSessionGrace + kSessionKillLimit;

// Runs an entrypoint, argv[1], on workers as the file wants them, argv[2].
constexpr const char* kEntrypointProgram = R"py(
import importlib, json, os, sys
import troupe
sys.path.insert(0, os.getcwd())
module, _, name = sys.argv[1].partition(":")
function = getattr(importlib.import_module(module), name)
with troupe.Executor(**json.loads(sys.argv[2])) as executor:
    executor.run(function)
)py";

// `folder`: of the cluster file, from which its working directory counts.
SpawnOptions TrainingCommand(const ClusterConfig& config, const fs::path& folder,
                             const DriverClient& client) {
  const TrainingSpec& training = config.training;
  SpawnOptions spawn;
  spawn.argv = training.command;
  if (!training.entrypoint.empty()) {
    std::string resources;
    for (const auto& [name, amount] : training.resources.ToMap())
      resources += (resources.empty() ? "\"" : ", \"") + name + "\": " + NumberText(amount);
    const std::string arguments =
        "{\"min_workers\": " + std::to_string(std::max(1, config.limits.min_workers)) +
        ", \"max_workers\": " + std::to_string(config.limits.max_workers) +
        ", \"elastic_timeout\": " + NumberText(ToMilliseconds(training.elastic_timeout) / 1000) +
        ", \"resources_per_worker\": {" + resources + "}}";
    spawn.argv = {"python3", "-c", kEntrypointProgram, training.entrypoint, arguments};
  }
  if (!training.working_dir.empty())
    spawn.argv.insert(spawn.argv.begin(),
                      {"env", "--chdir=" + (folder / training.working_dir).string()});
  spawn.env = training.env;
  // Actors of other hosts are to reach the training by the address by which it reaches the head.
  spawn.env["TROUPE_ADDRESS"] = EndpointHere(config.head, client);
  if (!client.key_file().empty()) spawn.env["TROUPE_KEY_FILE"] = client.key_file();
  return spawn;
}

// The exit code for a shell.
int CodeOf(const ExitInfo& info) { return info.signal != 0 ? 128 + info.signal : info.code; }

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Holds the fleet until the training has ended or somebody interrupts it; the exit code.
class FleetRun {
 public:
  FleetRun(const ClusterConfig& config, const FleetRunRequest& request,
           const DriverOptions& options, DriverClient& client, const std::string& life,
           FenceOptions fence)
      : config_(config),
        folder_(request.file.parent_path()),
        client_(client),
        supplier_(
            MakeSupplier({&config, folder_.string(), options.bin_dir, life, &clock_, &client})),
        guard_(config.name, &supplier_->census(), std::move(fence), SayLine),
        journal_(request.journal, life, SayLine),
        service_(config, life + "-", Callbacks()) {}

  // Sets `empty` if no node is left.
  int Run(bool& empty) {
    Note({FleetNoteKind::kStart,
          {},
          {},
          {},
          "cluster " + config_.name + ", provider " + config_.provider + ", at " +
              client_.address()});
    SayLine("cluster " + config_.name + " at " + client_.address());
    // For commands of this user: over the socket they could not call actors of other hosts.
    if (!config_.head.listen.empty())
      std::ofstream(client_.run_dir() + "/address") << EndpointHere(config_.head, client_) << "\n";
    if (!config_.head.listen.empty())
      SayLine("its head listens on " + config_.head.listen + "; `troupe token` lets a node join");
    due_ = clock_.Now();
    const StopCause cause = WaitForStop(
        -1, [this] { return Turn(); }, std::min<Duration>(config_.tick, milliseconds(50)));
    const int code = CodeOfEnd(cause);
    empty = EndFleet(code);
    return code;
  }

 private:
  void Note(const FleetNote& what) { journal_.Write(UnixSeconds(), what); }

  AutoscalerCallbacks Callbacks() {
    AutoscalerCallbacks callbacks;
    callbacks.provider = &supplier_->nodes();
    callbacks.notices = &supplier_->notices();
    callbacks.cluster = [this]() -> Result<ClusterState> {
      const Result<std::string> json = client_.ClusterJson(kClusterLimit);
      return json.ok() ? ParseClusterState(*json) : json.error();
    };
    callbacks.drain = [this](const std::string& id, const std::string& why, Duration left) {
      return supplier_->Drain(id, why, left);
    };
    callbacks.gone = [this](const std::string& id) { supplier_->Gone(id); };
    callbacks.say = SayLine;
    callbacks.may_launch = [this]() -> Status {
      if (verdict_ == FenceVerdict::kGo) return Status::Ok();
      return Error{ErrorCode::kUnavailable, guard_.Why()};
    };
    callbacks.note = [this](const FleetNote& what) { Note(what); };
    return callbacks;
  }

  // True when there is no more to do.
  bool Turn() {
    const Time now = clock_.Now();
    const bool moved = supplier_->Step(now);
    verdict_ = guard_.Step(now);
    if (verdict_ == FenceVerdict::kYield) return true;
    if (!begun_ && verdict_ != FenceVerdict::kGo) return false;
    if (!std::exchange(begun_, true) && !Begin()) return true;
    if (training_.TryReap()) return true;
    if (moved || now >= std::min(due_, supplier_->next_wake())) due_ = service_.Step(now);
    return false;
  }

  // Nobody else holds this cluster. The training would otherwise wait for nodes in vain.
  bool Begin() {
    const SpawnOptions command = TrainingCommand(config_, folder_, client_);
    if (command.argv.empty()) return true;
    Result<ChildProcess> started = Spawn(InSession(command));
    if (started.ok()) {
      training_ = std::move(*started);
    } else {
      std::cerr << "troupe-autoscaler: training: " << started.error().message << "\n";
    }
    return started.ok();
  }

  int CodeOfEnd(StopCause cause) {
    if (verdict_ == FenceVerdict::kYield) SayLine("giving way: " + guard_.Why());
    if (verdict_ != FenceVerdict::kYield && cause != StopCause::kSignal) {
      const auto info = training_.TryReap();
      if (!info) return kNotStarted;
      SayLine("training " + info->ToString());
      return CodeOf(*info);
    }
    if (cause == StopCause::kSignal) SayLine("interrupted; ending the cluster");
    training_.Terminate(kTrainingGrace);
    return cause == StopCause::kSignal ? kInterrupted : kFenced;
  }

  // Ends all nodes, and tells what the fleet has come to; true if none is left.
  bool EndFleet(int code) {
    const Time deadline = clock_.Now() + supplier_->grace();
    bool ended = service_.End(clock_.Now());
    for (; !ended && clock_.Now() < deadline; ended = service_.End(clock_.Now())) ::usleep(10'000);
    const std::string left = ended ? "" : "not all nodes have ended: " + supplier_->Left();
    if (!ended) SayLine(left + "; `troupe down` of this file ends them");
    const std::string account = AccountLine(service_.accounts());
    SayLine("accounts: " + account);
    Note({FleetNoteKind::kAccount, {}, {}, {}, account, AccountJson(service_.accounts())});
    Note({FleetNoteKind::kEnd,
          {},
          {},
          {},
          "exit status " + std::to_string(code) + "; " + (ended ? "no node is left" : left)});
    return ended;
  }

  SteadyClock clock_;
  const ClusterConfig& config_;
  const fs::path folder_;
  DriverClient& client_;
  const std::unique_ptr<Supplier> supplier_;
  FleetGuard guard_;
  FleetJournal journal_;
  AutoscalerService service_;
  ChildProcess training_;
  FenceVerdict verdict_ = FenceVerdict::kWait;
  bool begun_ = false;
  Time due_{};
};

}  // namespace

int HoldFleet(const ClusterConfig& config, const FleetRunRequest& request,
              const DriverOptions& options) {
  FenceOptions fence;
  fence.life = NewLife(UnixSeconds());
  fence.take_over = request.take_over;
  fence.patience = kLease + seconds(60);
  const std::string path = FleetLockPath(config.name);
  Result<FleetLock> lock = FleetLock();
  if (!path.empty())
    lock = FleetLock::Take(
        path, {::getpid(), HostName(), fence.life, request.file.string(), UnixSeconds()});
  if (!lock.ok() && lock.error().code == ErrorCode::kAlreadyExists) {
    std::cerr << "troupe-autoscaler: cluster " << config.name << ": " << lock.error().message
              << "; `troupe down " << request.file.string() << "` ends it\n";
    return kFenced;
  }
  if (!lock.ok()) SayLine("nothing keeps a second one out on this host: " + lock.error().message);
  if (lock.ok() && !lock->before().empty()) fence.over.insert(lock->before());
  Result<std::unique_ptr<DriverClient>> connected = DriverClient::Connect(options);
  if (!connected.ok()) {
    std::cerr << "troupe-autoscaler: " << connected.error().message << "\n";
    return kNotStarted;
  }
  const std::string life = fence.life;
  bool empty = false;
  const int code =
      FleetRun(config, request, options, **connected, life, std::move(fence)).Run(empty);
  if (empty && lock.ok()) lock->LeaveNothing();
  return code;
}

void SayLine(const std::string& line) { std::cout << "troupe: " << line << std::endl; }

}  // namespace troupe::daemons
