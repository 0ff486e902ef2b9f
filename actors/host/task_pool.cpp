#include "actors/host/task_pool.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "actors/api/cluster.h"
#include "actors/host/actor_system.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "scheduler/resources.h"

namespace troupe::actors {

namespace {

constexpr double kIdleMaxS = 1e6;
constexpr int kRecentTasks = 8;  // So many count for what is typical.
constexpr int kMuchLonger = 4;   // Than what is typical: nobody knows when it ends.

std::string Shown(const std::map<std::string, double>& resources) {
  const auto needs = ResourceSet::FromMap(resources);
  return needs.ok() ? needs->ToString() : needs.error().message;
}

Duration RunnerIdle() {
  const std::string text = Env("TROUPE_TASK_IDLE_S");
  if (text.empty()) return kRunnerIdle;
  char* end = nullptr;
  const double s = std::strtod(text.c_str(), &end);
  if (*end == '\0' && s >= 0 && s <= kIdleMaxS) return nanoseconds(static_cast<int64_t>(s * 1e9));
  LogWarning("TROUPE_TASK_IDLE_S=", text, " is no number of seconds from 0 to ", kIdleMaxS,
             "; idle processes of tasks are kept for ", ToSeconds(kRunnerIdle), " s");
  return kRunnerIdle;
}

}  // namespace

TaskPool::TaskPool(ActorSystem* system) : system_(system), runner_idle_(RunnerIdle()) {}

// One task, from its submission to its end.
class TaskPool::Task final : public PendingCall {
 public:
  // `why_waits` is asked while the system lives.
  Task(ActorSystem* system, std::string code, std::string method, std::string arguments, bool retry,
       std::function<std::string()> why_waits)
      : code(std::move(code)),
        system_(system->weak_from_this()),
        method_(std::move(method)),
        arguments_(std::move(arguments)),
        retry_(retry),
        why_waits_(std::move(why_waits)) {}

  const std::string code;
  const std::shared_ptr<ActorSystem::LocalCall> call = std::make_shared<ActorSystem::LocalCall>();

  [[nodiscard]] bool over() const { return call->finished.load(); }
  // Lets it run there; `left` follows when it is over. `sure`: the runner is free again; else it
  // may have died, or go on with what nobody waits for any more.
  void RunOn(const std::shared_ptr<ActorRef>& ref, std::function<void(bool sure)> left) {
    const Duration limit = std::max(Duration::zero(), call->deadline - SteadyClock().Now());
    std::string arguments;
    {
      std::lock_guard lock(mu_);
      arguments = std::move(arguments_);
    }
    const uint64_t number = ref->Call(
        method_, std::move(arguments), CallOptions{limit, retry_},
        [call = call, left = std::move(left)](Result<std::string> result) {
          const ErrorCode code = result.ok() ? ErrorCode::kOk : result.error().code;
          const bool sure = code != ErrorCode::kPeerGone && code != ErrorCode::kCancelled &&
                            code != ErrorCode::kDeadlineExceeded;
          call->Finish(std::move(result));
          left(sure);
        });
    std::optional<Cancellation> cancelled;
    {
      std::lock_guard lock(mu_);
      ref_ = ref;
      number_ = number;
      cancelled = cancelled_;
    }
    if (cancelled && number != 0) ref->Cancel(number, *cancelled);
  }
  void Cancel(const Cancellation& how) override {
    std::shared_ptr<ActorRef> ref;
    uint64_t number = 0;
    {
      std::lock_guard lock(mu_);
      cancelled_ = how;
      arguments_ = std::string();  // It may stay in its queue for long.
      ref = ref_;
      number = number_;
    }
    if (ref && number != 0) ref->Cancel(number, how);
    call->Finish(Error{ErrorCode::kCancelled, "cancelled by its caller"});
  }
  void Await(FiberEvent& event, Time until) override {
    if (const auto system = system_.lock()) return system->AwaitHelping(event, until);
    (void)event.WaitFor(until - SteadyClock().Now());
  }
  [[nodiscard]] std::string WhyNot() const override {
    {
      std::lock_guard lock(mu_);
      if (ref_) return "it runs in " + ref_->address().actor + " and has not ended";
    }
    const auto system = system_.lock();
    return system ? why_waits_() : "";
  }
  [[nodiscard]] PeerAddress Receiver() const override {
    std::lock_guard lock(mu_);
    return ref_ ? ref_->address().process : PeerAddress{};
  }

