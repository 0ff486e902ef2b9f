#include "autoscaler/fleet_sweep.h"

#include <algorithm>
#include <utility>

namespace troupe {

void FleetSweep::Step(Time now) {
  now_ = now;
  if (done_ || listing_ || now < list_at_) return;
  listing_ = true;
  list_at_ = now + options_.interval;
  census_->List(
      [this, now](const Result<std::vector<CensusNode>>& listed) { Listed(now, listed); });
}

void FleetSweep::Listed(Time asked, const Result<std::vector<CensusNode>>& listed) {
  listing_ = false;
  if (!listed.ok()) {
    none_since_.reset();
    if (std::exchange(trouble_, listed.error().message) != trouble_) options_.say(trouble_);
    return;
  }
  const std::string unknown = census_->Unknown();
  if (std::exchange(trouble_, unknown) != trouble_ && !unknown.empty()) options_.say(unknown);
  left_ = *listed;
  if (left_.empty() && !unknown.empty()) return none_since_.reset();
  if (left_.empty()) {
    if (!none_since_) none_since_ = asked;
    done_ = asked >= *none_since_ + options_.confirm;  // FS-1
    return;
  }
  none_since_.reset();
  std::vector<CensusNode> to_end;
  std::vector<CensusNode> fresh;
  for (const CensusNode& node : left_) {
    const auto [at, first] = asked_.try_emplace(node.id, now_);
    if (first) fresh.push_back(node);
    if (node.ending || (!first && now_ < at->second + options_.again)) continue;  // FS-2
    at->second = now_;
    to_end.push_back(node);
  }
  if (!fresh.empty()) options_.say("ending " + NamesOf(fresh));
  // A list that lags can show some late; whoever holds it elsewhere does so again and again.
  if (!fresh.empty() && std::exchange(swept_, true))
    options_.say("these came meanwhile: if another host runs `troupe up` of it, end that first");
  if (to_end.empty()) return;
  census_->End(to_end, [this](const Status& status) {
    if (status.ok()) return;
    if (std::exchange(trouble_, status.error().message) != trouble_) options_.say(trouble_);
  });
}

std::string FleetSweep::Left() const {
  if (left_.empty()) return trouble_.empty() ? "it is not known what is there" : trouble_;
  return NamesOf(left_) + (trouble_.empty() ? "" : "; " + trouble_);
}

}  // namespace troupe
