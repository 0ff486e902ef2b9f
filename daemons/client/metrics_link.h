// MetricsLink: hands what user code counts to the head, and keeps the head's last answer.
// Thread: any.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "daemons/protocol/user_metrics.h"
#include "runtime/result.h"

namespace troupe::daemons {

class MetricsLink {
 public:
  // `send` hands a frame to the head.
  explicit MetricsLink(std::function<Status(std::string frame)> send) : send_(std::move(send)) {}
  // One that is lost is told again by who counts.
  void Tell(const UserMetrics& told) const;
  // True if the frame was for it.
  bool OnFrame(uint8_t type, const std::string& frame);
  [[nodiscard]] std::optional<UserMetricsTaken> taken() const;

 private:
  const std::function<Status(std::string frame)> send_;
  mutable std::mutex mu_;
  std::optional<UserMetricsTaken> taken_;
};

}  // namespace troupe::daemons
