#include "autoscaler/fleet_fence.h"

namespace troupe {

void FleetFence::Take(Time now, const std::vector<CensusNode>& listed) {
  listed_ = true;
  held_.clear();
  to_end_.clear();
  for (const CensusNode& node : listed) {
    if (node.life == options_.life || node.ending) continue;
    if (options_.take_over || options_.over.contains(node.life)) {
      to_end_.push_back(node);
    } else if (!went_ || node.life < options_.life) {  // FF-2
      held_.push_back(node);
    }
  }
  const bool clear = held_.empty() && (went_ || to_end_.empty());
  if (clear) {
    since_.reset();
  } else if (!since_) {
    since_ = now;
  }
  went_ = went_ || clear || (held_.empty() && now >= until());
}

FenceVerdict FleetFence::verdict(Time now) const {
  if (!listed_) return FenceVerdict::kWait;  // FF-1
  if (!since_) return FenceVerdict::kGo;
  if (now < until()) return FenceVerdict::kWait;
  return held_.empty() ? FenceVerdict::kGo : FenceVerdict::kYield;
}

}  // namespace troupe