 private:
  const std::weak_ptr<ActorSystem> system_;
  const std::string method_;
  std::string arguments_;
  const bool retry_;
  const std::function<std::string()> why_waits_;
  mutable std::mutex mu_;
  std::optional<Cancellation> cancelled_;
  std::shared_ptr<ActorRef> ref_;
  uint64_t number_ = 0;
};

std::shared_ptr<PendingCall> TaskPool::Submit(const TaskOptions& options, const std::string& task,
                                              std::string arguments, const CallDone& done) {
  const Kind kind{options.resources, options.labels,  options.max_retries,
                  options.plugin,    options.program, options.env};
  auto submitted = std::make_shared<Task>(system_, options.code.empty() ? task : options.code, task,
                                          std::move(arguments), options.max_retries != 0,
                                          [this, kind] { return WhyWaits(kind); });
  submitted->call->deadline = SteadyClock().Now() + options.timeout;
  submitted->call->done = done;
  submitted->call->why_late = [weak = std::weak_ptr<Task>(submitted)] {
    const auto alive = weak.lock();
    return "the task was not done within its time-out" + (alive ? "; " + alive->WhyNot() : "");
  };
  bool stopped = false;
  {
    std::lock_guard lock(mu_);
    stopped = stopped_;
    if (!stopped) {
      Lane& lane = lanes_[kind];
      lane.waiting.push_back(submitted);
      ++lane.works[submitted->code].waiting;
    }
  }
  if (stopped) {
    submitted->call->Finish(Error{ErrorCode::kCancelled, "this runtime was shut down"});
    return submitted;
  }
  system_->Expect(submitted->call);
  Serve(kind);
  return submitted;
}

// Gives what waits to runners that are free, and asks for more of them while something waits.
void TaskPool::Serve(const Kind& kind) {
  std::vector<std::pair<std::shared_ptr<Runner>, std::shared_ptr<Task>>> begun;
  std::vector<std::shared_ptr<Runner>> created;
  bool look = false;
  const Time now = SteadyClock().Now();
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    Lane& lane = lanes_[kind];
    DropOver(lane);
    for (const auto& runner : lane.runners) {
      if (lane.waiting.empty()) break;
      if (!runner->alive || runner->busy) continue;
      runner->busy = true;
      runner->busy_since = now;
      runner->expected = lane.works[lane.waiting.front()->code].typical;
      begun.emplace_back(runner, lane.waiting.front());
      DropFirst(lane);
      DropOver(lane);
    }
    const RunnerDemand demand = DemandOf(now, lane);
    for (size_t more = MoreRunners(demand); more > 0; --more) {
      created.push_back(lane.runners.emplace_back(std::make_shared<Runner>()));
      created.back()->idle_since = now;
    }
    // Who moves now may not in a while, and more will be wanted. All else comes with an event.
    look = demand.waiting > 0 && demand.moving > 0 && created.empty() &&
           !std::exchange(lane.looking, true);
  }
  for (const auto& [runner, task] : begun) Run(kind, runner, task);
  for (const auto& runner : created) Create(kind, runner);
  if (look) LookAgain(kind);
}

// With mu_ held, as the next two.
void TaskPool::DropFirst(Lane& lane) {
  --lane.works[lane.waiting.front()->code].waiting;
  lane.waiting.pop_front();
}

// Those in front that nobody waits for any more; others follow when they get there, or with Clean.
void TaskPool::DropOver(Lane& lane) {
  while (!lane.waiting.empty() && lane.waiting.front()->over()) DropFirst(lane);
}

