#include "collective_groups/torch/elastic_loop.h"

#include <algorithm>
#include <thread>

#include "runtime/clock.h"

namespace troupe::elastic {
namespace {

constexpr Duration kRetry = milliseconds(50);

bool MembersChanged(ErrorCode code) {
  return code == ErrorCode::kEpochChanged || code == ErrorCode::kPeerGone ||
         code == ErrorCode::kCorrupt;
}

// One view, to its end.
Status RunView(groups::GroupAgent& group, ElasticState& state, const groups::ActiveView& active,
               const std::function<Status()>& train, const LoopOptions& options) {
  if (Status s = state.Sync(active, options.sync_limit); !s.ok()) return s;
  if (Status s = train(); !s.ok()) return s;
  if (Status s = state.FinishSync(); !s.ok()) return s;
  // Nobody leaves with the newest state while a peer has to redo the last step.
  groups::GroupAgent::Call call;
  call.text = "end of RunElastic";
  const Result<uint64_t> together = group.Wait(group.Barrier(call), options.sync_limit);
  return together.ok() ? Status::Ok() : Status(together.error());
}

// Waits for a view; a member that was taken for dead joins again if it may.
Result<groups::ActiveView> NextView(groups::GroupAgent& group, const ElasticState& state,
                                    Duration limit) {
  const SteadyClock clock;
  const Time deadline = clock.Now() + limit;
  for (;;) {
    group.Ready(state.version(), state.has_state());
    const Duration left = std::max(deadline - clock.Now(), Duration::zero());
    Result<groups::ActiveView> active = group.WaitActive(left);
    const bool again = !active.ok() && active.error().code == ErrorCode::kUnavailable;
    if (!again || clock.Now() >= deadline) return active;
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace

Result<Ending> RunElastic(groups::GroupAgent& group, ElasticState& state,
                          const std::function<Status()>& train, const LoopOptions& options) {
  for (;;) {
    const Result<groups::ActiveView> active = NextView(group, state, options.view_limit);
    if (!active.ok()) {
      if (active.error().code == ErrorCode::kDrained) return Ending::kDrained;
      return active.error();
    }
    const Status ended = RunView(group, state, *active, train, options);
    if (ended.ok()) return Ending::kFinished;
    if (!MembersChanged(ended.error().code)) return ended.error();
    if (Status s = state.Restore(); !s.ok()) return s.error();
  }
}

}  // namespace troupe::elastic
