// RunElastic: enter a view, bring everyone to the newest state, train, repeat.
//
// `train` is called again whenever the members have changed, with the state of the newest committed
// step, so it must go on from what the state says. It returns what the first failed call of the
// reducer, the state or a collective returned, and Ok when training has ended.
// Thread: the training thread.
#pragma once

#include <functional>

#include "collective_groups/membership/group_agent.h"
#include "collective_groups/torch/elastic_state.h"
#include "runtime/result.h"

namespace troupe::elastic {

struct LoopOptions {
  Duration view_limit = seconds(600);   // Of the wait for a view.
  Duration sync_limit = seconds(3600);  // Of a piece of the state's way, and of the last barrier.
};

enum class Ending {
  kFinished,  // Training has ended, on all members.
  kDrained,   // This member was asked to leave, or is not needed any more: end the process well.
};

// Errors: what `train` returned, unless it says that a member has gone or come (kEpochChanged,
// kPeerGone, kCorrupt); kDeadlineExceeded without a view in time; kFenced if the group has put this
// member aside; kMismatch if its state is made otherwise than the group's. Exceptions of `train`
// pass through.
Result<Ending> RunElastic(groups::GroupAgent& group, ElasticState& state,
                          const std::function<Status()>& train, const LoopOptions& options = {});

}  // namespace troupe::elastic