RunnerDemand TaskPool::DemandOf(Time now, const Lane& lane) {
  RunnerDemand demand;
  demand.waiting = lane.waiting.size();
  demand.runners = lane.runners.size();
  demand.failed = lane.failed;
  for (const auto& runner : lane.runners) {
    const Duration longest = std::max(kRunnerCost, kMuchLonger * runner->expected);
    if (!runner->alive) ++demand.coming;
    if (runner->alive && (!runner->busy || now < runner->busy_since + longest)) ++demand.moving;
  }
  for (const auto& [code, work] : lane.works) {
    if (work.waiting > 0 && work.typical == Duration::zero()) demand.known = false;
    demand.work += static_cast<int64_t>(work.waiting) * work.typical;
  }
  return demand;
}

void TaskPool::LookAgain(const Kind& kind) {
  const std::weak_ptr<ActorSystem> alive = system_->weak_from_this();
  system_->PostAfter(kRunnerCost, [this, alive, kind] {
    const auto system = alive.lock();
    if (!system) return;
    {
      std::lock_guard lock(mu_);
      const auto it = lanes_.find(kind);
      if (it == lanes_.end()) return;
      it->second.looking = false;
    }
    Serve(kind);
  });
}

// A task of it has ended.
void TaskPool::Measure(const Kind& kind, const Runner& runner, const std::string& code) {
  std::lock_guard lock(mu_);
  Lane& lane = lanes_[kind];
  if (lane.works.size() > kCodesKept)
    std::erase_if(lane.works, [](const auto& entry) { return entry.second.waiting == 0; });
  Duration& typical = lane.works[code].typical;
  const Duration took = std::max(Duration(1), SteadyClock().Now() - runner.busy_since);
  typical = typical == Duration::zero() ? took : typical + (took - typical) / kRecentTasks;
}

void TaskPool::Run(const Kind& kind, const std::shared_ptr<Runner>& runner,
                   const std::shared_ptr<Task>& task) {
  task->RunOn(runner->ref, [this, kind, runner, task](bool sure) {
    if (sure) {
      Measure(kind, *runner, task->code);
      return Free(kind, runner);
    }
    // Or the error is that of somebody whom the task has called. It answers when its turn comes, or
    // the monitor follows.
    task->Cancel({});  // Its time may be up, of which it has not been told.
    AwaitRunner(kind, runner);
  });
}

// It takes the next task.
void TaskPool::Free(const Kind& kind, const std::shared_ptr<Runner>& runner) {
  {
    std::lock_guard lock(mu_);
    if (!std::exchange(runner->alive, true)) lanes_[kind].failed = 0;
    runner->busy = false;
    runner->idle_since = SteadyClock().Now();
  }
  Serve(kind);
  GiveWayNow(SteadyClock().Now(), runner.get());
}

void TaskPool::GiveWay(Time now, const std::vector<std::string>& waiting) {
  {
    std::lock_guard lock(mu_);
    room_wanted_ = {waiting.begin(), waiting.end()};
    room_wanted_until_ = now + kRoomWanted;
  }
  GiveWayNow(now, nullptr);
}

// Whether somebody waits for room who is no runner of this lane: those would only take the place
// of their like.
bool TaskPool::OthersWait(Time now, const Lane& lane) const {
  if (now > room_wanted_until_) return false;
  const auto own = static_cast<size_t>(std::ranges::count_if(lane.runners, [&](const auto& runner) {
    return runner->ref && !runner->alive && room_wanted_.contains(runner->ref->address().actor);
  }));
  return room_wanted_.size() > own;
}

