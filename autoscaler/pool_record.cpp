#include "autoscaler/pool_record.h"

#include <algorithm>
#include <cmath>

#include "runtime/mutation.h"

namespace troupe {
namespace {

constexpr double kNewest = 0.2;  // The weight of the last launch, outage or boot among all.

Duration Mixed(Duration before, Duration now) {
  return std::chrono::duration_cast<Duration>(before * (1 - kNewest) + now * kNewest);
}

}  // namespace

void PoolRecord::Failed(Time now, const std::string& why, bool retriable, Duration cooldown,
                        Duration cooldown_max) {
  failure_ = why;
  failing_ = true;
  proven_ = false;
  if (!out_since_) out_since_ = now;
  if (cool_until_ > now && retriable) return;  // One of several that failed together.
  success_rate_ *= 1 - kNewest;
  Duration next = std::max(cooldown, 2 * last_cooldown_);
  if (usual_outage_ > Duration::zero())
    next = std::min(next, std::max(cooldown, usual_outage_ / kProbesPerOutage));
  if (!retriable) next = cooldown_max;
  last_cooldown_ = std::min(next, cooldown_max);
  cool_until_ = TROUPE_MUTATED("AP-2 no cool-down") ? now : now + last_cooldown_;
}

void PoolRecord::Granted(Time now, Duration cooldown) {
  success_rate_ += (1 - success_rate_) * kNewest;
  failing_ = false;
  proven_ = true;
  // One that succeeds beside others that fail does not end the outage.
  if (!out_since_ || now - *out_since_ < cooldown) return;
  const Duration outage = now - *out_since_;
  usual_outage_ = usual_outage_ == Duration::zero() ? outage : Mixed(usual_outage_, outage);
  out_since_.reset();
}

void PoolRecord::RoomAppeared() {
  cool_until_ = Time{};
  last_cooldown_ = Duration::zero();
}

void PoolRecord::Serves(Time since) {
  if (since >= cool_until_) last_cooldown_ = Duration::zero();
}

void PoolRecord::Booted(Duration boot) { boot_ = Mixed(boot_, boot); }

void PoolRecord::Fade(Time now) {
  if (now <= faded_at_) return;
  const Duration passed = faded_at_ == Time{} ? Duration::zero() : now - faded_at_;
  faded_at_ = now;
  const double kept = std::exp2(-ToSeconds(passed) / ToSeconds(kHazardHalfLife));
  preemptions_ *= kept;
  node_hours_ = node_hours_ * kept + held_ * ToSeconds(passed) / 3600;
}

void PoolRecord::Preempted(Time now, int nodes) {
  Fade(now);
  preemptions_ += nodes;
  preempted_at_ = now;
}

void PoolRecord::Held(Time now, int nodes) {
  Fade(now);
  held_ = nodes;
}

}  // namespace troupe
