#include "scheduler/placement_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

using ::testing::HasSubstr;

TEST(PlacementStrategyTest, EveryNameIsReadBack) {
  for (const auto strategy :
       {PlacementStrategy::kHybrid, PlacementStrategy::kPack, PlacementStrategy::kSpread,
        PlacementStrategy::kStrictPack, PlacementStrategy::kStrictSpread}) {
    EXPECT_EQ(ParsePlacementStrategy(PlacementStrategyName(strategy)).value(), strategy);
  }
}

TEST(PlacementStrategyTest, AnUnknownNameIsToldWithTheKnownOnes) {
  const auto parsed = ParsePlacementStrategy("Pack");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(parsed.error().message, HasSubstr("\"Pack\""));
  EXPECT_THAT(parsed.error().message,
              HasSubstr("hybrid, pack, spread, strict_pack, strict_spread"));
}

}  // namespace
}  // namespace troupe
