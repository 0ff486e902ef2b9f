// TokenBucket: so many units a second, and a burst of what was not used.
//
// Pure: time is handed in. Thread: owner only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "runtime/clock.h"

namespace troupe {

class TokenBucket {
 public:
  // Full at first.
  TokenBucket(double per_second, size_t burst)
      : per_second_(per_second),
        burst_(static_cast<double>(burst)),
        tokens_(static_cast<double>(burst)) {}

  [[nodiscard]] size_t Available(Time now) {
    Refill(now);
    return tokens_ <= 0 ? 0 : static_cast<size_t>(tokens_);
  }
  // Also more than there is: the rest is owed.
  void Take(Time now, size_t units) {
    Refill(now);
    tokens_ -= static_cast<double>(units);
  }
  // How long until there are so many.
  [[nodiscard]] Duration Until(Time now, size_t units) {
    Refill(now);
    const double missing = static_cast<double>(units) - tokens_;
    if (missing <= 0) return Duration::zero();
    return Duration(static_cast<int64_t>(missing / per_second_ * 1e9) + 1);
  }

 private:
  void Refill(Time now) {
    if (filled_ != Time{} && now > filled_)
      tokens_ = std::min(burst_, tokens_ + ToSeconds(now - filled_) * per_second_);
    filled_ = std::max(filled_, now);
  }

  const double per_second_;
  const double burst_;
  double tokens_;
  Time filled_{};
};

}  // namespace troupe
