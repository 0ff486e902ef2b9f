#include "autoscaler/scaling_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace troupe {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ScalingCurveTest : public ::testing::Test {
 protected:
  // A run of so many seconds with `members`, whose steps take `step_s`.
  void Train(ScalingCurve& curve, int members, double step_s, int seconds_long = 60) {
    ++epoch_;
    for (int tick = 0; tick < 5 * seconds_long; ++tick) {
      now_ = now_ + milliseconds(200);
      done_ += 0.2 / step_s;
      curve.Observe(now_, "run", epoch_, members, static_cast<uint64_t>(done_));
    }
  }

  Time now_ = Time{} + seconds(100);
  double done_ = 0;
  uint64_t epoch_ = 0;
};

TEST_F(ScalingCurveTest, WithoutAWishThereIsNoLimit) {
  ScalingCurve curve(0, 2);
  Train(curve, 2, 0.1);
  EXPECT_EQ(curve.useful(), std::numeric_limits<int>::max());
  EXPECT_EQ(curve.Why(), "");
}

TEST_F(ScalingCurveTest, ItBeginsWithTheFloorAndGrowsAsFarAsWasMeasured) {
  ScalingCurve curve(0.5, 2);
  EXPECT_EQ(curve.useful(), 2);
  Train(curve, 2, 0.1, 9);
  EXPECT_EQ(curve.useful(), 2);
  Train(curve, 2, 0.1);
  EXPECT_EQ(curve.useful(), 3);
  EXPECT_THAT(curve.Why(), HasSubstr("what more than 3 workers bring is not known yet"));
  Train(curve, 3, 0.1);  // As good as without a price.
  EXPECT_EQ(curve.useful(), 5);
  Train(curve, 5, 0.1);
  EXPECT_EQ(curve.useful(), 8);
}

// T(n) = 0.1 + 0.02 n: rates are n / T. The 3rd adds 0.12 * (3/0.16 - 2/0.14) = 0.54 of the first.
TEST_F(ScalingCurveTest, ItEndsWhereAWorkerAddsTooLittle) {
  ScalingCurve curve(0.5, 2);
  Train(curve, 2, 0.14);
  Train(curve, 3, 0.16);
  EXPECT_NEAR(curve.Gain(3), 0.536, 0.01);
  EXPECT_NEAR(curve.Gain(4), 0.417, 0.01);
  EXPECT_EQ(curve.useful(), 3);
  EXPECT_THAT(curve.Why(),
              MatchesRegex("worker 4 would add 0.[34][0-9] of what the first one does, 0.50 is "
                           "wanted .min_marginal_efficiency., measured with 2, 3"));
}

TEST_F(ScalingCurveTest, WhereMoreWorkersBringNothingTheFloorStays) {
  ScalingCurve curve(0.3, 2);
  Train(curve, 2, 0.2);
  Train(curve, 3, 0.3);
  EXPECT_EQ(curve.useful(), 2);
  Train(curve, 2, 0.2);
  EXPECT_EQ(curve.useful(), 2);
}

// SC-2
TEST_F(ScalingCurveTest, NoiseDoesNotMoveIt) {
  ScalingCurve curve(0.5, 2);
  Train(curve, 2, 0.14);
  Train(curve, 3, 0.16);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  int changes = 0;
  int before = curve.useful();
  for (int i = 0; i < 60; ++i) {
    Train(curve, 2 + i % 2, (0.1 + 0.02 * (2 + i % 2)) * noise(random), 20);
    if (curve.useful() != before) ++changes;
    before = curve.useful();
  }
  EXPECT_EQ(changes, 0);
}

TEST_F(ScalingCurveTest, WhatIsNewReplacesWhatWas) {
  ScalingCurve curve(0.5, 2);
  Train(curve, 2, 0.14);
  Train(curve, 3, 0.16);
  ASSERT_EQ(curve.useful(), 3);
  Train(curve, 2, 0.1, 6000);  // Faster links, say.
  Train(curve, 3, 0.1, 6000);
  EXPECT_EQ(curve.useful(), 5);
}

TEST_F(ScalingCurveTest, AnotherRunBeginsAnewAndStepsThatGoBackAreNoSpeed) {
  ScalingCurve curve(0.5, 2);
  Train(curve, 2, 0.1);
  ASSERT_EQ(curve.useful(), 3);
  curve.Observe(now_ + seconds(1), "run", epoch_, 2, 5);
  EXPECT_EQ(curve.useful(), 3);
  curve.Observe(now_ + seconds(1), "other", 1, 2, 5);
  EXPECT_EQ(curve.useful(), 2);
}

}  // namespace
}  // namespace troupe
