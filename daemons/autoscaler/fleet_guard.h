// FleetGuard: asks who else holds nodes of this cluster, ends those that a life left which is over,
// and says what it waits for. The shell around FleetFence.
//
// Thread: one; the census is not waited for.
#pragma once

#include <functional>
#include <string>

#include "autoscaler/fleet_census.h"
#include "autoscaler/fleet_fence.h"
#include "runtime/clock.h"

namespace troupe::daemons {

inline constexpr Duration kGuardFirst = seconds(1);  // Between two lists, until it goes on.
inline constexpr Duration kGuardLater = seconds(60);

class FleetGuard {
 public:
  // `cluster`: its name, for people.
  FleetGuard(std::string cluster, FleetCensus* census, FenceOptions options,
             std::function<void(const std::string&)> say)
      : cluster_(std::move(cluster)),
        census_(census),
        fence_(std::move(options)),
        say_(std::move(say)) {}

  // Whoever owns the census steps it.
  FenceVerdict Step(Time now);
  // Why the verdict is not kGo, for people.
  [[nodiscard]] std::string Why() const;

 private:
  void Listed(Time now, const Result<std::vector<CensusNode>>& listed);

  const std::string cluster_;
  FleetCensus* const census_;
  FleetFence fence_;
  const std::function<void(const std::string&)> say_;
  Time now_{};
  Time list_at_{};
  bool listing_ = false;
  std::string trouble_;
  std::string ending_;  // As they were said last.
  std::string held_;
};

}  // namespace troupe::daemons