// Those that wait for room themselves go first. If others wait too, half of those that are idle
// follow, or the one that has just become so. Nobody here knows how many are in the way; who still
// waits says so again. To end all would mean to start most of them again.
void TaskPool::GiveWayNow(Time now, const Runner* only) {
  constexpr const char* kWhy = "it was idle and others wait for room";
  std::vector<std::shared_ptr<ActorRef>> unneeded;
  std::vector<std::pair<Kind, std::shared_ptr<Runner>>> idle;
  {
    std::lock_guard lock(mu_);
    if (room_wanted_.empty() || now > room_wanted_until_) return;
    for (auto& [kind, lane] : lanes_) {
      DropOver(lane);
      if (!lane.waiting.empty()) continue;
      const bool others = OthersWait(now, lane);
      std::erase_if(lane.runners, [&](const auto& runner) {
        const bool goes = runner->ref && !runner->busy && !runner->alive;
        if (goes) unneeded.push_back(runner->ref);
        return goes;
      });
      for (const auto& runner : lane.runners) {
        if (!others || runner->busy || !runner->alive || now < runner->ask_at) continue;
        if (only == nullptr || only == runner.get()) idle.emplace_back(kind, runner);
      }
    }
    std::ranges::stable_sort(idle, {}, [](const auto& entry) { return entry.second->idle_since; });
    idle.resize((idle.size() + 1) / 2);
    for (const auto& [kind, runner] : idle) runner->busy = true;
    for (const auto& ref : unneeded) room_wanted_.erase(ref->address().actor);
  }
  for (const auto& ref : unneeded) ref->Kill(false, kWhy, [](const Result<std::string>&) {});
  for (const auto& [kind, runner] : idle) EndUnlessNeeded(kind, runner, kWhy);
}

// One that is alive, and that counts as busy until it has answered.
void TaskPool::EndUnlessNeeded(const Kind& kind, const std::shared_ptr<Runner>& runner,
                               const char* why) {
  std::shared_ptr<ActorRef> ref;
  {
    std::lock_guard lock(mu_);
    ref = runner->ref;
  }
  if (!ref) return;  // It was let go.
  (void)ref->Call(kNeeded, "", CallOptions{kUntilComplete, false},
                  [this, kind, runner, ref, why](const Result<std::string>& answer) {
                    if (!answer.ok()) return;  // The monitor says why.
                    bool ends = *answer != kIsNeeded;
                    {
                      std::lock_guard lock(mu_);
                      Lane& lane = lanes_[kind];
                      runner->ask_at = SteadyClock().Now() + kRunnerAsk;
                      ends = ends && lane.waiting.empty() && std::erase(lane.runners, runner) > 0;
                    }
                    if (!ends) return Free(kind, runner);
                    ref->Kill(false, why, [](const Result<std::string>&) {});
                  });
}

// Its word says that there is room for it, that it lives, and that it runs nothing.
void TaskPool::AwaitRunner(const Kind& kind, const std::shared_ptr<Runner>& runner) {
  std::shared_ptr<ActorRef> ref;
  {
    std::lock_guard lock(mu_);
    ref = runner->ref;
  }
  if (!ref) return;  // It was let go.
  (void)ref->Call(kPing, "", CallOptions{kUntilComplete, true},
                  [this, kind, runner](const Result<std::string>& pong) {
                    if (pong.ok()) Free(kind, runner);  // Else the monitor says why.
                  });
}

void TaskPool::Create(const Kind& kind, const std::shared_ptr<Runner>& runner) {
  ActorOptions options;
  std::tie(options.resources, options.labels, options.max_restarts, options.plugin, options.program,
           options.env) = kind;
  options.runs_tasks = true;
  const auto system = system_->shared_from_this();
  PlaceAsync(system, options, MakeBlueprint(options.limits(), kTaskRunner, ""),
             [this, system, kind, runner](const Result<std::shared_ptr<ActorRef>>& placed) {
               if (!placed.ok()) return OnEnded(kind, runner, placed.error());
               OnRunner(kind, runner, *placed);
             });
}

void TaskPool::OnRunner(const Kind& kind, const std::shared_ptr<Runner>& runner,
                        const std::shared_ptr<ActorRef>& ref) {
  bool stopped = false;
  {
    std::lock_guard lock(mu_);
    stopped = stopped_;
    if (!stopped) runner->ref = ref;
  }
  if (stopped) return;
  const std::weak_ptr<ActorSystem> alive = system_->weak_from_this();
  (void)ref->Monitor([this, alive, kind, runner](const Error& why) {
    if (const auto system = alive.lock()) OnEnded(kind, runner, why);
  });
  AwaitRunner(kind, runner);
}

