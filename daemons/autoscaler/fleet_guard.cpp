#include "daemons/autoscaler/fleet_guard.h"

#include <utility>

namespace troupe::daemons {

FenceVerdict FleetGuard::Step(Time now) {
  now_ = now;
  if (!listing_ && now >= list_at_) {
    listing_ = true;
    census_->List([this](const Result<std::vector<CensusNode>>& listed) { Listed(now_, listed); });
  }
  return fence_.verdict(now);
}

void FleetGuard::Listed(Time now, const Result<std::vector<CensusNode>>& listed) {
  listing_ = false;
  list_at_ = now + kGuardFirst;
  if (!listed.ok()) {
    const std::string trouble =
        "cannot see who else holds nodes of " + cluster_ + ": " + listed.error().message;
    if (std::exchange(trouble_, trouble) != trouble) say_(trouble);
    return;
  }
  trouble_.clear();
  fence_.Take(now, *listed);
  if (!fence_.to_end().empty()) census_->End(fence_.to_end(), [](const Status&) {});
  if (fence_.verdict(now) == FenceVerdict::kGo && fence_.to_end().empty())
    list_at_ = now + kGuardLater;
  const std::string ending = NamesOf(fence_.to_end());
  if (std::exchange(ending_, ending) != ending && !ending.empty())
    say_("ending what an earlier `troupe up` has left: " + ending);
  const std::string held = NamesOf(fence_.held());
  if (std::exchange(held_, held) != held && !held.empty())
    say_("waiting: " + Why() + "; if that was killed, they end by themselves within " +
         std::to_string(static_cast<int64_t>(ToSeconds(fence_.until() - now))) + " s");
}

std::string FleetGuard::Why() const {
  if (!trouble_.empty()) return trouble_;
  if (fence_.held().empty())
    return fence_.to_end().empty() ? "nobody has answered yet"
                                   : "an earlier `troupe up` has left " + NamesOf(fence_.to_end());
  return "another `troupe up` holds cluster " + cluster_ + " with " + NamesOf(fence_.held()) +
         "; `troupe down` of this file ends them, --take-over ends them first";
}

}  // namespace troupe::daemons
