// TaskPool: runs a program's tasks in worker processes that are started and ended by demand.
//
// A runner is a placed actor whose methods are the tasks; it runs one at a time. Tasks of one kind
// (resources, labels, retries, program) wait in one queue, from which any runner of the kind takes
// the next, so that none waits for a runner that gets no room. While tasks wait, more runners are
// asked for, at once as many as live already, if what waits is done sooner by more than it costs to
// start one. What tasks of each code take is measured; a runner whose task takes much longer does
// not count. In place of one that could not start none is asked for, while others may yet come. If
// none does, the tasks fail with the reason. A runner that has been idle is ended, one that still
// waits for room withdrawn. While somebody else waits for room the latter at once, and of those
// that are idle half at each word of that. One that others ask for what its tasks have made is not
// ended: it is kept, and asked again.
// Thread: any.
// Limits: kRunnersMax processes of one kind; a task waits until its time-out at most.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "actors/api/future.h"
#include "actors/api/options.h"
#include "actors/core/runner_demand.h"
#include "actors/host/actor_ref.h"

namespace troupe::actors {

class ActorSystem;

inline constexpr size_t kCodesKept = 256;  // Whose tasks do not wait.
// So long does who works step by step look at a result; whoever needs their room has it at once.
// TROUPE_TASK_IDLE_S in the environment of a process says otherwise for its own.
inline constexpr Duration kRunnerIdle = seconds(60);
inline constexpr Duration kRunnerRetry = seconds(5);
inline constexpr Duration kRunnerAsk = seconds(1);  // Between two questions whether it is needed.
inline constexpr Duration kRoomWanted = seconds(2);

class TaskPool {
 public:
  explicit TaskPool(ActorSystem* system);

  // `done` runs once, by the time-out at the latest. What is returned cancels the task, also one
  // that runs.
  std::shared_ptr<PendingCall> Submit(const TaskOptions& options, const std::string& task,
                                      std::string arguments, const CallDone& done);
  // These wait for room, by their ids; a runner of this pool may be among them. Holds until the
  // next word, and no longer than kRoomWanted.
  void GiveWay(Time now, const std::vector<std::string>& waiting);
  // Tasks none of whose kind run, since no process for them has room: what they are, and why.
  [[nodiscard]] std::map<std::string, std::string> Waiting();
  // Ends runners that nobody has needed for long.
  void Clean(Time now);
  // What waits fails with `why`, and no runner is kept.
  void Stop(const Error& why);

 private:
  class Task;
  using Kind =
      std::tuple<std::map<std::string, double>, std::vector<std::string>, int32_t, std::string,
                 std::vector<std::string>, std::map<std::string, std::string>>;
  struct Runner {
    std::shared_ptr<ActorRef> ref;  // Null: being created.
    bool alive = false;             // It has answered once, so there was room for it.
    bool busy = false;
    Time busy_since{};
    Duration expected{};  // Of the task it runs.
    Time idle_since{};
    Time ask_at{};  // Not before this it is asked whether it is needed.
  };
  // What is known of tasks of one code.
  struct Work {
    Duration typical{};  // What one takes, until its runner is free again; zero: none was done.
    size_t waiting = 0;
  };
  struct Lane {
    std::deque<std::shared_ptr<Task>> waiting;
    std::vector<std::shared_ptr<Runner>> runners;
    std::map<std::string, Work> works;  // By code.
    bool looking = false;               // Serve is due.
    size_t failed = 0;  // Runners that never came, since one did or it was tried again.
    Time failed_at{};
  };

  void Serve(const Kind& kind);
  static void DropFirst(Lane& lane);
  static void DropOver(Lane& lane);
  [[nodiscard]] static RunnerDemand DemandOf(Time now, const Lane& lane);
  void LookAgain(const Kind& kind);
  void Measure(const Kind& kind, const Runner& runner, const std::string& code);
  void Run(const Kind& kind, const std::shared_ptr<Runner>& runner,
           const std::shared_ptr<Task>& task);
  void Free(const Kind& kind, const std::shared_ptr<Runner>& runner);
  void AwaitRunner(const Kind& kind, const std::shared_ptr<Runner>& runner);
  void Create(const Kind& kind, const std::shared_ptr<Runner>& runner);
  void OnRunner(const Kind& kind, const std::shared_ptr<Runner>& runner,
                const std::shared_ptr<ActorRef>& ref);
  void OnEnded(const Kind& kind, const std::shared_ptr<Runner>& runner, const Error& why);
  [[nodiscard]] std::string WhyWaits(const Kind& kind);
  [[nodiscard]] bool OthersWait(Time now, const Lane& lane) const;  // With mu_ held.
  void GiveWayNow(Time now, const Runner* only);
  void EndUnlessNeeded(const Kind& kind, const std::shared_ptr<Runner>& runner, const char* why);

  ActorSystem* const system_;
  const Duration runner_idle_;
  std::mutex mu_;
  bool stopped_ = false;
  std::map<Kind, Lane> lanes_;
  std::set<std::string> room_wanted_;  // By whom.
  Time room_wanted_until_{};
};

}  // namespace troupe::actors
