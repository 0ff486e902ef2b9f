#include "daemons/client/metrics_link.h"

#include "runtime/wire.h"

namespace troupe::daemons {

void MetricsLink::Tell(const UserMetrics& told) const {
  (void)send_(wire::Encode(kFrameUserMetrics, told));
}

bool MetricsLink::OnFrame(uint8_t type, const std::string& frame) {
  if (type != kFrameUserMetricsTaken) return false;
  Result<UserMetricsTaken> taken = wire::Decode<UserMetricsTaken>(type, frame);
  std::lock_guard lock(mu_);
  if (taken.ok()) taken_ = std::move(*taken);
  return true;
}

std::optional<UserMetricsTaken> MetricsLink::taken() const {
  std::lock_guard lock(mu_);
  return taken_;
}

}  // namespace troupe::daemons
