// ScalingCurve: what one more worker would add, learnt from the steps of a run at the sizes that
// its group has had. A step with n workers takes a + b * n, and does n workers' share of work, as
// where each has a batch of its own; a and b are fitted to what was measured.
//
// The group grows by half of the largest size that was measured, as long as the last worker adds
// enough, then waits until that size is measured, too.
// Invariants: SC-1 never below `floor`. SC-2 the answer moves only where the gain is a tenth over
// or under the wanted one, so that noise does not move it.
// Pure. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/clock.h"

namespace troupe {

inline constexpr Duration kCurveSettles = seconds(2);    // After a change of members.
inline constexpr Duration kCurveMeasured = seconds(10);  // Of one size; and so many steps.
inline constexpr double kCurveSteps = 5;
inline constexpr Duration kCurveForgets = seconds(900);  // Half of what was measured.

class ScalingCurve {
 public:
  // `wanted`: what a worker has to add, as a share of what the first one does; 0: anything.
  ScalingCurve(double wanted, int floor) : wanted_(wanted), floor_(floor) {}

  // A run as the head tells it; steps since its begin.
  void Observe(Time now, const std::string& run, uint64_t epoch, int members, uint64_t steps);
  // So many workers pay; as many as there may be if nothing is wanted of them.
  [[nodiscard]] int useful() const;
  // Why not more, for people, with the figures of when that became so; empty: there is no limit.
  [[nodiscard]] const std::string& Why() const { return why_; }
  // What the n-th worker adds, as a share of the first one's work; below 0: not known yet.
  [[nodiscard]] double Gain(int n) const;

 private:
  struct Size {
    double seconds = 0;
    double steps = 0;
    [[nodiscard]] bool measured() const {
      return seconds >= ToSeconds(kCurveMeasured) && steps >= kCurveSteps;
    }
  };
  void Fit();
  [[nodiscard]] std::string Explain(const std::string& sizes) const;
  [[nodiscard]] int Paying(double wanted, int most) const;
  [[nodiscard]] int Explored() const;

  const double wanted_;
  const int floor_;
  std::map<int, Size> sizes_;
  std::string run_;
  uint64_t epoch_ = 0;
  int members_ = 0;
  Time since_{};
  Time at_{};
  uint64_t steps_ = 0;
  int known_ = 0;  // Sizes that were measured; of the fit.
  double a_ = 0;   // Seconds of a step.
  double b_ = 0;
  int useful_ = 0;
  std::string explained_;  // What why_ is about.
  std::string why_;
};

}  // namespace troupe
