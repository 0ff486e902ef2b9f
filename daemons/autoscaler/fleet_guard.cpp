#include "daemons/autoscaler/fleet_guard.h"

#include <utility>

namespace troupe::daemons {

FenceVerdict FleetGuard::Step(Time now) {
  now_ = now;
  (void)census_->Step(now);
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
  std::string said;
  if (!fence_.to_end().empty())
    said = "ending what an earlier `troupe up` has left: " + NamesOf(fence_.to_end());
  if (!fence_.held().empty())
    said += (said.empty() ? "" : "; ") + std::string("waiting: ") + Why() +
            "; if that was killed, they end by themselves within " +
            std::to_string(static_cast<int64_t>(ToSeconds(fence_.until() - now))) + " s";
  if (std::exchange(said_, said).substr(0, said.find("within")) !=
          said.substr(0, said.find("within")) &&
      !said.empty())
    say_(said);
}

std::string FleetGuard::Why() const {
  if (fence_.held().empty()) return trouble_.empty() ? "nobody has answered yet" : trouble_;
  return "another `troupe up` holds cluster " + cluster_ + " with " + NamesOf(fence_.held()) +
         "; `troupe down` of this file ends them, --take-over ends them first";
}

}  // namespace troupe::daemons
