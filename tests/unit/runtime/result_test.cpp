#include "runtime/result.h"

#include <gtest/gtest.h>

#include <string>

namespace troupe {
namespace {

Result<std::string> Refused() { return Error{ErrorCode::kPeerGone, "Till 5f0c has ended: killed"}; }

TEST(ResultTest, AValueIsThereForEveryKindOfAccess) {
  Result<std::string> result = std::string("there");
  EXPECT_EQ(result.value(), "there");
  EXPECT_EQ(*result, "there");
  EXPECT_EQ(result->size(), 5U);
  EXPECT_EQ(std::move(result).value(), "there");
}

using ResultDeathTest = ::testing::Test;

TEST(ResultDeathTest, AValueThatIsNotThereShowsTheErrorAndWhoAsked) {
  EXPECT_DEATH((void)Refused().value(),
               "result_test.cpp:[0-9]+: the value of a failed Result was used; its error: "
               "peer_gone: Till 5f0c has ended: killed\nLook at ok\\(\\)");
  EXPECT_DEATH((void)*Refused(), "its error: peer_gone: Till 5f0c has ended: killed");
  EXPECT_DEATH((void)Refused()->size(), "its error: peer_gone: Till 5f0c has ended: killed");
}

}  // namespace
}  // namespace troupe