// One that has never run a task will not if it is tried again: the tasks are told why.
void TaskPool::OnEnded(const Kind& kind, const std::shared_ptr<Runner>& runner, const Error& why) {
  std::deque<std::shared_ptr<Task>> failed;
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    Lane& lane = lanes_[kind];
    if (std::erase(lane.runners, runner) == 0) return;  // It was let go.
    if (!runner->alive && lane.runners.empty()) {
      failed.swap(lane.waiting);
      lane.works.clear();
    }
    lane.failed = runner->alive || lane.runners.empty() ? 0 : lane.failed + 1;
    lane.failed_at = SteadyClock().Now();
  }
  for (const auto& task : failed) task->call->Finish(why.WithContext("no process for the task"));
  Serve(kind);
}

std::string TaskPool::WhyWaits(const Kind& kind) {
  std::shared_ptr<ActorRef> coming;
  {
    std::lock_guard lock(mu_);
    for (const auto& runner : lanes_[kind].runners) {
      if (!runner->alive && runner->ref) coming = runner->ref;
    }
  }
  const std::string why = coming ? coming->WhyNot() : "";
  return why.empty() ? "it has no process yet" : "a process for it is " + why;
}

std::map<std::string, std::string> TaskPool::Waiting() {
  std::map<std::string, std::string> waiting;
  std::lock_guard lock(mu_);
  for (auto& [kind, lane] : lanes_) {
    DropOver(lane);
    const bool runs =
        std::ranges::any_of(lane.runners, [](const auto& runner) { return runner->alive; });
    if (lane.waiting.empty() || runs) continue;
    for (const auto& runner : lane.runners) {
      const std::string why = runner->ref ? runner->ref->RoomReason() : "";
      if (!why.empty()) waiting["a task (" + Shown(std::get<0>(kind)) + ")"] = why;
    }
  }
  return waiting;
}

void TaskPool::Clean(Time now) {
  std::vector<std::shared_ptr<ActorRef>> unneeded;
  std::vector<std::pair<Kind, std::shared_ptr<Runner>>> idle;
  std::vector<Kind> again;
  {
    std::lock_guard lock(mu_);
    for (auto& [kind, lane] : lanes_) {
      std::erase_if(lane.waiting, [&works = lane.works](const auto& task) {
        if (!task->over()) return false;
        --works[task->code].waiting;
        return true;
      });
      if (lane.failed > 0 && now > lane.failed_at + kRunnerRetry) {  // It may be over.
        lane.failed = 0;
        again.push_back(kind);
      }
      std::erase_if(lane.runners, [&, &kind = kind, &lane = lane](const auto& runner) {
        const bool needed = runner->busy || (!runner->alive && !lane.waiting.empty());
        const bool over = runner->ref && !needed && now > runner->idle_since + runner_idle_;
        if (over && runner->alive) {
          runner->busy = true;
          idle.emplace_back(kind, runner);
        } else if (over) {
          unneeded.push_back(runner->ref);
        }
        return over && !runner->alive;
      });
    }
    std::erase_if(lanes_, [](const auto& entry) {
      return entry.second.runners.empty() && entry.second.waiting.empty();
    });
  }
  for (const auto& ref : unneeded)
    ref->Kill(false, "it has been idle", [](const Result<std::string>&) {});
  for (const auto& [kind, runner] : idle) EndUnlessNeeded(kind, runner, "it has been idle");
  for (const Kind& kind : again) Serve(kind);
}

void TaskPool::Stop(const Error& why) {
  std::map<Kind, Lane> lanes;
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    lanes.swap(lanes_);
  }
  for (const auto& [kind, lane] : lanes) {
    for (const auto& task : lane.waiting) task->call->Finish(why);
    // Callbacks hold runners, and those this system.
    for (const auto& runner : lane.runners) {
      std::lock_guard lock(mu_);
      runner->ref.reset();
    }
  }
}

}  // namespace troupe::actors
