#include "autoscaler/join_window.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe {

void JoinWindow::Lost(Time now, int nodes) {
  if (faded_at_ != Time{} && now > faded_at_)
    losses_ *= std::exp2(-ToSeconds(now - faded_at_) / ToSeconds(kLossesHalfLife));
  faded_at_ = std::max(faded_at_, now);
  losses_ += nodes;
}

Duration JoinWindow::WindowOf(Duration rebuild, int up) const {
  // What fades by half in that time adds up to the rate times the time / ln 2.
  const double rate = losses_ * std::numbers::ln2 / ToSeconds(kLossesHalfLife);
  const double gain = rate * ToSeconds(rebuild) * up;
  if (gain <= 1) return Duration::zero();
  return Duration(static_cast<int64_t>((std::sqrt(2 * gain - 1) - 1) / rate * 1e9));
}

Time JoinWindow::Due(Time now, const FleetLimits& limits, int up, int missing) {
  if (missing <= 0) open_since_.reset();
  if (missing <= 0 || up < std::max(1, limits.min_workers)) return now;
  if (!open_since_) open_since_ = now;
  return *open_since_ + WindowOf(limits.rebuild_time, up);
}

}  // namespace troupe
