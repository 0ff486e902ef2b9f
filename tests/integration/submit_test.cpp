// What a driver refuses to hand to the head.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemons/client/driver_client.h"
#include "tests/integration/cluster.h"

namespace troupe::testing {
namespace {

using ::testing::HasSubstr;

TEST(SubmitTest, ARunThatIsTooLargeIsRefusedWithItsSizeAndCostsNothing) {
  daemons::DriverOptions options;
  options.with_node = false;
  Cluster cluster(options);
  RunSpec spec;
  spec.payload.resize(daemons::kRunBytesMax + 1);
  const Time begun = SteadyClock().Now();
  const Result<std::string> run = cluster.client().Submit(std::move(spec));
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(run.error().message, HasSubstr("take 209715201 bytes when pickled, of at most"));
  EXPECT_LT(SteadyClock().Now() - begun, seconds(2)) << "it was sent";
  const Result<std::string> state = cluster.client().ClusterJson();
  ASSERT_TRUE(state.ok());
  EXPECT_THAT(*state, ::testing::Not(HasSubstr("run-")));
}

}  // namespace
}  // namespace troupe::testing
