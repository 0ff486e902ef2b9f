#include "collective_groups/gpu/internal/watched_lane.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/log.h"
#include "runtime/thread.h"

namespace troupe::groups {

struct WatchedLane::State {
  std::mutex mu;
  std::condition_variable changed;
  std::function<Status()> work;
  std::optional<Status> result;
  bool ending = false;
  bool lost = false;
  const std::string name;

  explicit State(std::string n) : name(std::move(n)) {}

  void Work() {
    NameThisThread(name);
    std::unique_lock lock(mu);
    for (;;) {
      changed.wait(lock, [this] { return work || ending; });
      if (!work) return;
      std::function<Status()> mine = std::exchange(work, nullptr);
      lock.unlock();
      Status status = mine();
      mine = nullptr;  // What it holds goes on this thread, before anybody is told.
      lock.lock();
      result = std::move(status);
      changed.notify_all();
      if (lost) return;
    }
  }
};

WatchedLane::WatchedLane(std::string name)
    : state_(std::make_shared<State>(std::move(name))),
      thread_([state = state_] { state->Work(); }) {}

WatchedLane::~WatchedLane() {
  {
    std::lock_guard lock(state_->mu);
    state_->ending = true;
    state_->changed.notify_all();
  }
  lost() ? thread_.detach() : thread_.join();
}

Status WatchedLane::Run(std::function<Status()> work, const std::function<bool()>& stop,
                        Duration grace) {
  const SteadyClock clock;
  std::unique_lock lock(state_->mu);
  if (state_->lost) {
    return Error{ErrorCode::kDeadlineExceeded,
                 state_->name + ": an earlier call has not come back"};
  }
  state_->work = std::move(work);
  state_->result.reset();
  state_->changed.notify_all();
  Time give_up = Time::Never();
  for (;;) {
    if (state_->changed.wait_for(lock, kWatchInterval,
                                 [this] { return state_->result.has_value(); }))
      return *std::exchange(state_->result, std::nullopt);
    const Time now = clock.Now();
    if (give_up == Time::Never()) {
      if (stop()) give_up = now + grace;
    } else if (now >= give_up) {
      state_->lost = true;
      LogError(state_->name, ": a call has not come back within ", ToSeconds(grace),
               " s after it was to stop; its thread and memory are left to themselves");
      return Error{ErrorCode::kDeadlineExceeded,
                   state_->name + ": a call has not come back within " +
                       std::to_string(static_cast<int>(ToSeconds(grace))) + " s"};
    }
  }
}

bool WatchedLane::lost() const {
  std::lock_guard lock(state_->mu);
  return state_->lost;
}

}  // namespace troupe::groups
