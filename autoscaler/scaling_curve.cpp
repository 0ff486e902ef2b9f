#include "autoscaler/scaling_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

namespace troupe {
namespace {

constexpr double kMargin = 0.1;  // SC-2

std::string TwoDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace

void ScalingCurve::Observe(Time now, const std::string& run, uint64_t epoch, int members,
                           uint64_t steps) {
  if (run != run_) sizes_.clear();  // Another program, another curve.
  if (run != run_ || epoch != epoch_ || members != members_ || steps < steps_) {
    run_ = run;
    epoch_ = epoch;
    members_ = members;
    since_ = at_ = now;
    steps_ = steps;
    return Fit();
  }
  if (members == 0) return;
  const double span = ToSeconds(now - at_);
  if (now >= since_ + kCurveSettles) {
    const double kept = std::exp2(-span / ToSeconds(kCurveForgets));
    for (auto& [n, size] : sizes_) {
      size.seconds *= kept;
      size.steps *= kept;
    }
    sizes_[members].seconds += span;
    sizes_[members].steps += static_cast<double>(steps - steps_);
  }
  at_ = now;
  steps_ = steps;
  Fit();
}

// Least squares, a size weighing as its steps.
void ScalingCurve::Fit() {
  double w = 0;
  double wn = 0;
  double wt = 0;
  double wnn = 0;
  double wnt = 0;
  known_ = 0;
  for (const auto& [n, size] : sizes_) {
    if (!size.measured()) continue;
    ++known_;
    const double weight = size.steps;
    const double step_s = size.seconds / size.steps;
    w += weight;
    wn += weight * n;
    wt += weight * step_s;
    wnn += weight * n * n;
    wnt += weight * n * step_s;
  }
  const double spread = known_ > 1 ? w * wnn - wn * wn : 0;
  if (spread > 0) {
    b_ = std::max(0.0, (w * wnt - wn * wt) / spread);
    a_ = (wt - b_ * wn) / w;
    if (a_ < 0) {  // Each worker costs a step its share: no more work is done by more of them.
      a_ = 0;
      b_ = wnt / wnn;
    }
  }
  const int most = Explored();
  const int up = known_ > 1 ? Paying(wanted_ * (1 + kMargin), most) : most;
  const int down = known_ > 1 ? Paying(wanted_ * (1 - kMargin), most) : most;
  if (up > useful_) {
    useful_ = up;
  } else if (down < useful_) {
    useful_ = down;
  }
  useful_ = std::max(useful_, floor_);  // SC-1
  // Figures that move a little are no news.
  std::string sizes;
  for (const auto& [n, size] : sizes_) {
    if (size.measured()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
  }
  const std::string about = std::to_string(useful_) + ": " + sizes;
  if (wanted_ > 0 && std::exchange(explained_, about) != about) why_ = Explain(sizes);
}

int ScalingCurve::Explored() const {
  int largest = 0;
  for (const auto& [n, size] : sizes_) {
    if (size.measured()) largest = n;
  }
  return largest == 0 ? std::max(floor_, 1) : largest + (largest + 1) / 2;
}

double ScalingCurve::Gain(int n) const {
  if (known_ < 2 || n < 1) return -1;
  const auto rate = [this](int of) { return of == 0 ? 0 : of / (a_ + b_ * of); };
  return (rate(n) - rate(n - 1)) / rate(1);
}

int ScalingCurve::Paying(double wanted, int most) const {
  int n = std::min(1, most);
  while (n < most && Gain(n + 1) >= wanted) ++n;
  return n;
}

int ScalingCurve::useful() const {
  if (wanted_ <= 0) return std::numeric_limits<int>::max();
  return std::max({useful_, floor_, 1});
}

std::string ScalingCurve::Explain(const std::string& sizes) const {
  if (known_ < 2)
    return "what more than " + std::to_string(useful()) + " workers bring is not known yet" +
           (sizes.empty() ? "" : ", measured with " + sizes);
  const int next = useful() + 1;
  return "worker " + std::to_string(next) + " would add " + TwoDigits(Gain(next)) +
         " of what the first one does, " + TwoDigits(wanted_) +
         " is wanted (min_marginal_efficiency), measured with " + sizes;
}

}  // namespace troupe
